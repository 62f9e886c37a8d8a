"""Spark app: apply the edits of one time window of the log."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.migration.context import Migration
from walferry.migration.window import replay_window
from walferry.process import run_app
from walferry.spark.session import open_session


def main(run: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Replay the window of run RUN."""

    def work(migration: Migration) -> None:
        replay_window(migration, open_session(f"window {run}"))

    run_app(work, run, parent)


if __name__ == "__main__":
    typer.run(main)

"""Spark app: follow the source's log and apply it, until writes have stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.migration.context import Migration
from walferry.migration.replay import follow
from walferry.process import run_app
from walferry.spark.session import open_session


def main(run: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Replay the log for run RUN, round by round."""

    def work(migration: Migration) -> None:
        follow(migration, open_session(f"replay {run}"))

    run_app(work, run, parent)


if __name__ == "__main__":
    typer.run(main)

"""Spark app: apply what is left of the log up to the end fence."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.migration.context import Migration
from walferry.migration.replay import drain
from walferry.process import run_app
from walferry.spark.session import open_session


def main(run: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Drain the log for run RUN."""

    def work(migration: Migration) -> None:
        drain(migration, open_session(f"drain {run}"))

    run_app(work, run, parent)


if __name__ == "__main__":
    typer.run(main)

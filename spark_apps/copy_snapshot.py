"""Spark app: copy the files of one table's snapshot to the target."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.migration.copy import copy
from walferry.process import run_app
from walferry.run.run import Run
from walferry.spark.session import open_session


def main(
    run_id: str, table: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None
) -> None:
    """Copy the snapshot of source table TABLE for run RUN."""

    def work(run: Run) -> None:
        copy(run, open_session(f"copy {table}"), table)

    run_app(work, run_id, parent)


if __name__ == "__main__":
    typer.run(main)

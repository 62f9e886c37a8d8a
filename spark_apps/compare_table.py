"""Spark app: compare one table on both sides."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.migration.compare import last_comparison
from walferry.process import run_app
from walferry.run.run import Run
from walferry.spark.session import open_session


def main(
    run_id: str, table: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None
) -> None:
    """Compare source table TABLE with its copy for run RUN."""

    def work(run: Run) -> None:
        last_comparison(run, open_session(f"compare {table}"), table)

    run_app(work, run_id, parent)


if __name__ == "__main__":
    typer.run(main)

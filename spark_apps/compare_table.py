"""Spark app: compare one table on both sides."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.migration.compare import last_comparison
from walferry.migration.context import Migration
from walferry.process import run_app
from walferry.spark.session import open_session


def main(run: str, table: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Compare source table TABLE with its copy for run RUN."""

    def work(migration: Migration) -> None:
        last_comparison(migration, open_session(f"compare {table}"), table)

    run_app(work, run, parent)


if __name__ == "__main__":
    typer.run(main)

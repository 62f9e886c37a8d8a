"""Spark app: apply what is sealed of the log and not applied yet, let the source have it back, then end."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.process import run_app
from walferry.replay.drain import drain_sealed
from walferry.run.run import Run
from walferry.spark.session import open_session


def main(run_id: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Apply all sealed ranges for run RUN: one round, or as many as a long backlog takes."""

    def work(run: Run) -> None:
        drain_sealed(run, open_session(f"drain {run_id}"))

    run_app(work, run_id, parent)


if __name__ == "__main__":
    typer.run(main)

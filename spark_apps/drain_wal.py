"""Spark app: apply what is left of the log up to the end fence."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.process import run_app
from walferry.replay.rounds import drain
from walferry.run.run import Run
from walferry.spark.session import open_session


def main(run_id: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Drain the log for run RUN."""

    def work(run: Run) -> None:
        drain(run, open_session(f"drain {run_id}"))

    run_app(work, run_id, parent)


if __name__ == "__main__":
    typer.run(main)

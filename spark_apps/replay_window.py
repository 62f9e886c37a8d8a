"""Spark app: apply the edits of one time window of the log."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.process import run_app
from walferry.replay.window import replay_window
from walferry.run.run import Run
from walferry.spark.session import open_session


def main(run_id: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Replay the window of run RUN."""

    def work(run: Run) -> None:
        replay_window(run, open_session(f"window {run_id}"))

    run_app(work, run_id, parent)


if __name__ == "__main__":
    typer.run(main)

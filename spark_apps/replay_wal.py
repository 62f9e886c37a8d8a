"""Spark app: follow the source's log and apply it, until writes have stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.process import run_app
from walferry.replay.follower import follow
from walferry.run.run import Run
from walferry.spark.session import open_session


def main(run_id: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Replay the log for run RUN, round by round."""

    def work(run: Run) -> None:
        follow(run, open_session(f"replay {run_id}"))

    run_app(work, run_id, parent)


if __name__ == "__main__":
    typer.run(main)

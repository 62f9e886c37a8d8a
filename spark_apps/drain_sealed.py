"""Spark app: apply what is sealed of the log and not applied yet, let the source have it back, then end."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from walferry.ledger import Round
from walferry.process import run_app
from walferry.replay.drain import DRAIN_PHASE
from walferry.replay.protect import renew
from walferry.replay.rounds import STEP_BYTES, replay
from walferry.run.run import Run
from walferry.spark.session import open_session


def main(run_id: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Apply all sealed ranges for run RUN: one round, or as many as a long backlog takes."""

    def work(run: Run) -> None:
        def last() -> Round:
            return run.ledger.rounds.all()[-1]

        def drain() -> dict[str, Any]:
            # A round that took a whole step has left some of the backlog for the next.
            replay(run, open_session(f"drain {run_id}"), until=lambda: last().bytes < STEP_BYTES)
            renew(run)
            return {"round": last().number, "cells": last().cells}

        run.attempt(DRAIN_PHASE, drain)

    run_app(work, run_id, parent)


if __name__ == "__main__":
    typer.run(main)

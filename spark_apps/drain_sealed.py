"""Spark app: apply what is sealed of the log and not applied yet, then end."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.migration.context import Migration
from walferry.migration.follow import DRAIN_PHASE
from walferry.migration.replay import STEP_BYTES, replay
from walferry.process import run_app
from walferry.spark.session import open_session


def main(run: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Apply all sealed ranges for run RUN: one round, or as many as a long backlog takes."""

    def work(migration: Migration) -> None:
        ledger = migration.ledger
        ledger.start_phase(run, DRAIN_PHASE)
        try:
            # A round that took a whole step has left some of the backlog for the next.
            replay(
                migration,
                open_session(f"drain {run}"),
                until=lambda: ledger.rounds(run)[-1].bytes < STEP_BYTES,
            )
        except BaseException as error:
            ledger.fail_phase(run, DRAIN_PHASE, f"{type(error).__name__}: {error}")
            raise
        last = ledger.rounds(run)[-1]
        ledger.finish_phase(run, DRAIN_PHASE, {"round": last.number, "cells": last.cells})

    run_app(work, run, parent)


if __name__ == "__main__":
    typer.run(main)

"""Spark app: apply what is sealed of the log and not applied yet, let the source have it back, then end."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from walferry.ledger import Round
from walferry.migration.context import Migration
from walferry.migration.follow import DRAIN_PHASE
from walferry.migration.protect import renew
from walferry.migration.replay import STEP_BYTES, replay
from walferry.process import run_app
from walferry.spark.session import open_session


def main(run: str, parent: Annotated[int | None, typer.Option(help="pid of the submitter")] = None) -> None:
    """Apply all sealed ranges for run RUN: one round, or as many as a long backlog takes."""

    def work(migration: Migration) -> None:
        def last() -> Round:
            return migration.ledger.rounds(run)[-1]

        def drain() -> dict[str, Any]:
            # A round that took a whole step has left some of the backlog for the next.
            replay(migration, open_session(f"drain {run}"), until=lambda: last().bytes < STEP_BYTES)
            renew(migration)
            return {"round": last().number, "cells": last().cells}

        migration.attempt(DRAIN_PHASE, drain)

    run_app(work, run, parent)


if __name__ == "__main__":
    typer.run(main)

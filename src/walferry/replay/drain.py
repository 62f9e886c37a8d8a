"""The drain: apply the sealed edits of a source's log to existing target tables, DAG run after DAG run."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from walferry.errors import UsageError
from walferry.ledger import Round
from walferry.replay.cut import start_fence
from walferry.replay.follower import replay
from walferry.replay.protect import protect, renew
from walferry.replay.rounds import STEP_BYTES
from walferry.replay.targets import target_faults
from walferry.run.run import Run

DRAINER = "airflow hbase_wal_drain"
"""owner of the drains' runs"""


def check_targets(run: Run) -> None:
    """Raise UsageError with every reason why a drain cannot apply edits: it needs tables that exist on both sides."""
    faults = target_faults(run)
    if run.source.cluster_id() == run.target.cluster_id():
        faults.insert(0, "source and target are one cluster")
    if faults:
        raise UsageError(f"nothing can be drained: {'; '.join(faults)}", faults=faults)


def prepare_drain(run: Run) -> None:
    """Check the tables, then keep the source's WALs and set the start fence, once.

    A run that fails the check before it created anything ends as failed, so that a corrected one may take its name.
    """
    try:
        check_targets(run)
    except UsageError as error:
        if not run.ledger.objects.all():
            run.ledger.end("failed", run.actor, str(error))
        raise
    protect(run)
    start_fence(run)


def drain_sealed(run: Run, spark: SparkSession) -> None:
    """The phase `drain_sealed`, repeated each time: apply what is sealed, then release the source's applied WALs."""

    def last() -> Round:
        return run.ledger.rounds.all()[-1]

    def work() -> dict[str, Any]:
        # A round of a whole step has left some of the backlog for the next.
        replay(run, spark, until=lambda: last().bytes < STEP_BYTES)
        renew(run)
        return {"round": last().number, "cells": last().cells}

    run.attempt("drain_sealed", work)

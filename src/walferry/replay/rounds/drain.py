"""The drain DAG: each DAG run applies the sealed edits of a source's log to existing target tables."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from walferry.errors import UsageError
from walferry.ledger import Round
from walferry.replay.rounds.follower import replay
from walferry.replay.targets import target_faults
from walferry.run.run import Run

DRAINER = "airflow hbase_wal_drain"
"""owner of the drains' runs"""


def check_targets(run: Run) -> None:
    """Raise UsageError with every reason why a drain cannot apply edits, such as tables that are missing on a side.

    If the run has not created anything yet, it ends as failed, so that a corrected run may take its name.
    """
    faults = target_faults(run)
    if run.source.cluster_id() == run.target.cluster_id():
        faults.insert(0, "source and target are the same cluster")
    if faults:
        reason = f"the drain cannot apply edits: {'; '.join(faults)}"
        if not run.ledger.objects.all():
            run.ledger.end("failed", run.actor, reason)
        raise UsageError(reason, faults=faults)


def drain_sealed(run: Run, spark: SparkSession) -> None:
    """The phase `drain_sealed`: apply the sealed files."""

    def last() -> Round:
        return run.ledger.rounds.latest(1)[0]

    def work() -> dict[str, Any]:
        replay(run, spark, until=lambda: True)
        return {"round": last().number, "cells": last().cells}

    run.once("drain_sealed", work)

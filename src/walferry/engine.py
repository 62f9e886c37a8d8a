"""The order of a migration's phases, for a run without Airflow. The DAG `hbase_migrate` calls the same functions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from walferry.checks.phases import check_copy, check_drain
from walferry.errors import TransientError
from walferry.migration import copy, cut, cutover, protect, report
from walferry.migration.compare import last_comparison
from walferry.migration.context import Migration
from walferry.migration.plan import plan_run
from walferry.migration.replay import drain, replay, wait_while_paused
from walferry.spark.session import open_session

log = logging.getLogger(__name__)

ATTEMPTS = 4


def migrate(migration: Migration, approve: Callable[[str], bool], docs: Path) -> None:
    """Run all phases that are not done yet. `approve(question)` asks a person; False keeps replaying.

    Transient failures are repeated a bounded number of times, each from what the ledger says.
    """
    plan_run(migration)
    retried(lambda: protect.protect(migration))
    retried(lambda: cut.start_fence(migration))
    for pair in migration.tables:
        retried(partial(copy.snapshot, migration, pair.source))
    spark = open_session(f"walferry {migration.run_id}")
    for pair in migration.tables:
        retried(partial(copy.copy, migration, spark, pair.source))
        retried(partial(copy.clone, migration, pair.source))
    retried(lambda: check_copy(migration, docs))
    follow(migration, spark, approve)
    retried(lambda: cutover.stop_writes(migration, migration.actor))
    finish(migration, spark, docs)


def follow(migration: Migration, spark: SparkSession, approve: Callable[[str], bool]) -> None:
    """Replay until the lag is small and a person approves the cutover and confirms that writes have stopped."""

    def work() -> dict[str, object]:
        while True:
            retried(lambda: replay(migration, spark, until=lambda: cutover.caught_up(migration)))
            cutover.gate(migration, drained=False)
            question = f"Lag {cutover.lag(migration).seconds:.0f} s, quarantine empty. Cut over {migration.run_id}?"
            if approve(question) and (
                migration.spec.write_stop == "readonly" or approve("Have all writes to the source stopped?")
            ):
                # The answers may have taken their time, and replay waited for them.
                retried(lambda: replay(migration, spark, until=lambda: cutover.caught_up(migration)))
                cutover.approve(migration, migration.actor)
                return {}
            wait_while_paused(migration)

    migration.once("replay", work)


def finish(migration: Migration, spark: SparkSession, docs: Path) -> None:
    """End fence, drain, last comparison, gate, release, report."""
    retried(lambda: cut.end_fence(migration))
    retried(lambda: drain(migration, spark))
    for pair in migration.tables:
        retried(partial(last_comparison, migration, spark, pair.source))
    retried(lambda: check_drain(migration, docs))
    retried(lambda: release(migration))


def release(migration: Migration) -> None:
    """Remove what the run made on the clusters, and end it as done."""
    protect.finish(migration, "cut over; nothing unexplained")


def abort(migration: Migration, reason: str) -> None:
    """End the run as aborted and remove what it made on the clusters; target tables stay as they are."""
    migration.ledger.end_run(migration.run_id, "aborted", migration.actor, reason)
    protect.release(migration, aborted=True)


def retried(work: Callable[[], object]) -> None:
    """Repeat what failed for a reason that may go away, a few times, with growing pauses."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            work()
            return
        except TransientError as error:
            if attempt == ATTEMPTS:
                raise
            log.warning("attempt %d of %d failed: %s; again in %d s", attempt, ATTEMPTS, error, 5 * attempt)
            time.sleep(5 * attempt)


def write_report(migration: Migration, folder: Path) -> Path:
    """Write the run's report below `folder`."""
    return report.write(migration.ledger, migration.ledger.run(migration.run_id), folder / migration.run_id)

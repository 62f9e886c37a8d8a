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
from walferry.migration import copy, cutover, report
from walferry.migration.compare import last_comparison
from walferry.migration.plan import plan_run
from walferry.replay import cut, protect
from walferry.replay.rounds import drain, replay, wait_while_paused
from walferry.run.run import Run
from walferry.spark.session import open_session

log = logging.getLogger(__name__)

ATTEMPTS = 4


def migrate(run: Run, approve: Callable[[str], bool], docs: Path) -> None:
    """Run all phases that are not done yet. `approve(question)` asks a person; False keeps replaying.

    Transient failures are repeated a bounded number of times, each from what the ledger says.
    """
    plan_run(run)
    retried(lambda: protect.protect(run))
    retried(lambda: cut.start_fence(run))
    for pair in run.tables:
        retried(partial(copy.snapshot, run, pair.source))
    spark = open_session(f"walferry {run.run_id}")
    for pair in run.tables:
        retried(partial(copy.copy, run, spark, pair.source))
        retried(partial(copy.clone, run, pair.source))
    retried(lambda: check_copy(run, docs))
    follow(run, spark, approve)
    retried(lambda: cutover.stop_writes(run, run.actor))
    finish(run, spark, docs)


def follow(run: Run, spark: SparkSession, approve: Callable[[str], bool]) -> None:
    """Replay until the lag is small and a person approves the cutover and confirms that writes have stopped."""

    def work() -> dict[str, object]:
        while True:
            retried(lambda: replay(run, spark, until=lambda: cutover.caught_up(run)))
            cutover.gate(run, drained=False)
            question = f"Lag {cutover.lag(run).seconds:.0f} s, quarantine empty. Cut over {run.run_id}?"
            if approve(question) and (
                run.spec.write_stop == "readonly" or approve("Have all writes to the source stopped?")
            ):
                # The answers may have taken their time, and replay waited for them.
                retried(lambda: replay(run, spark, until=lambda: cutover.caught_up(run)))
                cutover.approve(run, run.actor)
                return {}
            wait_while_paused(run)

    run.once("replay", work)


def finish(run: Run, spark: SparkSession, docs: Path) -> None:
    """End fence, drain, last comparison, gate, release, report."""
    retried(lambda: cut.end_fence(run))
    retried(lambda: drain(run, spark))
    for pair in run.tables:
        retried(partial(last_comparison, run, spark, pair.source))
    retried(lambda: check_drain(run, docs))
    retried(lambda: release(run))


def release(run: Run) -> None:
    """Remove what the run made on the clusters, and end it as done."""
    protect.finish(run, "cut over; nothing unexplained")


def abort(run: Run, reason: str) -> None:
    """End the run as aborted and remove what it made on the clusters; target tables stay as they are."""
    run.ledger.end("aborted", run.actor, reason)
    protect.release(run, aborted=True)


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


def write_report(run: Run, folder: Path) -> Path:
    """Write the run's report below `folder`."""
    return report.write(run.ledger, folder / run.run_id)

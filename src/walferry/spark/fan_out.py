"""Run a function over work items in the executors and bring its small results back."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from walferry.errors import TransientError, WalferryError
from walferry.spark.byte_counts import collecting, counting

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0

Item = TypeVar("Item")
Result = TypeVar("Result")

_SCHEMA = pa.schema([("result", pa.binary())])


def fan_out(
    spark: SparkSession,
    work: Callable[[Item], Iterable[Result]],
    items: Sequence[Item],
    tasks: int | None = None,
    *,
    what: str,
    sizes: Sequence[int] = (),
) -> list[Result]:
    """Apply `work` to every item in the executors; the results of all items, in item order.

    Results are for reports (counts, positions, reasons), never for data: they are collected on the driver.
    A WalferryError raised by `work` is raised here as it was; what other items returned is then lost. What Spark itself
    lost is raised as `job` has it.
    `tasks`: number of Spark tasks, one per item if not given; a task takes neighbouring items. `what` is done, for
    the log of a long job; with `sizes`, the bytes of each item, the log tells how many of them are read, as far as
    `work` counts them (`count_bytes`).
    """
    if not items:
        return []
    frozen = list(items)
    count = min(tasks or len(frozen), len(frozen))
    results: list[Result] = []
    with ExitStack() as stack:
        collector, counts = None, dict[int, int]()
        if sizes:
            collector, counts = stack.enter_context(collecting(spark.conf.get("spark.driver.host") or "127.0.0.1"))

        def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    with counting(collector, number):
                        outcome = _outcome(work, frozen[number])
                    yield _frame(outcome)

        stack.enter_context(job(spark, what, counts, sizes))
        rows = spark.range(0, len(frozen), 1, count).mapInArrow(each, "result binary").collect()
    for row in rows:
        outcome = pickle.loads(row["result"])
        if isinstance(outcome, WalferryError):
            raise outcome
        results.extend(outcome)
    return results


@contextmanager
def job(
    spark: SparkSession, what: str, counts: Mapping[int, int] | None = None, sizes: Sequence[int] = ()
) -> Iterator[None]:
    """The frame in which the driver waits for a job: the log tells how far it is, and what Spark lost may be repeated.

    Progress goes by the bytes that its items have read (`counts`) of those they have (`sizes`); without sizes, by its
    Spark tasks.
    Raises WorkerLostError when an executor or a Python worker went away under it, SparkGoneError when the JVM of this
    process did. Every other error is raised as it was, above all the PythonException of what a function raised.
    """
    ended = threading.Event()
    started = time.monotonic()

    def tell() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            try:
                for line in _progress(spark, what, counts or {}, sizes, time.monotonic() - started):
                    log.info("%s", line)
            except (Py4JError, OSError):
                return  # the JVM is gone, as the job itself will say

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    except (Py4JError, OSError) as error:
        loss = _loss(what, error)
        if loss is None:
            raise
        raise loss from error
    finally:
        ended.set()
        thread.join()


class WorkerLostError(TransientError):
    """A Spark job ended with an executor or a Python worker that was killed, or went with its machine; fact `job`."""


class SparkGoneError(TransientError):
    """The JVM of this process has ended or has stopped its Spark: only a new process has another one; fact `job`."""


_WORKER_LOST = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    "ExecutorDeadException",
    "FetchFailed",
    # of a stage whose output went with an executor (`spark.stage.maxConsecutiveAttempts`)
    "failed the maximum allowable number of times",
)
"""in what Spark's DAGScheduler says of a job that failed"""
_SPARK_GONE = ("SparkContext was shut down", "stopped SparkContext")


def _loss(what: str, error: Exception) -> TransientError | None:
    """The error of ours for what Spark lost; None for any other failure.

    What a function raised never comes here: PySpark makes a PythonException of it.
    """
    if isinstance(error, Py4JJavaError):
        # The first line: what follows are stack traces, with the words of whoever.
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
        if any(mark in reason for mark in _WORKER_LOST):
            newest = reason.rpartition("most recent failure: ")[2].partition(". Consider setting")[0]
            return WorkerLostError(
                f"{what}: Spark lost an executor or a Python worker ({newest}); if that comes again, look for what "
                "kills it, first of all for too little memory", job=what,
            )  # fmt: skip
        if not any(mark in reason for mark in _SPARK_GONE):
            return None
    elif not isinstance(error, (Py4JNetworkError, ConnectionError)):
        return None
    return SparkGoneError(
        f"{what}: the JVM of Spark's driver has ended under the job; run it again in a new process, and look for what "
        "killed it, first of all for too little memory", job=what,
    )  # fmt: skip


def _progress(
    spark: SparkSession, what: str, counts: Mapping[int, int], sizes: Sequence[int], elapsed: float
) -> Iterator[str]:
    if sizes:
        yield progress_line(what, counts, sizes, elapsed)
        return
    tracker = spark.sparkContext.statusTracker()
    for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()):
        if stage is not None:
            done = stage.numCompletedTasks
            eta = f"{elapsed / done * (stage.numTasks - done):.0f}s" if done else "N/A"
            yield f"{what}: {done} of {stage.numTasks} tasks; Time: {elapsed:.0f}s; ETA: {eta}"


def progress_line(what: str, counts: Mapping[int, int], sizes: Sequence[int], elapsed: float) -> str:
    """Bytes done of bytes known, in the manner of gh-ost; no item counts for more than its size."""
    total = sum(sizes)
    done = sum(min(counts.get(number, 0), size) for number, size in enumerate(sizes))
    eta = f"{elapsed / done * (total - done):.0f}s" if done else "N/A"
    percent = 100 * done / total if total else 100.0
    return f"{what}: {done / 1e6:.1f}/{total / 1e6:.1f}MB {percent:.1f}%; Time: {elapsed:.0f}s; ETA: {eta}"


def _outcome(work: Callable[[Item], Iterable[Result]], item: Item) -> list[Result] | WalferryError:
    try:
        return list(work(item))
    except WalferryError as error:
        return error


def _frame(outcome: object) -> pa.RecordBatch:
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_SCHEMA)

"""Run a function over work items in the executors and collect its small results."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from walferry.background import begun, beside
from walferry.errors import TransientError, WalferryError
from walferry.spark.byte_counts import collecting, counting, counting_here
from walferry.spark.handing_over import all_handed_back, handing_over

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0
AT_ONCE_HERE = 2
"""items that a process works on at once without Spark: it has one interpreter, and one worker's memory for each item"""

Item = TypeVar("Item")
Result = TypeVar("Result")


def shares(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """The items in at most so many parts of neighbours, about equally many in each."""
    size = max(1, -(-len(items) // count))
    return [items[at : at + size] for at in range(0, len(items), size)]


def fan_out(
    spark: SparkSession | None,
    work: Callable[[Item], Iterable[Result]],
    items: Sequence[Item],
    tasks: int | None = None,
    *,
    what: str,
    sizes: Sequence[int] = (),
) -> list[Result]:
    """Apply `work` to every item in the executors. Returns the results of all items, in item order.

    Without a session, this process does small work itself, `AT_ONCE_HERE` items at a time.

    Results are for reports (counts, positions, reasons), never for data: the driver collects them.
    A WalferryError raised by `work` is raised here unchanged; the results of other items are then lost. If Spark loses
    a worker or its JVM, the errors of `job` are raised.
    `tasks`: number of Spark tasks, by default one per item; a task takes neighbouring items. `what` names the job in
    the log. With `sizes`, the bytes of each item, progress is logged in the bytes that `work` counts (`count_bytes`).
    """
    if not items:
        return []
    if spark is None:
        return _here(work, items, what, sizes)
    count = min(tasks or len(items), len(items))
    results: list[Result] = []
    with ExitStack() as stack:
        collector, counts = None, dict[int, int]()
        if sizes:
            collector, counts = stack.enter_context(collecting(spark.conf.get("spark.driver.host") or "127.0.0.1"))

        def each(numbered: Iterator[tuple[int, Item]]) -> Iterator[list[Result] | WalferryError]:
            for number, item in numbered:
                with counting(collector, number):
                    outcome = _outcome(work, item)
                yield outcome

        stack.enter_context(job(spark, what, counts, sizes))
        # Each task gets its own items and no others.
        numbered = spark.sparkContext.parallelize(list(enumerate(items)), count)
        outcomes = numbered.mapPartitions(handing_over(spark, each)).collect()
    for outcome in all_handed_back(outcomes):
        results.extend(outcome)
    return results


def _here(
    work: Callable[[Item], Iterable[Result]], items: Sequence[Item], what: str, sizes: Sequence[int]
) -> list[Result]:
    waiting = deque(enumerate(items))
    found: dict[int, list[Result]] = {}
    counts: dict[int, int] = {}
    started = time.monotonic()

    def some() -> None:
        while True:
            try:
                number, item = waiting.popleft()
            except IndexError:
                return
            try:
                with counting_here(counts, number):
                    found[number] = list(work(item))
            except BaseException:
                waiting.clear()
                raise

    def progress() -> Iterator[str]:
        if sizes:
            yield progress_line(what, counts, sizes, time.monotonic() - started)

    with _telling(progress):
        # No thread pool: before exiting, even after Ctrl-C, a process finishes all work that waits in a pool.
        at_work = [begun(some, what) for _ in range(min(AT_ONCE_HERE, len(items)))]
        try:
            errors = [error for one in at_work if (error := one.exception()) is not None]
        except BaseException:
            waiting.clear()
            wait(at_work)
            raise
    if errors:
        raise errors[0]
    return [result for number in range(len(items)) for result in found[number]]


@contextmanager
def job(
    spark: SparkSession, what: str, counts: Mapping[int, int] | None = None, sizes: Sequence[int] = ()
) -> Iterator[None]:
    """Surround the driver's wait for a job: log progress, and turn Spark's own losses into transient errors.

    Progress is in bytes read (`counts`) of all bytes (`sizes`), or in Spark tasks without sizes.
    Raises WorkerLostError if the job lost an executor or a Python worker, and SparkGoneError if this process lost its
    JVM. Passes on every other error, above all PythonException, which wraps an error from a function.
    """
    started = time.monotonic()
    group = f"walferry {uuid4().hex}"
    with (
        _telling(lambda: _progress(spark, group, what, counts or {}, sizes, time.monotonic() - started)),
        losses(what),
    ):
        # Separates this thread's jobs from others that run at the same time; Spark's page shows `what`.
        spark.sparkContext.setJobGroup(group, what)
        yield


@contextmanager
def losses(what: str) -> Iterator[None]:
    """Turn Spark's own losses into transient errors, like `job`, for work that asks the JVM for more than jobs."""
    try:
        yield
    except (Py4JError, OSError) as error:
        loss = _loss(what, error)
        if loss is None:
            raise
        raise loss from error


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel all jobs. Does nothing if the JVM has ended: the error that led here says so."""
    with suppress(Py4JError, OSError):
        spark.sparkContext.cancelAllJobs()


@contextmanager
def _telling(progress: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Log progress every few seconds."""

    def log_progress(ended: threading.Event) -> None:
        while not ended.wait(PROGRESS_SECONDS):
            try:
                for line in progress():
                    log.info("%s", line)
            except (Py4JError, OSError):
                return  # the JVM has ended; the job itself will report it

    with beside(log_progress, "progress"):
        yield


class WorkerLostError(TransientError):
    """A Spark job failed because an executor or a Python worker was killed, or its machine was lost; fact `job`."""


class SparkGoneError(TransientError):
    """The JVM of this process has ended or has stopped Spark: a new process is needed; fact `job`."""


_WORKER_LOST = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    # the process that starts Python workers was killed with some that waited for work: Spark cannot tell it
    "java.io.IOException: Stream closed",
    "ExecutorLostFailure",
    "ExecutorDeadException",
    "FetchFailed",
    # a stage whose output was lost with an executor (`spark.stage.maxConsecutiveAttempts`)
    "failed the maximum allowable number of times",
)
"""parts of the DAGScheduler's message about a failed job"""
_SPARK_GONE = ("SparkContext was shut down", "stopped SparkContext")


def _loss(what: str, error: Exception) -> TransientError | None:
    """Our error if Spark lost a worker or the JVM; None for any other failure.

    Errors raised by a function never get here: PySpark wraps them in a PythonException.
    """
    if isinstance(error, Py4JJavaError):
        # Take only the first line: the stack traces after it may contain anything.
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
        if any(mark in reason for mark in _WORKER_LOST):
            newest = reason.rpartition("most recent failure: ")[2].partition(". Consider setting")[0]
            return WorkerLostError(
                f"{what}: Spark lost an executor or a Python worker ({newest}); if this happens again, find out what "
                "kills it; too little memory is the most likely cause", job=what,
            )  # fmt: skip
        if not any(mark in reason for mark in _SPARK_GONE):
            return None
    elif not isinstance(error, (Py4JNetworkError, ConnectionError)):
        return None
    return SparkGoneError(
        f"{what}: the JVM of Spark's driver ended during the job; run it again in a new process, and find out what "
        "killed it; too little memory is the most likely cause", job=what,
    )  # fmt: skip


def _progress(
    spark: SparkSession, group: str, what: str, counts: Mapping[int, int], sizes: Sequence[int], elapsed: float
) -> Iterator[str]:
    if sizes:
        yield progress_line(what, counts, sizes, elapsed)
        return
    tracker = spark.sparkContext.statusTracker()
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    mine = {stage for job in jobs if job is not None for stage in job.stageIds}
    for stage in map(tracker.getStageInfo, mine.intersection(tracker.getActiveStageIds())):
        if stage is not None:
            done = stage.numCompletedTasks
            eta = f"{elapsed / done * (stage.numTasks - done):.0f}s" if done else "N/A"
            yield f"{what}: {done} of {stage.numTasks} tasks; Time: {elapsed:.0f}s; ETA: {eta}"


def progress_line(what: str, counts: Mapping[int, int], sizes: Sequence[int], elapsed: float) -> str:
    """The progress in bytes, in gh-ost's format; no item counts for more than its size."""
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

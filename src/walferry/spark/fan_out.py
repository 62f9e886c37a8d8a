"""Run a function over work items in the executors and bring its small results back."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from walferry.errors import WalferryError

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 30.0

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
) -> list[Result]:
    """Apply `work` to every item in the executors; the results of all items, in item order.

    Results are for reports (counts, positions, reasons), never for data: they are collected on the driver.
    A WalferryError raised by `work` is raised here as it was; what other items returned is then lost.
    `tasks`: number of Spark tasks, one per item if not given; a task takes neighbouring items. `what` is done, for
    the log of a long job.
    """
    if not items:
        return []
    frozen = list(items)

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _frame(_outcome(work, frozen[number]))

    count = min(tasks or len(frozen), len(frozen))
    frame = spark.range(0, len(frozen), 1, count).mapInArrow(each, "result binary")
    results: list[Result] = []
    with progress(spark, what):
        rows = frame.collect()
    for row in rows:
        outcome = pickle.loads(row["result"])
        if isinstance(outcome, WalferryError):
            raise outcome
        results.extend(outcome)
    return results


@contextmanager
def progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Say now and then, while the driver waits for a job, how many of its tasks are done, and when it may end."""
    ended = threading.Event()
    started = time.monotonic()

    def tell() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(PROGRESS_SECONDS):
            for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()):
                if stage is None:
                    continue
                elapsed, done = time.monotonic() - started, stage.numCompletedTasks
                eta = f"{elapsed / done * (stage.numTasks - done):.0f}s" if done else "N/A"
                log.info("%s: %d of %d tasks; Time: %.0fs; ETA: %s", what, done, stage.numTasks, elapsed, eta)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _outcome(work: Callable[[Item], Iterable[Result]], item: Item) -> list[Result] | WalferryError:
    try:
        return list(work(item))
    except WalferryError as error:
        return error


def _frame(outcome: object) -> pa.RecordBatch:
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_SCHEMA)

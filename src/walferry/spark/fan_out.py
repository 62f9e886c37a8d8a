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
from pyspark.sql import SparkSession

from walferry.errors import WalferryError
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
    A WalferryError raised by `work` is raised here as it was; what other items returned is then lost.
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

        stack.enter_context(progress(spark, what, counts, sizes))
        rows = spark.range(0, len(frozen), 1, count).mapInArrow(each, "result binary").collect()
    for row in rows:
        outcome = pickle.loads(row["result"])
        if isinstance(outcome, WalferryError):
            raise outcome
        results.extend(outcome)
    return results


@contextmanager
def progress(
    spark: SparkSession, what: str, counts: Mapping[int, int] | None = None, sizes: Sequence[int] = ()
) -> Iterator[None]:
    """Say now and then, while the driver waits for a job, how far it is, and when it may end.

    By the bytes that its items have read (`counts`) of those they have (`sizes`); without sizes, by its Spark tasks.
    """
    ended = threading.Event()
    started = time.monotonic()

    def tell() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(PROGRESS_SECONDS):
            if sizes:
                log.info("%s", progress_line(what, counts or {}, sizes, time.monotonic() - started))
                continue
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

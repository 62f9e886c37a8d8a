"""Run a function over work items in the executors and bring its small results back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from walferry.errors import WalferryError

Item = TypeVar("Item")
Result = TypeVar("Result")

_SCHEMA = pa.schema([("result", pa.binary())])


def map_items(
    spark: SparkSession,
    work: Callable[[Item], Iterable[Result]],
    items: Sequence[Item],
    tasks: int | None = None,
) -> list[Result]:
    """Apply `work` to every item in the executors; the results of all items, in item order.

    Results are for reports (counts, positions, reasons), never for data: they are collected on the driver.
    A WalferryError raised by `work` is raised here as it was; what other items returned is then lost.
    `tasks`: number of Spark tasks, one per item if not given; a task takes neighbouring items.
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
    for row in frame.collect():
        outcome = pickle.loads(row["result"])
        if isinstance(outcome, WalferryError):
            raise outcome
        results.extend(outcome)
    return results


def _outcome(work: Callable[[Item], Iterable[Result]], item: Item) -> list[Result] | WalferryError:
    try:
        return list(work(item))
    except WalferryError as error:
        return error


def _frame(outcome: object) -> pa.RecordBatch:
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_SCHEMA)

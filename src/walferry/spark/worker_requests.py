"""Counts the requests of Spark's workers to the clusters: when a task ends, its requests are added to the driver's
counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

from pyspark import Accumulator, AccumulatorParam, SparkContext
from pyspark.sql import SparkSession

from walferry import request_meter

Given = TypeVar("Given")
Yielded = TypeVar("Yielded")


class _Sum(AccumulatorParam[request_meter.Counts]):
    def zero(self, value: request_meter.Counts) -> request_meter.Counts:
        return Counter()

    def addInPlace(self, value1: request_meter.Counts, value2: request_meter.Counts) -> request_meter.Counts:
        return value1 + value2  # not in place: another thread may be reading it


@cache
def _accumulator(context: SparkContext) -> Accumulator[request_meter.Counts]:
    accumulator = context.accumulator(Counter(), _Sum())
    request_meter.gather(lambda: accumulator.value)
    return accumulator


def handing_over(
    spark: SparkSession, work: Callable[[Iterator[Given]], Iterator[Yielded]]
) -> Callable[[Iterable[Given]], Iterator[Yielded]]:
    """Wrap the work on a partition: when its task ends, add its requests to the driver's counts. Its log lines have a
    time, like a command's."""
    accumulator = _accumulator(spark.sparkContext)

    def run(partition: Iterable[Given]) -> Iterator[Yielded]:
        # A worker's warnings appear between a command's log lines, which have a time.
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
        try:
            yield from work(iter(partition))
        finally:
            accumulator.add(request_meter.taken())

    return run

"""Digests of row ranges, computed where the rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from walferry.formats.cells import CellIndex, index_cells
from walferry.formats.resolve import Digest, FamilyRules, Fate, digest, resolve, row_digests
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.spark.clients import shared_client
from walferry.spark.fan_out import fan_out


@dataclass(frozen=True)
class RowRange:
    """A row range of one table on one side, read raw and resolved at one fixed moment."""

    side: str
    cluster: ClusterAddress
    table: str
    region: str
    """the source region that the range is named after"""
    start: bytes
    stop: bytes
    rules: Mapping[bytes, FamilyRules]
    now_ms: int


@dataclass(frozen=True)
class RangeDigest:
    """What is visible in a span, and how many cells were dropped for which reason."""

    side: str
    region: str
    start: bytes
    stop: bytes
    digest: Digest
    dropped: dict[str, int]


def digest_ranges(spark: SparkSession, spans: Sequence[RowRange]) -> list[RangeDigest]:
    """Digest every span in a task of its own."""
    return fan_out(spark, lambda span: [digest_range(span)], spans, what="read both sides")


def digest_range(span: RowRange) -> RangeDigest:
    """Read one span and digest what is visible of it. Memory: one block and the widest row."""
    total = Digest(0, 0, 0)
    dropped = np.zeros(len(Fate), np.int64)
    for cells, fates in resolved(shared_client(span.cluster), span):
        total += digest(cells, fates == Fate.VISIBLE)
        dropped += np.bincount(fates, minlength=len(Fate))
    counts = {fate.name.lower(): int(dropped[fate]) for fate in Fate if fate is not Fate.VISIBLE}
    return RangeDigest(span.side, span.region, span.start, span.stop, total, counts)


def resolved(client: HBaseClient, span: RowRange) -> Iterator[tuple[CellIndex, np.ndarray]]:
    """Blocks of whole rows of a span, each cell with its fate."""
    for block in client.scan_raw(span.table, span.start, span.stop):
        cells = index_cells(np.frombuffer(block, np.uint8))
        yield cells, resolve(cells, span.rules, span.now_ms)


def differing_rows(spark: SparkSession, spans: Sequence[RowRange], limit: int) -> tuple[int, list[bytes]]:
    """Rows that are not alike on both sides of the given spans: how many, and the first `limit` in row order."""
    frozen = list(spans)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                span = frozen[number]
                for cells, fates in resolved(shared_client(span.cluster), span):
                    rows = row_digests(cells, fates == Fate.VISIBLE)
                    yield rows.append_column("side", pa.array([span.side] * rows.num_rows, pa.string()))

    numbers = spark.range(0, len(frozen), 1, max(1, len(frozen)))
    rows = numbers.mapInArrow(read, "row binary, cells int, low long, high long, side string")
    source = rows.where("side = 'source'").drop("side").alias("s")
    target = rows.where("side = 'target'").drop("side").alias("t")
    unequal: DataFrame = source.join(target, "row", "full_outer").where(
        "not (s.cells <=> t.cells and s.low <=> t.low and s.high <=> t.high)"
    )
    found = unequal.select("row").cache()
    count = found.count()
    first = [bytes(row["row"]) for row in found.orderBy("row").limit(limit).collect()]
    found.unpersist()
    return count, first

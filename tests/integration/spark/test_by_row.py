"""Cells that are placed in pieces stay there while a real Spark ranks and sorts them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from walferry.apply.by_row import _RANKED_DDL, _in_place, _rank

PIECES = 3


@pytest.fixture
def cells(spark: SparkSession) -> DataFrame:
    """Of each of thirty rows a put that the window has, and one with a higher number that the target has, in every
    third row."""
    rows = [
        ("t", b"%02d" % row, number, 0, "r", b"", 1, "a.1", number, row * PIECES // 30, b"", b"f", b"q", 7, 4, settled)
        for row in range(30)
        for number, settled in ((1, False), (2, True))
        if not settled or row % 3 == 0
    ]
    return spark.createDataFrame(rows, _RANKED_DDL).repartitionById(PIECES, "piece")


def test_ranked_cells_are_in_the_partitions_of_their_pieces(cells: DataFrame) -> None:
    ranked = _rank(cells).withColumn("partition", F.spark_partition_id())
    assert ranked.rdd.getNumPartitions() == PIECES
    found = [(bytes(r["row"]), r["piece"], r["partition"], r["outranked"], r["settled"]) for r in ranked.collect()]
    assert sorted(found) == [
        (b"%02d" % row, row * PIECES // 30, row * PIECES // 30, row % 3 == 0, False) for row in range(30)
    ]


def test_cells_that_were_moved_to_other_partitions_are_not_sent(cells: DataFrame) -> None:
    def sent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in _in_place(batches):
            yield batch.select(["piece"])

    assert cells.mapInArrow(sent, "piece int").count() == 40
    with pytest.raises(Exception, match="Spark moved rows of other pieces"):
        cells.repartition(PIECES, "row").mapInArrow(sent, "piece int").collect()

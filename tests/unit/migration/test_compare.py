"""Which of the rows that differ are looked at one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from walferry.hbase.address import ClusterAddress
from walferry.migration import compare
from walferry.migration.digest import NOTHING, SHOWN_ROWS, Outcome, RangePair

SPARK: SparkSession = None  # type: ignore[assignment]
HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")


def pair(region: str) -> RangePair:
    return RangePair(HERE, HERE, "t", "t", region, b"", b"", {})


def outcome(rows: Sequence[bytes], differing: int = 0) -> Outcome:
    return replace(NOTHING, rows=tuple(rows), differing=differing or len(rows))


def named(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{n:05d}".encode() for n in range(count)]


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[RangePair]:
    """What was read once more; there, rows b00100 on are equal by then."""
    asked: list[RangePair] = []

    def pairs(spark: SparkSession, again: Sequence[RangePair]) -> list[Outcome]:
        asked.extend(again)
        return [outcome(named("b", 450)[100:])]

    monkeypatch.setattr(compare, "compare_pairs", pairs)
    return asked


def test_a_range_in_which_more_rows_differ_than_were_named_is_read_once_more(read_again: list[RangePair]) -> None:
    """Hole: what more than 200 rows differed in was not looked at."""
    found = [outcome(named("a", 3)), outcome(named("b", SHOWN_ROWS), 450)]
    count, rows = compare._differing(SPARK, [pair("a"), pair("b")], found)
    assert (count, rows) == (453, [*named("a", 3), *named("b", 450)])
    assert [(one.region, one.named) for one in read_again] == [("b", compare.EXPLAINED_ROWS)]


def test_few_rows_and_too_many_rows_are_not_read_once_more(read_again: list[RangePair]) -> None:
    assert compare._differing(SPARK, [pair("a")], [outcome(named("a", 3))]) == (3, named("a", 3))
    many = [outcome(named(region, SHOWN_ROWS), 15_000) for region in "ab"]
    assert compare._differing(SPARK, [pair("a"), pair("b")], many) == (30_000, named("a", SHOWN_ROWS))
    assert read_again == []

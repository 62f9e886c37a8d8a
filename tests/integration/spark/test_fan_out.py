"""Work items in a real local Spark."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from walferry.errors import GapError
from walferry.spark import fan_out as items
from walferry.spark.byte_counts import count_bytes
from walferry.spark.fan_out import fan_out


def test_results_come_in_the_order_of_the_items_however_many_tasks_there_are(spark: SparkSession) -> None:
    def work(number: int) -> Iterator[str]:
        for copy in range(number % 3):
            yield f"{number}.{copy}"

    wanted = [f"{number}.{copy}" for number in range(7) for copy in range(number % 3)]
    for tasks in (None, 1, 3, 100):
        assert fan_out(spark, work, range(7), tasks, what="count") == wanted


def test_no_item_is_no_work(spark: SparkSession) -> None:
    assert fan_out(spark, lambda number: [number], [], what="nothing") == []


def test_an_error_of_ours_arrives_with_its_kind_and_facts(spark: SparkSession) -> None:
    def work(number: int) -> list[int]:
        if number == 2:
            raise GapError("bytes are missing", file="a.wal", start=3, end=9)
        return [number]

    with pytest.raises(GapError, match="bytes are missing") as caught:
        fan_out(spark, work, range(4), what="fail")
    assert (caught.value.file, caught.value.start, caught.value.end) == ("a.wal", 3, 9)


def test_a_long_job_tells_how_far_it_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(number: int) -> list[int]:
        time.sleep(0.5)
        return [number]

    monkeypatch.setattr(items, "PROGRESS_SECONDS", 0.2)
    with caplog.at_level(logging.INFO):
        fan_out(spark, work, range(6), what="sleep")
    assert re.search(r"sleep: [1-5] of 6 tasks; Time: \d+s; ETA: \d+s", caplog.text)


def test_a_job_tells_its_bytes_while_its_first_task_still_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(size: int) -> list[int]:
        for _ in range(4):
            count_bytes(size // 4)
            time.sleep(1.1)
        return [size]

    monkeypatch.setattr(items, "PROGRESS_SECONDS", 0.2)
    with caplog.at_level(logging.INFO):
        fan_out(spark, work, [4_000_000], what="read", sizes=[4_000_000])
    assert re.search(r"read: [123]\.0/4\.0MB (25|50|75)\.0%; Time: \d+s; ETA: \d+s", caplog.text)

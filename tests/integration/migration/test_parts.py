"""A whole comparison that is stopped and gone on with, while both sides change."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import fill
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column
from walferry.migration import parts, touched
from walferry.migration.compare import compare
from walferry.migration.parts import ComparisonStoppedError, Parts
from walferry.migration.written_rows import compare_written
from walferry.replay.follower import replay
from walferry.run.comparing_ahead import compared_so_far
from walferry.run.run import Run

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("by", ["scans", "snapshots"])
def test_what_changed_in_regions_that_were_compared_before_the_stop_is_found_after_the_rest_was_compared(
    by: str,
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: Callable[..., Run],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(parts, "AT_ONCE", 1)
    table = make_table((b"r05", b"r10", b"r15"))
    run = start_run(table, compare=by)
    fill(at_source, table)
    replay(run, spark, until=lambda: True)
    first = Parts(run, table, lambda: False)
    with pytest.raises(ComparisonStoppedError):
        compare(run, lambda: spark, table, parts=first)
    assert compared_so_far(run.ledger, table).startswith(f"2 of 4 regions of {table} are compared as a whole since ")

    for row in (b"r01", b"r02", b"r11"):  # two in regions that were compared, one in another
        at_source.put(table, [Cell(row, b"f", b"q", b"new", 5)])
    at_source.mutate(table, [delete_column(b"r03", b"f", b"q", 9)])
    replay(run, spark, until=lambda: True)
    at_target.put(table, [Cell(b"r01", b"f", b"q", b"spoilt", 5)])  # of the log
    at_target.put(table, [Cell(b"r04", b"f", b"q", b"by hand", 9)])  # of no log of the source
    at_target.put(table, [Cell(b"r16", b"f", b"q", b"by hand", 9)])  # in a region that is left

    with caplog.at_level(logging.INFO):
        found = compare(run, lambda: spark, table, parts=Parts(run, table, lambda: True))
    assert f"{table}: 2 of 4 regions were compared before" in caplog.messages
    assert {item.row for item in found.differences if item.kind != "in-flight"} == {b"r16"}
    assert compared_so_far(run.ledger, table) == ""
    assert set(compare_written(run, table, found.compared).differing) == {b"r01", b"r16"}, "the log wrote r01"
    touched.look(run)
    written = compare_written(run, table, found.compared)
    assert set(written.differing) == {b"r01", b"r04", b"r16"}
    snapshots = {snapshot.name for client in (at_source, at_target) for snapshot in client.snapshots()}
    assert not [name for name in snapshots if run.snapshot(table) in name]

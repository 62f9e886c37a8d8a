"""A whole comparison that is stopped and gone on with."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import fill, skip
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column
from walferry.migration.comparing import parts
from walferry.migration.comparing.compare import compare
from walferry.migration.comparing.compare_last import compare_last
from walferry.migration.comparing.parts import ComparisonStoppedError, Parts
from walferry.migration.comparing.written_rows import compare_written
from walferry.migration.touching import touched
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.run.facts import OpenFacts
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.progress.comparing_ahead import compared_so_far
from walferry.run.run import Run

pytestmark = pytest.mark.cluster


@pytest.fixture
def table(make_table: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of four regions, few of which are compared at once."""
    monkeypatch.setattr(parts, "AT_ONCE", 1)
    return make_table((b"r05", b"r10", b"r15"))


@pytest.mark.parametrize("by", ["scans", "snapshots"])
def test_what_changed_in_regions_that_were_compared_before_the_stop_is_found_after_the_rest_was_compared(
    by: str,
    at_source: HBaseClient,
    at_target: HBaseClient,
    table: str,
    start_run: Callable[..., Run],
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = start_run(table, compare=by)
    fill(at_source, table)
    replay(run, spark, until=lambda: True)
    first = Parts(run, table, lambda: False, keeps_equality=True)
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
        found = compare(run, lambda: spark, table, parts=Parts(run, table, keeps_equality=True))
    assert f"{table}: 2 of 4 regions were compared before" in caplog.messages
    assert {item.row for item in found.differences if item.kind != "in-flight"} == {b"r16"}
    assert compared_so_far(run.ledger, table) == ""
    assert set(compare_written(run, table, found.compared).differing) == {b"r01", b"r16"}, "the log wrote r01"
    touched.look(run)
    written = compare_written(run, table, found.compared)
    assert set(written.differing) == {b"r01", b"r04", b"r16"}
    snapshots = {snapshot.name for client in (at_source, at_target) for snapshot in client.snapshots()}
    assert not [name for name in snapshots if run.snapshot(table) in name]


def test_the_last_comparison_goes_on_with_the_regions_that_a_killed_process_has_left(
    at_source: HBaseClient,
    at_target: HBaseClient,
    table: str,
    start_run: Callable[..., Run],
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = start_run(table, repair="ask")
    fill(at_source, table)
    replay(run, spark, until=lambda: True)
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    run.ledger.phases.start("open_target")
    run.ledger.phases.finish("open_target", OpenFacts(at_ms=None, why=("it is not asked for",)).model_dump())
    at_target.put(table, [Cell(b"r01", b"f", b"q", b"spoilt", 9)])
    run.ledger.phases.start("compare", table)
    with pytest.raises(ComparisonStoppedError):
        compare(run, lambda: spark, table, "phase", Parts(run, table, lambda: False, keeps_equality=False))
    at_target.put(table, [Cell(b"r16", b"f", b"q", b"spoilt", 9)])
    with caplog.at_level(logging.INFO):
        compare_last(run, lambda: spark, table)
    assert f"{table}: 2 of 4 regions were compared before" in caplog.messages
    (made,), without = comparisons_of_phase(run.ledger)
    assert without == []
    assert {item.row for item in run.ledger.comparisons.differences([made])} == {b"r01", b"r16"}
    assert len(run.ledger.comparisons.ranges([made])) == 4

"""A table that begins a new history stops, others go on; a split is no new history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.migration import cutover, quarantine
from walferry.migration.context import Migration
from walferry.migration.replay import replay

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Migration]
Sides = Callable[[Migration], tuple[dict[str, object], dict[str, object]]]


def test_a_truncated_table_stops_and_the_other_goes_on(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    truncated, other = make_table(()), make_table(())
    at_source.put(truncated, [Cell(b"a", b"f", b"q", b"before", 1)])
    migration = start_run(truncated, other)
    at_source.disable_table(truncated)
    at_source.truncate_table(truncated)
    for table in (truncated, other):
        at_source.put(table, [Cell(b"b", b"f", b"q", b"after", 2)])
    replay(migration, spark, until=lambda: True)

    (item,) = migration.ledger.quarantined(migration.run_id)
    assert item.table == truncated
    assert item.reason.startswith("lineage: ")
    here, there = sides(migration)
    of_other = {key for key in here if key.startswith(other)}
    assert of_other
    assert {key: there[key] for key in of_other} == {key: here[key] for key in of_other}
    assert not any(key.startswith(f"{truncated} b'b'") for key in there)
    with pytest.raises(cutover.GateShutError, match="lineage"):
        cutover.gate(migration, drained=False)
    with pytest.raises(UsageError, match="new history"):
        quarantine.release(migration, item.quarantine_id, "accept", "does not matter")


def test_the_split_of_an_empty_region_is_no_new_history(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table(())
    migration = start_run(table)
    at_source.split_region(at_source.regions(table)[0], b"m")
    at_source.put(table, [Cell(row, b"f", b"q", b"v", 1) for row in (b"a", b"z")])
    replay(migration, spark, until=lambda: True)
    assert migration.ledger.quarantined(migration.run_id) == []
    here, there = sides(migration)
    assert len(here) == 2
    assert there == here

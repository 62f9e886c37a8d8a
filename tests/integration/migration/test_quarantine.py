"""What cannot be applied waits with its region, the rest goes on, and a released item ends equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.migration import cut, cutover, quarantine
from walferry.migration.context import Migration
from walferry.migration.replay import drain, replay

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Migration]
Sides = Callable[[Migration], tuple[dict[str, object], dict[str, object]]]


def put(client: HBaseClient, table: str, rows: str, family: bytes, value: bytes) -> None:
    client.put(table, [Cell(row.encode(), family, b"q", value, 1) for row in rows])


def drain_all(migration: Migration, spark: SparkSession) -> None:
    cut.end_fence(migration)
    drain(migration, spark)


def test_a_region_whose_family_the_target_lacks_waits_until_it_is_released(
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
) -> None:
    table = make_table()
    migration = start_run(table)
    whole = at_target.describe(table)
    without = at_target.describe(table)
    kept = [family for family in without.schema.column_families if family.name != b"g"]
    del without.schema.column_families[:]
    without.schema.column_families.extend(kept)
    at_target.modify_table(without)
    put(at_source, table, "abxy", b"f", b"old")
    put(at_source, table, "a", b"g", b"refused")
    put(at_source, table, "abxy", b"f", b"new")
    replay(migration, spark, until=lambda: True)
    put(at_source, table, "abxy", b"f", b"newest")
    replay(migration, spark, until=lambda: True)

    (item,) = migration.ledger.quarantined(migration.run_id)
    assert item.table == table
    assert b"refused" in item.data
    here, there = sides(migration)
    assert {key: value for key, value in there.items() if "b'x'" in key or "b'y'" in key} == {
        key: value for key, value in here.items() if "b'x'" in key or "b'y'" in key
    }
    assert there != here
    with pytest.raises(cutover.GateShutError, match="quarantine"):
        cutover.gate(migration, drained=False)
    with pytest.raises(UsageError, match="knows no quarantine item"):
        quarantine.release(migration, 4711, "retry", "no such item")

    at_target.modify_table(whole)
    for _ in range(2):  # the same decision twice is one
        quarantine.release(migration, item.quarantine_id, "retry", "the family is back")
    drain_all(migration, spark)
    cutover.gate(migration, drained=True)
    here, there = sides(migration)
    assert there == here


def test_what_may_be_in_a_damaged_file_waits_and_is_read_again_from_the_source(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table(())
    migration = start_run(table)
    put(at_source, table, "abc", b"f", b"one")
    put(at_source, table, "abc", b"g", b"two")
    first = cut.see(migration, cut.cut_log(migration))
    home = at_source.regions(table)[0].server
    assert home is not None
    file = max((f for f in first if f.server == home.name), key=lambda f: f.number)
    whole = b"".join(migration.source_files.read(file.path))
    content = bytearray(whole)
    at = content.rindex(table.encode())
    content[at - 30 : at] = b"\xff" * 30
    migration.source_files.write(file.path, [bytes(content)], overwrite=True)
    try:
        replay(migration, spark, until=lambda: True)
    finally:  # other tests read all logs of this cluster
        migration.source_files.write(file.path, [whole], overwrite=True)
    put(at_source, table, "abc", b"f", b"three")
    replay(migration, spark, until=lambda: True)
    held = migration.ledger.quarantined(migration.run_id, "held")
    assert [item.file for item in held] == [file.name]
    with pytest.raises(cutover.GateShutError, match="quarantine"):
        cutover.gate(migration, drained=False)

    quarantine.release(migration, held[0].quarantine_id, "reread", "the disk lost bytes")
    drain_all(migration, spark)
    cutover.gate(migration, drained=True)
    here, there = sides(migration)
    assert there == here

"""A table that begins a new history stops, others go on; a split is no new history."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import unique
from walferry.cutover import cluster_answers, gates
from walferry.errors import GateShutError, UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_family
from walferry.refusals import RefusalKind
from walferry.replay import quarantine
from walferry.replay.log import lineage
from walferry.replay.rounds.follower import replay
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]


def test_a_truncated_table_stops_and_the_other_goes_on(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    truncated, other = make_table(()), make_table(())
    at_source.put(truncated, [Cell(b"a", b"f", b"q", b"before", 1)])
    run = start_run(truncated, other)
    at_source.disable_table(truncated)
    at_source.truncate_table(truncated)
    for table in (truncated, other):
        at_source.put(table, [Cell(b"b", b"f", b"q", b"after", 2)])
    replay(run, spark, until=lambda: True)

    (item,) = run.ledger.quarantine.items()
    assert item.table == truncated
    assert item.kind is RefusalKind.LINEAGE
    here, there = sides(run)
    of_other = {key for key in here if key.startswith(other)}
    assert of_other
    assert {key: there[key] for key in of_other} == {key: here[key] for key in of_other}
    assert not any(key.startswith(f"{truncated} b'b'") for key in there)
    with pytest.raises(GateShutError, match="created from scratch"):
        gates.before_cutover(run)
    with pytest.raises(UsageError, match="new history"):
        quarantine.release(run, item.quarantine_id, "accept", "does not matter")


def test_a_table_that_was_dropped_and_created_again_stops_and_the_other_goes_on(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    dropped, other = make_table(()), make_table(())
    at_source.put(dropped, [Cell(b"a", b"f", b"q", b"before", 1)])
    run = start_run(dropped, other)
    families = {name: family.attributes for name, family in at_source.describe(dropped).families.items()}
    at_source.put(dropped, [Cell(b"b", b"f", b"q", b"last", 1)])
    at_source.disable_table(dropped)
    at_source.delete_table(dropped)
    at_source.put(other, [Cell(b"b", b"f", b"q", b"meanwhile", 2)])
    replay(run, spark, until=lambda: True)
    with pytest.raises(GateShutError, match=f"{dropped} no longer exists at the source"):
        gates.before_cutover(run)

    at_source.create_table(dropped, families)
    for table in (dropped, other):
        at_source.put(table, [Cell(b"c", b"f", b"q", b"after", 3)])
    replay(run, spark, until=lambda: True)
    (item,) = run.ledger.quarantine.items()
    assert item.table == dropped
    assert item.kind is RefusalKind.LINEAGE
    here, there = sides(run)
    assert {key for key in here if key.startswith(dropped)} == {f"{dropped} b'c' b'f:q'"}
    assert {key for key in there if key.startswith(dropped)} == {f"{dropped} b'a' b'f:q'", f"{dropped} b'b' b'f:q'"}
    of_other = {key: value for key, value in here.items() if key.startswith(other)}
    assert len(of_other) == 2
    assert {key: value for key, value in there.items() if key.startswith(other)} == of_other
    with pytest.raises(GateShutError, match="created from scratch"):
        gates.before_cutover(run)


def restore(client: HBaseClient, snapshot: str, table: str) -> None:
    """What HBase's shell does for restore_snapshot."""
    client.disable_table(table)
    client.restore_snapshot(snapshot)
    client.enable_table(table)


def clone_again(client: HBaseClient, snapshot: str, table: str) -> None:
    client.disable_table(table)
    client.delete_table(table)
    client.clone_snapshot(snapshot, table)


@pytest.mark.parametrize("again", [restore, clone_again], ids=["restored", "dropped and cloned"])
@pytest.mark.parametrize("between", [False, True], ids=["in one round", "over two rounds"])
def test_a_table_that_a_snapshot_took_the_place_of_stops_and_the_other_goes_on(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch, again: Callable[[HBaseClient, str, str], None], between: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 2)
    replaced, other = make_table(), make_table(())
    at_source.put(replaced, [Cell(row, b"f", b"q", b"old", 1) for row in (b"a", b"z")])
    snapshot = unique("kept")
    at_source.snapshot(snapshot, replaced)
    run = start_run(replaced, other)
    at_source.put(replaced, [Cell(row, b"f", b"q", b"lost", 2) for row in (b"a", b"z")])
    if between:
        at_source.disable_table(replaced)
        replay(run, spark, until=lambda: True)
        at_source.enable_table(replaced)
        assert run.ledger.quarantine.items() == [], "disabled and enabled again: no new history"
    again(at_source, snapshot, replaced)
    for table in (replaced, other):
        at_source.put(table, [Cell(b"b", b"f", b"q", b"after", 3)])
    replay(run, spark, until=lambda: True)
    (item,) = run.ledger.quarantine.items()
    assert (item.table, item.kind) == (replaced, RefusalKind.LINEAGE)
    here, there = sides(run)
    assert not any(key.startswith(f"{replaced} b'b'") for key in there)
    assert {key for key in there if key.startswith(other)} == {key for key in here if key.startswith(other)}
    at_source.delete_snapshot(snapshot)


def test_a_disabled_table_that_is_restored_before_a_round_sees_it_open_is_noticed(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    table = make_table()
    snapshot = unique("kept")
    at_source.snapshot(snapshot, table)
    run = start_run(table)
    at_source.put(table, [Cell(row, b"f", b"q", b"lost", 2) for row in (b"a", b"z")])
    at_source.disable_table(table)
    replay(run, spark, until=lambda: True)
    assert run.ledger.quarantine.items() == []
    at_source.restore_snapshot(snapshot)
    at_source.enable_table(table)
    replay(run, spark, until=lambda: True)
    assert [item.kind for item in run.ledger.quarantine.items()] == [RefusalKind.LINEAGE]
    at_source.delete_snapshot(snapshot)


def test_a_restore_is_noticed_where_all_that_was_lost_had_been_flushed_in_earlier_calm_rounds(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    restored, other = make_table(), make_table(())
    at_source.put(restored, [Cell(row, b"f", b"q", b"old", 1) for row in (b"a", b"z")])
    snapshot = unique("kept")
    at_source.snapshot(snapshot, restored)
    run = start_run(restored, other)
    for number in (2, 3):
        at_source.put(restored, [Cell(row, b"f", b"q", b"lost", number) for row in (b"a", b"z")])
        at_source.flush_table(restored)
        replay(run, spark, until=lambda: True)
    replay(run, spark, until=lambda: True)
    assert run.ledger.quarantine.items() == []
    restore(at_source, snapshot, restored)
    for table in (restored, other):
        at_source.put(table, [Cell(b"b", b"f", b"q", b"after", 4)])
    replay(run, spark, until=lambda: True)

    (item,) = run.ledger.quarantine.items()
    assert (item.table, item.kind) == (restored, RefusalKind.LINEAGE)
    here, there = sides(run)
    assert f"{restored} b'b' b'f:q'" not in there
    assert {key for key in there if key.startswith(other)} == {key for key in here if key.startswith(other)}
    with pytest.raises(GateShutError, match="restored from a snapshot"):
        gates.before_cutover(run)
    at_source.delete_snapshot(snapshot)


def test_right_after_the_copy_a_dropped_family_is_no_new_history_and_a_restore_is_noticed_by_the_snapshots_files(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    table = make_table()
    at_source.put(table, [Cell(b"a", family, b"q", b"old", 1) for family in (b"f", b"g")])
    snapshot = unique("kept")
    at_source.snapshot(snapshot, table)
    at_source.put(table, [Cell(b"a", family, b"q", b"lost", 2) for family in (b"f", b"g")])
    at_source.flush_table(table)
    run = start_run(table)
    without = at_source.describe(table)
    kept = [family for family in without.schema.column_families if family.name != b"g"]
    del without.schema.column_families[:]
    without.schema.column_families.extend(kept)
    at_source.modify_table(without)
    replay(run, spark, until=lambda: True)
    assert run.ledger.quarantine.items() == []
    assert cluster_answers.schema_differences(run) == [f"family g of {table} is only at the target"]
    restore(at_source, snapshot, table)
    replay(run, spark, until=lambda: True)
    assert [item.kind for item in run.ledger.quarantine.items()] == [RefusalKind.LINEAGE]
    at_source.delete_snapshot(snapshot)


def test_a_restore_to_before_the_split_of_a_region_whose_daughter_got_its_link_is_noticed(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 2)
    origin = make_table(())
    at_source.put(origin, [Cell(b"a", b"f", b"q", b"old", 1)])
    first, kept, table = unique("first"), unique("kept"), f"{origin}c"
    at_source.snapshot(first, origin)
    at_source.clone_snapshot(first, table)
    at_source.snapshot(kept, table)
    at_source.split_region(at_source.regions(table)[0], b"m")
    run = start_run(table)
    lower = at_source.regions(table)[0].encoded
    (link,) = run.ledger.regions.known([table], [lower])[table, lower].store_files
    assert link.startswith(f"f/{origin}=")
    assert "." not in link
    at_source.put(table, [Cell(b"a", b"f", b"q", b"lost", 2)])
    restore(at_source, kept, table)
    replay(run, spark, until=lambda: True)
    assert [item.kind for item in run.ledger.quarantine.items()] == [RefusalKind.LINEAGE]
    for snapshot in (first, kept):
        at_source.delete_snapshot(snapshot)


def store_files(client: HBaseClient, run: Run, table: str) -> set[str]:
    """The store files of the source's table that are there, each as "family/name"."""
    found = set()
    for region in client.regions(table):
        for family in (b"f", b"g"):
            folder = f"{run.source_root}/data/default/{table}/{region.encoded}/{family.decode()}"
            found |= {f"{family.decode()}/{file.name}" for file in run.source_files.list(folder)}
    return found


@pytest.mark.long
def test_moves_compactions_a_split_a_merge_and_a_disabled_table_under_load_are_no_new_history(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table()
    at_source.put(table, [Cell(row, b"f", b"q", b"old", 1) for row in (b"a", b"z")])
    run = start_run(table)
    written = iter(range(2, 1_000))

    def load() -> None:
        number = next(written)
        at_source.put(table, [Cell(row, b"f", b"q", b"v%d" % number, number) for row in (b"a", b"h", b"r", b"z")])

    def compact() -> None:
        for _ in range(3):
            load()
            at_source.flush_table(table)
        before = len(store_files(at_source, run, table))
        at_source.compact_table(table, major=True)
        deadline = time.monotonic() + 60
        while len(store_files(at_source, run, table)) >= before and time.monotonic() < deadline:
            time.sleep(0.2)

    def move() -> None:
        for region in at_source.regions(table):
            at_source.move_region(region, next(server for server in at_source.servers() if server != region.server))

    def split() -> None:
        at_source.split_region(at_source.regions(table)[0], b"g")

    def merge() -> None:
        at_source.merge_regions(at_source.regions(table)[:2])

    def disable() -> None:
        at_source.disable_table(table)
        replay(run, spark, until=lambda: True)
        at_source.enable_table(table)

    for change in (compact, move, compact, split, move, compact, merge, disable, move):
        load()
        change()
        load()
        replay(run, spark, until=lambda: True)
        assert run.ledger.quarantine.items() == [], change.__name__

    # What is known of the regions is true: these files are there. One that HBase compacted since takes another round.
    def untrue() -> set[str]:
        known = run.ledger.regions.known([table], [region.encoded for region in at_source.regions(table)])
        assert known
        assert all(told.store_files for told in known.values())
        return {name for told in known.values() for name in told.store_files} - store_files(at_source, run, table)

    deadline = time.monotonic() + 60
    while untrue() and time.monotonic() < deadline:
        replay(run, spark, until=lambda: True)
    assert untrue() == set()
    here, there = sides(run)
    assert there == here


def test_the_splits_of_a_region_without_a_file_and_of_one_whose_file_has_no_cell_are_no_new_history(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table((b"m",))
    run = start_run(table)
    at_source.put(table, [Cell(b"p", b"f", b"q", b"deleted", 1)])
    at_source.mutate(table, [delete_family(b"p", b"f", 1)])
    at_source.flush_table(table)
    replay(run, spark, until=lambda: True)
    lower, upper = at_source.regions(table)

    flushed = at_source.store_files(upper, b"f")
    at_source.compact_table(table, major=True)
    deadline = time.monotonic() + 60
    while (compacted := at_source.store_files(upper, b"f")) == flushed:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (len(flushed), len(compacted)) == (1, 1), "one file without a cell"
    at_source.split_region(lower, b"f")
    at_source.split_region(upper, b"s")
    at_source.put(table, [Cell(row, b"f", b"q", b"v", 2) for row in (b"a", b"h", b"n", b"z")])
    replay(run, spark, until=lambda: True)
    assert run.ledger.quarantine.items() == []
    here, there = sides(run)
    assert len(here) == 4
    assert there == here

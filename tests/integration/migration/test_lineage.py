"""A table that begins a new history stops, others go on; a split is no new history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import unique
from walferry.checks import gates
from walferry.errors import GateShutError, UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.refusals import RefusalKind
from walferry.replay import lineage, quarantine
from walferry.replay.follower import replay
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
    with pytest.raises(GateShutError, match="created anew"):
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
    with pytest.raises(GateShutError, match="created anew"):
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


def test_the_split_of_an_empty_region_is_no_new_history(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table(())
    run = start_run(table)
    at_source.split_region(at_source.regions(table)[0], b"m")
    at_source.put(table, [Cell(row, b"f", b"q", b"v", 1) for row in (b"a", b"z")])
    replay(run, spark, until=lambda: True)
    assert run.ledger.quarantine.items() == []
    here, there = sides(run)
    assert len(here) == 2
    assert there == here

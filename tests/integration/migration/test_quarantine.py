"""What cannot be applied waits with its region, the rest goes on, and a released item ends equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import skip, taken_away
from walferry.cutover import gates
from walferry.embedded import tools
from walferry.embedded.cluster import MiniCluster
from walferry.errors import GateShutError, UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.refusals import RefusalKind
from walferry.replay import quarantine
from walferry.replay.log import cut
from walferry.replay.pieces import bulk_pieces
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]


def put(client: HBaseClient, table: str, rows: str, family: bytes, value: bytes) -> None:
    client.put(table, [Cell(row.encode(), family, b"q", value, 1) for row in rows])


def drain_all(run: Run, spark: SparkSession) -> None:
    skip(run, "replay", "write_stop")
    cut.end_fence(run)
    drain(run, spark)


@pytest.mark.parametrize("way", ["by group", "not in bulk"])
def test_a_region_whose_family_the_target_lacks_waits_until_it_is_released(
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
) -> None:
    if way == "not in bulk":  # although there is enough for it
        monkeypatch.setattr(bulk_pieces, "BULK_FROM_BYTES", 1)
        monkeypatch.setattr(bulk_pieces, "BULK_REGION_BYTES", 0)
    table = make_table()
    run = start_run(table)
    whole = at_target.describe(table)
    without = at_target.describe(table)
    kept = [family for family in without.schema.column_families if family.name != b"g"]
    del without.schema.column_families[:]
    without.schema.column_families.extend(kept)
    at_target.modify_table(without)
    put(at_source, table, "abcxy", b"f", b"old")
    put(at_source, table, "a", b"g", b"refused")
    cut.cut_log(run)  # of the same batch, the next file waits as well
    put(at_source, table, "abcxy", b"f", b"new")
    replay(run, spark, until=lambda: True)
    put(at_source, table, "abxy", b"f", b"newest")
    replay(run, spark, until=lambda: True)

    (item,) = run.ledger.quarantine.items()
    assert item.table == table
    assert b"refused" in item.data
    here, there = sides(run)
    assert {key: value for key, value in there.items() if "b'x'" in key or "b'y'" in key} == {
        key: value for key, value in here.items() if "b'x'" in key or "b'y'" in key
    }
    assert there != here
    with pytest.raises(GateShutError, match="quarantine"):
        gates.before_cutover(run)
    with pytest.raises(UsageError, match="has no quarantine item"):
        quarantine.release(run, 4711, "retry", "no such item")

    at_target.modify_table(whole)
    for _ in range(2):  # the same decision twice is one
        quarantine.release(run, item.quarantine_id, "retry", "the family is back")
    drain_all(run, spark)
    gates.after_drain(run)
    here, there = sides(run)
    assert there == here


def test_what_may_be_in_a_damaged_file_waits_and_is_read_again_from_the_source(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table(())
    run = start_run(table)
    put(at_source, table, "abc", b"f", b"one")
    put(at_source, table, "abc", b"f", b"two")  # the same columns and timestamp
    first = cut.see(run, cut.cut_log(run))
    home = at_source.regions(table)[0].server
    assert home is not None
    file = max((f for f in first if f.server == home.name), key=lambda f: f.number)
    content = bytearray(b"".join(run.source_files.read(file.path)))
    at = content.rindex(table.encode())
    content[at - 30 : at] = b"\xff" * 30
    with taken_away(run.source_files, file.path):
        run.source_files.write(file.path, [bytes(content)])
        replay(run, spark, until=lambda: True)
    put(at_source, table, "abc", b"g", b"three")
    replay(run, spark, until=lambda: True)
    held = run.ledger.quarantine.items("held")
    assert [item.file for item in held] == [file.name]
    with pytest.raises(GateShutError, match="quarantine"):
        gates.before_cutover(run)

    quarantine.release(run, held[0].quarantine_id, "reread", "the disk lost bytes")
    drain_all(run, spark)
    gates.after_drain(run)
    here, there = sides(run)
    assert there == here


def bulk_load(source: MiniCluster, run: Run, donor: str, table: str) -> None:
    """Load a copy of the donor's store files into the table, by HBase's own tool."""
    staging = source.rootdir.removesuffix("/hbase") + f"/staging/{table}"
    run.source.flush_table(donor)
    for region in run.source.regions(donor):
        folder = f"{run.source_root}/data/default/{donor}/{region.encoded}/f"
        for file in run.source_files.list(folder):
            if not file.is_dir:
                content = run.source_files.read(file.path)
                run.source_files.write(f"/staging/{table}/f/{file.name}", content)
    tools.run(source, "org.apache.hadoop.hbase.tool.BulkLoadHFilesTool", [staging, table])


def test_a_bulk_load_holds_its_region_until_the_source_is_read_again(
    source: MiniCluster,
    at_source: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
) -> None:
    table, donor = make_table(), make_table(())
    run = start_run(table)
    put(at_source, donor, "ab", b"f", b"loaded")
    put(at_source, table, "ax", b"f", b"before")  # of a the bulk load writes the same column and timestamp
    bulk_load(source, run, donor, table)
    put(at_source, table, "cx", b"f", b"behind")
    replay(run, spark, until=lambda: True)
    put(at_source, table, "bx", b"g", b"later")
    replay(run, spark, until=lambda: True)

    (item,) = run.ledger.quarantine.items()
    home = next(region for region in at_source.regions(table) if region.holds(b"a"))
    assert (item.table, item.region) == (table, home.encoded)
    assert item.kind is RefusalKind.NOT_IN_LOG
    assert item.reason.startswith("a bulk load")
    known = run.ledger.regions.known([table], [home.encoded])[table, home.encoded]
    folder = f"{run.source_root}/data/default/{table}/{home.encoded}/f"
    assert known.store_files
    assert known.store_files <= {f"f/{file.name}" for file in run.source_files.list(folder)}
    with pytest.raises(UsageError, match="cannot be retried"):
        quarantine.release(run, item.quarantine_id, "retry", "the obvious first attempt")
    here, there = sides(run)
    assert {key: value for key, value in here.items() if "b'x'" in key} == {
        key: value for key, value in there.items() if "b'x'" in key
    }
    assert not any("b'c'" in key for key in there)
    with pytest.raises(GateShutError, match="bulk load"):
        gates.before_cutover(run)

    quarantine.release(run, item.quarantine_id, "reread", "the loaded rows are read from the source")
    drain_all(run, spark)
    gates.after_drain(run)
    here, there = sides(run)
    assert b"loaded" in [value for value, _ in here[f"{table} b'a' b'f:q'"]]  # type: ignore[attr-defined]
    assert {key.removeprefix(table) for key in here} == {
        " b'a' b'f:q'", " b'b' b'f:q'", " b'b' b'g:q'", " b'c' b'f:q'", " b'x' b'f:q'", " b'x' b'g:q'"
    }  # fmt: skip
    assert there == here


def test_a_held_region_that_is_split_makes_its_table_wait_and_ends_equal(
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
) -> None:
    table = make_table()
    run = start_run(table)
    whole, without = at_target.describe(table), at_target.describe(table)
    kept = [family for family in without.schema.column_families if family.name != b"g"]
    del without.schema.column_families[:]
    without.schema.column_families.extend(kept)
    at_target.modify_table(without)
    put(at_source, table, "adx", b"f", b"first")
    put(at_source, table, "a", b"g", b"refused")
    put(at_source, table, "ad", b"f", b"second")
    replay(run, spark, until=lambda: True)
    (item,) = run.ledger.quarantine.items()

    at_source.split_region(next(r for r in at_source.regions(table) if r.encoded == item.region), b"d")
    put(at_source, table, "adx", b"f", b"third")
    replay(run, spark, until=lambda: True)
    put(at_source, table, "adx", b"f", b"fourth")
    replay(run, spark, until=lambda: True)
    _, there = sides(run)
    newest = {key.split()[1]: cells[0][0] for key, cells in there.items() if key.endswith("b'f:q'")}  # type: ignore[index]
    assert newest.pop("b'x'") == b"third", "the region that stood still went on"
    assert set(newest.values()) <= {b"first", b"second"}
    with pytest.raises(GateShutError, match="quarantine"):
        gates.before_cutover(run)

    at_target.modify_table(whole)
    quarantine.release(run, item.quarantine_id, "retry", "the family is back")
    drain_all(run, spark)
    gates.after_drain(run)
    here, there = sides(run)
    assert there == here

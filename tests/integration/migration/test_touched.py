"""What touches a table after its comparison, though the source's log does not write it, is found before the cutover."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import fill, raw, skip, unique
from walferry.cutover import ledger_answers
from walferry.cutover.gates import before_cutover
from walferry.cutover.open_target import open_target
from walferry.errors import GateShutError
from walferry.formats.cells import CellType
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version, put
from walferry.hbase.server_pages import COUNTED_LATE_MS
from walferry.ledger import ComparedTable
from walferry.migration.comparing import compare_ahead, written_rows
from walferry.migration.comparing.compare import compare
from walferry.migration.comparing.written_rows import compare_written, differing
from walferry.migration.sides import digest
from walferry.migration.touching import touched
from walferry.migration.touching.verified import verified
from walferry.replay.log import cut
from walferry.replay.rights.standstill import Standstill
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.run.known_rows import KnownRows
from walferry.run.run import Run
from walferry.wal.open import open_wal

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
HIDDEN = b"r07"


def whole(run: Run, spark: SparkSession, table: str) -> ComparedTable:
    """A comparison of the table, which finds it equal."""
    found = compare(run, lambda: spark, table)
    assert not found.differing_rows
    return found.compared


def look(run: Run, spark: SparkSession, table: str) -> tuple[str, list[tuple[str, str]]]:
    """One look at what was touched, as the process that compares ahead has it."""
    compare_ahead.look(run, lambda: spark, table, Standstill(), Event(), looks=True)
    return verified(run.ledger)


def until(true: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module", autouse=True)
def each_server_tells_its_count(at_source: HBaseClient, at_target: HBaseClient) -> None:
    """The first request may take a busy server too long; the count of one that has not told before is a risen one, and
    since nobody knows when, its regions are read again as a whole."""

    def told() -> bool:
        counts = [client.unlogged_writes(server) for client in (at_source, at_target) for server in client.servers()]
        return None not in counts

    until(told)


def is_marked(client: HBaseClient, table: str) -> bool:
    return CellType.DELETE_COLUMN in {kind for _, _, kind, _ in raw(client, table, HIDDEN)}


def test_an_old_put_that_a_compaction_shows_again_on_one_side_is_found_before_the_target_opens(
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    spark: SparkSession,
) -> None:
    first, second, calm = tables = [make_table() for _ in range(3)]
    run = start_run(*tables, unlogged_writes="ignore")  # servers count late what other tests wrote past the log
    for table in tables:
        fill(at_source, table)
        at_source.mutate(table, [delete_column(HIDDEN, b"f", b"q", 10)])
    replay(run, spark, until=lambda: True)
    for table in tables:
        for client in (at_source, at_target):
            client.flush_table(table)
        at_source.put(table, [Cell(HIDDEN, b"f", b"q", b"of old", 5)])
    replay(run, spark, until=lambda: True)
    since = {table: whole(run, spark, table) for table in tables}
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    at_source.compact_table(first, major=True)
    at_target.compact_table(second, major=True)
    until(lambda: not is_marked(at_source, first) and not is_marked(at_target, second))
    for table in (first, second):
        assert list(compare_written(run, table, since[table]).differing) == [HIDDEN]
    assert open_target(run, lambda: spark).at_ms is not None
    assert {(row.table, row.row) for row in run.ledger.repairs.all()} == {(first, HIDDEN), (second, HIDDEN)}
    found = compare_written(run, calm, since[calm])
    assert (found.rows, found.differing) == (0, {}), "the row of a region that nothing happened to is not read again"


def test_after_a_flush_or_a_compaction_of_some_files_only_rows_are_read_again_whose_markers_hide_single_versions(
    at_source: HBaseClient,
    at_target: HBaseClient,
    start_run: StartRun,
    spark: SparkSession,
) -> None:
    """The row of a single version is shown on both sides until the source's flush drops what was surplus."""
    table = unique()
    at_source.create_table(table, {"f": {"VERSIONS": "1"}})
    run = start_run(table)
    fill(at_source, table)
    single = b"r08"
    at_source.put(table, [Cell(single, b"f", b"s", b"old", 20)])
    at_source.mutate(table, [delete_column(HIDDEN, b"f", b"q", 10), delete_version(single, b"f", b"s", 30)])
    replay(run, spark, until=lambda: True)
    for client in (at_source, at_target):
        client.flush_table(table)
    at_source.put(table, [Cell(single, b"f", b"s", b"shown", 25), Cell(single, b"f", b"s", b"hidden", 30)])
    replay(run, spark, until=lambda: True)
    since = whole(run, spark, table)
    assert compare_written(run, table, since).rows == 0
    at_source.flush_table(table)
    found = compare_written(run, table, since)
    assert (found.rows, list(found.differing)) == (1, [single]), "the flush keeps the version that is hidden"
    at_target.flush_table(table)
    found = compare_written(run, table, since)
    assert (found.rows, found.differing) == (1, {})
    found.keep(run, table)
    assert compare_written(run, table, since).rows == 0
    at_target.compact_table(table, major=True)
    until(lambda: not is_marked(at_target, table))
    assert compare_written(run, table, since).rows == 2


@pytest.mark.parametrize("restarted", [False, True], ids=["by the same process", "by another process"])
def test_the_log_is_not_read_for_the_rows_that_it_wrote_by_the_process_that_applied_it(
    restarted: bool,
    at_source: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, other = make_table(), make_table()
    run = start_run(table, other, unlogged_writes="ignore")  # servers count late what other tests wrote past the log
    for name in (table, other):
        fill(at_source, name)
    replay(run, spark, until=lambda: True)
    since = {name: whole(run, spark, name) for name in (table, other)}
    for name in (table, other):
        at_source.put(name, [Cell(b"%s%02d" % (key, number), b"f", b"q", b"new", 5) for key in (b"a", b"r")
                             for number in range(7)])  # fmt: skip
    at_source.mutate(table, [delete_column(HIDDEN, b"f", b"q", 9)])
    replay(run, spark, until=lambda: True)
    read: list[str] = []

    def opened(files: Any, root: str, file: Any) -> Any:
        read.append(file.name)
        return open_wal(files, root, file)

    monkeypatch.setattr(written_rows, "open_wal", opened)
    if restarted:
        monkeypatch.setattr(run, "known_rows", KnownRows())
        for name in (table, other):
            run.known_rows.collect(name)
    found = [compare_written(run, name, since[name]) for name in (table, other)]
    assert [(one.rows, one.differing) for one in found] == [(15, {}), (14, {})]
    assert (bool(read), bool(found[0].log_bytes)) == (restarted, restarted)
    assert len(read) == len(set(read)), "a log that is read for one table is not read for another"


def test_rows_that_somebody_spoils_at_the_target_are_found_at_the_next_look_and_shut_the_gate(
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    spark: SparkSession,
) -> None:
    table = make_table()
    run = start_run(table, repair="ask")
    fill(at_source, table)
    replay(run, spark, until=lambda: True)
    since = whole(run, spark, table)
    touched.look(run)
    assert compare_written(run, table, since).rows == 0, "what walferry writes is no news"
    at_target.put(table, [Cell(b"r03", b"f", b"q", b"by hand", 9)])
    at_target.mutate(table, [delete_column(b"r04", b"f", b"q", 9)])
    at_target.put(table, [Cell(b"r05", b"f", b"q", b"v5", 1)])
    touched.look(run)
    assert compare_written(run, table, since).rows == 3
    _, reasons = look(run, spark, table)
    (reason,) = reasons
    assert reason[0].startswith(f"{table}: 2 rows differ, such as row r03: its repair was not requested")
    with pytest.raises(GateShutError, match="differ, such as row r03"):
        before_cutover(run)
    assert compare_written(run, table, since).rows == 2, "the row that is equal is not read again"
    at_target.mutate(table, [delete_version(b"r03", b"f", b"q", 9)])
    at_source.mutate(table, [delete_column(b"r04", b"f", b"q", 9)])
    replay(run, spark, until=lambda: True)
    touched.look(run)
    assert look(run, spark, table)[1] == []
    assert look(run, spark, table)[1] == []  # rows with new markers: now with the store files known before
    assert compare_written(run, table, since).rows == 0, "what was found equal is not read again"


def test_a_put_that_skips_the_log_at_the_source_is_found_once_its_server_has_counted_it(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    table = make_table()
    run = start_run(table, repair="ask")
    fill(at_source, table)
    replay(run, spark, until=lambda: True)
    since = whole(run, spark, table)
    unlogged = put(b"r99", [Cell(b"r99", b"f", b"q", b"in no log", 1)])
    unlogged.durability = pb.MutationProto.SKIP_WAL
    at_source.mutate(table, [unlogged])

    def counted() -> object:
        touched.look(run)
        return touched.Seen.of(run.ledger).pending.get(table)

    until(counted)
    assert touched.skips_log(run)
    found = compare_written(run, table, since)
    assert list(found.differing) == [b"r99"]
    assert found.rows == 21, "the region is read again, and no other"
    text, reasons = look(run, spark, table)
    assert "the write stop takes 20 s" in text
    assert reasons[0][0].startswith(f"{table}: 1 row differs, such as row r99: its repair was not requested")
    at_source.disable_table(table)  # so that its server counts none any more
    at_source.delete_table(table)


def unlogged(row: bytes, value: bytes, timestamp: int | None = None) -> pb.MutationProto:
    """A put that skips the log, with the server's own timestamp if none is given."""
    made = put(row, [Cell(row, b"f", b"q", value, timestamp)])
    made.durability = pb.MutationProto.SKIP_WAL
    return made


@pytest.mark.parametrize("side", ["source", pytest.param("target", marks=pytest.mark.long)])
def test_of_a_region_in_which_something_skips_the_log_only_the_new_rows_are_read_again_under_recent(
    side: str,
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table()
    run = start_run(table, unlogged_writes="recent")
    client = at_source if side == "source" else at_target
    fill(at_source, table)
    replay(run, spark, until=lambda: True)
    since = whole(run, spark, table)
    look_until_counted(run)  # what other tests wrote
    before = touched.skips_log(run)
    client.mutate(table, [unlogged(b"r05", b"in no log"), unlogged(b"r99", b"in no log")])
    client.mutate(table, [unlogged(b"r07", b"in no log, of old", 1)])
    at_source.put(table, [Cell(b"r50", b"f", b"q", b"in the log")])
    replay(run, spark, until=lambda: True)

    def counted() -> object:
        touched.look(run)
        return touched.Seen.of(run.ledger).pending.get(table)

    until(counted)
    assert touched.Seen.of(run.ledger).pending[table].rows == [b"r05", b"r99"], "what is new, and not on both sides"
    assert touched.Seen.of(run.ledger).pending[table].ranges == []
    assert touched.skips_log(run) == (before or side == "source")
    found = compare_written(run, table, since)
    assert list(found.differing) == [b"r05", b"r99"]
    assert found.rows == 3, "with the row of the log, and nothing else of the region"
    text, _ = look(run, spark, table)
    assert "`unlogged_writes: recent`" in text
    assert f"the last of which began: {table} " in text
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    # Unlogged writes leave numbers without entries.
    monkeypatch.setattr(ledger_answers, "missing_numbers", lambda ledger: [])
    opened = open_target(run, lambda: spark)
    assert opened.at_ms is not None
    assert opened.rows[table] <= 3
    assert {row.row for row in run.ledger.repairs.all()} == {b"r05", b"r99"}
    assert differing(run, table, [b"r05", b"r50", b"r99"]) == {}
    assert list(differing(run, table, [HIDDEN])) == [HIDDEN], "a whole comparison finds it"
    assert compare(run, lambda: spark, table).differing_rows == 1
    assert "`unlogged_writes: recent`" not in verified(run.ledger)[0], "it began after that"
    at_source.disable_table(table)  # so that its server counts none any more
    at_source.delete_table(table)


@pytest.mark.long
def test_a_row_is_found_though_its_region_moves_before_its_server_has_counted_the_write(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    table, busy = make_table(), make_table(split_keys=())
    run = start_run(table, unlogged_writes="recent")
    fill(at_source, table)
    replay(run, spark, until=lambda: True)
    since = whole(run, spark, table)
    look_until_counted(run)  # what other tests wrote
    region, _ = at_source.regions(table)
    assert region.server is not None
    (other,) = at_source.regions(busy)
    if other.server != region.server:
        at_source.move_region(other, region.server)
    at_source.mutate(table, [unlogged(b"a", b"in no log")])
    at_source.mutate(busy, [unlogged(b"%d" % number, b"in no log") for number in range(3)])
    at_source.move_region(region, next(server for server in at_source.servers() if server != region.server))

    def counted() -> object:
        touched.look(run)
        return touched.Seen.of(run.ledger).pending.get(table)

    until(counted)
    assert touched.Seen.of(run.ledger).pending[table].rows == [b"a"]
    assert list(compare_written(run, table, since).differing) == [b"a"]
    for name in (table, busy):
        at_source.disable_table(name)
        at_source.delete_table(name)


def look_until_counted(run: Run) -> None:
    """Look until each server has told its count, which the first request may wait for, and then for as long as they may
    count late. What is found is forgotten: it is about earlier writes, of other tests too."""

    def told() -> bool:
        touched.look(run)
        seen = touched.Seen.of(run.ledger)
        return {"source", "target"} <= seen.counts.keys() and not any(seen.uncounted.values())

    until(told)
    until_s = time.monotonic() + COUNTED_LATE_MS / 1000
    while time.monotonic() < until_s:
        touched.look(run)
        time.sleep(1)
    touched.Seen.change(run.ledger, lambda seen: replace(seen, pending={}))


@pytest.mark.parametrize("bytes_per_row", [-1, written_rows.SCANNED_BYTES], ids=["from row to row", "by a scan"])
def test_a_reading_tells_which_of_the_rows_that_are_asked_for_differ_and_names_no_other(
    bytes_per_row: int,
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table()
    run = start_run(table)
    fill(at_source, table, rows=2_000)
    replay(run, spark, until=lambda: True)
    at_target.mutate(table, [delete_column(row, b"f", b"q", 9) for row in (b"r100", b"r101", b"r1999")])
    at_target.put(table, [Cell(b"r100", b"f", b"q", b"by hand", 10), Cell(b"r2000", b"f", b"q", b"by hand", 10)])
    by_name: set[bool] = set()

    def scans(pair: digest.RangePair) -> Any:
        by_name.add(bool(pair.rows))
        return digest.scans(pair)

    monkeypatch.setattr(written_rows, "SCANNED_BYTES", bytes_per_row)
    monkeypatch.setattr(written_rows, "scans", scans)
    asked = sorted(b"r%02d" % number for number in range(1, 2_002) if number != 101)
    found = differing(run, table, asked)
    assert sorted(found) == [b"r100", b"r1999", b"r2000"]
    assert all(found.values()), "each with a digest"
    assert by_name == {bytes_per_row < 0}

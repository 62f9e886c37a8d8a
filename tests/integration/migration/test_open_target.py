"""The target opens after a comparison of what was written last; the whole comparison that follows misses nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import skip, unique
from integration.migration.test_rules import edit
from walferry.apply.recopy import send_cells
from walferry.apply.writers import writer_to
from walferry.clock import now_ms
from walferry.cutover import late_edits
from walferry.cutover.open_target import open_target
from walferry.cutover.ways_out import withdraw
from walferry.embedded.cluster import MiniCluster
from walferry.errors import GateShutError
from walferry.formats.cells import CellType, encode_cell
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version, put
from walferry.migration.comparing import compare_ahead
from walferry.migration.comparing.compare import compare
from walferry.migration.comparing.compare_last import compare_last
from walferry.migration.repairing import known_differences
from walferry.pipeline import WORK, PhaseContext
from walferry.replay.log import cut
from walferry.replay.rights.applying import applying
from walferry.replay.rights.standstill import Standstill
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.run import between_rounds
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]
EARLIER = [b"r%04d" % number for number in range(300)]


def value(row: bytes, text: bytes, qualifier: bytes = b"q") -> Cell:
    return Cell(row, b"f", qualifier, text, 5)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def table(at_source: HBaseClient, make_table: Callable[..., str]) -> str:
    return make_table((b"h", b"m", b"q"))


@pytest.fixture
def stopped(at_source: HBaseClient, table: str, start_run: StartRun, spark: SparkSession) -> Run:
    """Writes have stopped, and all is drained; some of it was written after a whole comparison.

    Servers count writes past the log (SKIP_WAL) late, and those of other tests would have regions compared again.
    """
    run = start_run(table, unlogged_writes="ignore")
    at_source.put(table, [value(row, b"earlier") for row in EARLIER])
    replay(run, spark, until=lambda: True)
    assert not compare(run, lambda: spark, table).shuts_the_gate
    edit(at_source, table, 1)
    at_source.put(table, [value(b"r0007", b"later")])
    at_source.mutate(table, [delete_column(b"r0008", b"f", b"q", 9)])
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    return run


def test_only_what_was_touched_since_the_comparison_is_read_before_the_target_opens(
    stopped: Run, table: str, spark: SparkSession, target: MiniCluster
) -> None:
    opened = open_target(stopped, lambda: spark)
    assert opened.at_ms is not None
    assert 5 < opened.rows[table] < 60
    assert not compare(stopped, lambda: spark, table).differing_rows


@pytest.mark.parametrize("row", [b"r0007", b"r0008", b"r0100"], ids=["put", "deleted", "not written"])
def test_a_row_that_somebody_else_changed_at_the_target_keeps_the_target_closed_unless_it_is_repaired(
    row: bytes,
    stopped: Run,
    table: str,
    spark: SparkSession,
    at_target: HBaseClient,
    sides: Sides,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_target.put(table, [Cell(row, b"f", b"q", b"changed", 99)])
    with monkeypatch.context() as patch:
        patch.setattr(known_differences, "why_not", lambda *_: "nobody asked for it")
        opened = open_target(stopped, lambda: spark)
    assert opened.at_ms is None
    assert opened.why == (f"1 row differs among those of {table} touched last, such as {row!r}: nobody asked for it",)
    stopped.ledger.phases.reopen("open_target")
    assert open_target(stopped, lambda: spark).at_ms is not None
    here, there = sides(stopped)
    assert there == here


def test_what_clients_write_to_an_open_target_is_no_difference_and_excuses_none(
    stopped: Run, table: str, spark: SparkSession, target: MiniCluster
) -> None:
    assert open_target(stopped, lambda: spark).at_ms is not None
    with HBaseClient(target.address) as client:
        client.put(table, [Cell(b"r0001", b"f", b"q", b"by a client", None)])
        client.mutate(table, [put(b"new", [Cell(b"new", b"f", b"q", b"by a client", None)])])
        client.mutate(table, [delete_column(b"r0002", b"f", b"q", None)])
    assert not compare(stopped, lambda: None, table).differing_rows  # type: ignore[arg-type, return-value]
    spoil(stopped, table, b"r0001", b"other")
    spoil(stopped, table, b"r0003", b"q")
    found = compare(stopped, lambda: None, table)  # type: ignore[arg-type, return-value]
    assert [(d.row, d.kind) for d in found.differences] == [(b"r0001", "unexplained"), (b"r0003", "unexplained")]


def spoil(run: Run, table: str, row: bytes, qualifier: bytes) -> None:
    """As a fault of walferry's would: an edit by the way of the log that the source never had."""
    cell = encode_cell(row, b"f", qualifier, 6, CellType.PUT, b"not of the source")
    with applying(run) as route:
        send_cells(writer_to(route), route, table, cell)


def test_a_clients_own_timestamps_and_its_deletes_that_are_compacted_away_are_no_loss_and_excuse_none(
    stopped: Run, table: str, spark: SparkSession, target: MiniCluster
) -> None:
    assert open_target(stopped, lambda: spark).at_ms is not None
    with HBaseClient(target.address) as client:
        client.put(table, [Cell(b"r0001", b"f", b"q", b"of old", 4), Cell(b"r0002", b"f", b"new", b"of old", 4)])
        client.put(table, [Cell(b"r0003", b"f", b"q", b"in microseconds", now_ms() * 1000)])
        client.mutate(table, [delete_version(b"r0004", b"f", b"q", 5), delete_column(b"r0005", b"f", b"q", 5)])
        client.compact_region(table, b"r0004", {b"f"})
    spoil(stopped, table, b"r0005", b"other")
    spoil(stopped, table, b"r0006", b"q")
    found = compare(stopped, lambda: spark, table)
    kinds = {d.row: d.kind for d in found.differences}
    assert {row for row, kind in kinds.items() if kind == "unexplained"} == {b"r0005", b"r0006"}
    assert {b"r0002", b"r0004"} <= {row for row, kind in kinds.items() if kind == "written-at-target"}


def test_a_table_with_cells_of_a_future_time_opens_after_the_whole_comparison(
    at_source: HBaseClient, table: str, start_run: StartRun, spark: SparkSession, target: MiniCluster
) -> None:
    run = start_run(table)
    future = now_ms() + 86_400_000
    at_source.put(table, [Cell(row, b"f", b"q", b"of tomorrow", future) for row in (b"r1", b"r2", b"r3")])
    replay(run, spark, until=lambda: True)
    assert not compare(run, lambda: spark, table).shuts_the_gate
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    opened = open_target(run, lambda: spark)
    assert opened.at_ms is None
    assert f"{table} has cells with timestamps in the future, up to {future}" in opened.why[0]
    spoil(run, table, b"r2", b"q")
    with applying(run) as route:
        send_cells(writer_to(route), route, table, encode_cell(b"r3", b"f", b"q", future, CellType.PUT, b"changed"))
    found = compare(run, lambda: spark, table)
    assert [(d.row, d.kind) for d in found.differences] == [(b"r2", "unexplained"), (b"r3", "unexplained")]


@pytest.mark.parametrize("before", [True, False], ids=["before the stop", "in the last seconds"])
def test_rows_whose_history_made_them_differ_are_repaired_and_keep_no_target_closed(
    before: bool,
    at_source: HBaseClient,
    start_run: StartRun,
    spark: SparkSession,
    sides: Sides,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = unique()
    at_source.create_table(table, {"f": {"VERSIONS": "1"}}, [b"m"])
    run = start_run(table)
    at_source.put(table, [value(row, b"earlier") for row in (b"r0001", b"r0002", b"r0003")])
    replay(run, spark, until=lambda: True)
    assert not compare(run, lambda: spark, table).shuts_the_gate
    both = (b"r0001", b"r0002")
    at_source.put(table, [Cell(row, b"f", b"q", b"newer", 7) for row in both])
    at_source.flush_table(table)  # which drops the earlier versions
    at_source.mutate(table, [delete_version(row, b"f", b"q", 7) for row in both])
    if before:
        standstill = Standstill()
        rounds = iter([False, True])

        def look() -> bool:
            if last := next(rounds):
                looked = threading.Thread(
                    target=compare_ahead.look,
                    args=(run, lambda: spark, table, standstill, threading.Event()), kwargs={"looks": True},
                )  # fmt: skip
                looked.start()
                while looked.is_alive():
                    standstill.rest()
                    looked.join(0.05)
            return last

        monkeypatch.setattr(between_rounds, "PAUSE_SECONDS", (0.1, 0.1))
        replay(run, spark, until=look, standstill=standstill)
        assert {row.row: row.kind for row in run.ledger.repairs.all(table)} == dict.fromkeys(both, "history-dependent")
        here, there = sides(run)
        assert there == here
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    opened = open_target(run, lambda: spark)
    assert opened.at_ms is not None
    assert opened.explained == {}
    assert {row.row for row in run.ledger.repairs.all(table)} == set(both)
    here, there = sides(run)
    assert there == here


def test_what_a_compaction_shows_after_the_opening_is_no_difference_to_be_decided_and_excuses_none(
    at_source: HBaseClient, table: str, start_run: StartRun, spark: SparkSession, target: MiniCluster
) -> None:
    run = start_run(table, unlogged_writes="ignore")
    both = (b"r0001", b"r0002")
    at_source.mutate(table, [delete_column(row, b"f", b"q", 9) for row in both])
    replay(run, spark, until=lambda: True)
    assert not compare(run, lambda: spark, table).shuts_the_gate
    at_source.flush_table(table)
    at_source.put(table, [value(row, b"hidden by the marker") for row in both])
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    assert open_target(run, lambda: spark).at_ms is not None
    assert not compare(run, lambda: spark, table).differing_rows
    at_source.compact_table(table, major=True)  # without the puts, which are in memory
    wait_until(lambda: all(list(at_source.scan(table, row, row + b"\0")) for row in both))
    found = compare(run, lambda: spark, table)
    assert {item.row: item.kind for item in found.differences} == dict.fromkeys(both, "changed-since-opening")
    assert "its region at the source was flushed, compacted or split since" in found.differences[0].detail
    assert not found.shuts_the_gate
    assert not run.ledger.repairs.all()
    spoil(run, table, b"r0002", b"other")
    kinds = {item.row: item.kind for item in compare(run, lambda: spark, table).differences}
    assert kinds == {b"r0001": "changed-since-opening", b"r0002": "unexplained"}


def test_a_late_edit_keeps_the_target_closed_until_it_is_drained(
    stopped: Run, at_source: HBaseClient, table: str, spark: SparkSession
) -> None:
    at_source.put(table, [value(b"r0009", b"late")])
    opened = open_target(stopped, lambda: spark)
    assert opened.at_ms is None
    assert opened.why[0].startswith(
        f"1 edit came after writes were declared stopped, the first: row r0009 of {table}, "
    )
    with pytest.raises(GateShutError):
        late_edits.require_silence(stopped)
    late_edits.apply(stopped, "a retry", "test")
    cut.end_fence(stopped)
    drain(stopped, spark)
    assert open_target(stopped, lambda: spark).at_ms is not None


def test_writers_may_go_on_after_a_write_stop_and_the_next_one_has_all_of_their_edits(
    stopped: Run, at_source: HBaseClient, table: str, spark: SparkSession, sides: Sides
) -> None:
    at_source.put(table, [value(b"r0009", b"too late for the first stop")])
    assert open_target(stopped, lambda: spark).at_ms is None
    assert late_edits.undecided(stopped.ledger)
    late_edits.reject(stopped, "nobody wants it", "test")
    withdraw(stopped, "the application must go on", "test")
    at_source.put(table, [value(b"r0010", b"between the stops", b"q2")])
    at_source.move_region(at_source.locate(table, b"r0010"))
    replay(stopped, spark, until=lambda: True)
    at_source.put(table, [value(b"r0011", b"before the second stop")])
    skip(stopped, "replay", "approve", "write_stop")
    cut.end_fence(stopped)
    drain(stopped, spark)
    late_edits.require_silence(stopped)
    assert open_target(stopped, lambda: spark).at_ms is not None
    here, there = sides(stopped)
    differing = {key for key in here.keys() | there.keys() if here.get(key) != there.get(key)}
    assert len(differing) == 1
    assert "r0009" in differing.pop()
    found = compare(stopped, lambda: spark, table)
    assert {(d.row, d.kind) for d in found.differences} == {(b"r0009", "left-out")}
    assert not stopped.ledger.repairs.all()


def test_without_a_comparison_before_it_the_target_opens_after_the_whole_one(
    at_source: HBaseClient, table: str, start_run: StartRun, spark: SparkSession
) -> None:
    run = start_run(table)
    edit(at_source, table, 1)
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    opened = open_target(run, lambda: spark)
    assert opened.at_ms is None
    assert opened.why == (f"no whole comparison of {table} was made before",)


def test_late_edits_are_found_once_and_only_a_decision_about_each_ends_the_alarm(
    stopped: Run, at_source: HBaseClient, table: str, spark: SparkSession, target: MiniCluster
) -> None:
    opened = open_target(stopped, lambda: spark).at_ms
    assert opened is not None
    late_edits.require_silence(stopped)
    with late_edits.watched(stopped):
        at_source.put(table, [value(b"late", b"late")])
        wait_until(lambda: bool(stopped.ledger.late.all()))
    at_source.mutate(table, [delete_column(b"r0003", b"f", b"q", None)])
    assert [edit.row for edit in late_edits.look(stopped)] == [b"late", b"r0003"]
    at_source.roll_wal(at_source.servers()[0])
    assert len(late_edits.look(stopped)) == 2
    compare_last(stopped, lambda: spark, table)
    skip(stopped, "check_drain")
    with pytest.raises(GateShutError, match="2 edits came after writes were declared stopped"):
        WORK["release"](stopped, "", PhaseContext(lambda: spark, Path()))
    assert late_edits.reject(stopped, "a client that was told to end", "test")
    late_edits.require_silence(stopped)
    found = compare(stopped, lambda: spark, table)
    assert {(d.row, d.kind) for d in found.differences} == {(b"late", "left-out"), (b"r0003", "left-out")}
    assert not found.shuts_the_gate
    at_source.put(table, [value(b"later", b"late")])
    assert [edit.row for edit in late_edits.apply(stopped, "", "test")] == [b"later"]
    cut.end_fence(stopped)
    drain(stopped, spark)
    with HBaseClient(target.address) as client:
        assert not list(client.scan(table, b"late", b"late\0")), "it stays left out"
        assert list(client.scan(table, b"later", b"later\0"))


def test_late_edits_that_are_applied_leave_the_target_open_since_the_same_moment(
    stopped: Run, at_source: HBaseClient, table: str, spark: SparkSession
) -> None:
    opened = open_target(stopped, lambda: spark).at_ms
    at_source.put(table, [Cell(b"late", b"f", b"q", b"late", None)])
    assert late_edits.apply(stopped, "a retry", "test", dry_run=True)
    assert late_edits.apply(stopped, "a retry", "test")
    cut.end_fence(stopped)
    drain(stopped, spark)
    late_edits.require_silence(stopped)
    assert open_target(stopped, lambda: spark).at_ms == opened
    assert not compare(stopped, lambda: spark, table).differing_rows

"""Rows that differ are made equal: readers of both sides see the same afterwards, by a reader that is not ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import at_work, raw, skip, unique
from walferry.cutover.gates import after_drain
from walferry.cutover.open_target import open_target
from walferry.embedded.cluster import MiniCluster
from walferry.errors import GateShutError
from walferry.formats.cells import CellType
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.bulk_load import store_files
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version, put
from walferry.migration.comparing.compare import compare
from walferry.migration.comparing.compare_last import compare_last
from walferry.migration.repairing.asked_repairs import ask
from walferry.migration.repairing.repair import NO_COMPACTION, is_unfinished, plan_repair, repair
from walferry.migration.touching import touched
from walferry.replay.log import cut
from walferry.replay.rights.lease import LeaseHeldError
from walferry.replay.rights.standstill import Standstill
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.run.progress.repair_times import repaired
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]
DIFFERING = {
    b"masked": "history-dependent", b"shown": "history-dependent", b"unlogged": "not-in-log", b"stray": "unexplained",
}  # fmt: skip


def value(row: bytes, text: bytes, timestamp: int = 5) -> Cell:
    return Cell(row, b"f", b"q", text, timestamp)


def compacted(client: HBaseClient, table: str, row: bytes) -> None:
    """The row's region has no markers any more."""
    client.compact_region(table, row, {b"f"})
    assert all(kind == CellType.PUT for _, _, kind, _ in raw(client, table, row))


@pytest.fixture
def differing(
    at_source: HBaseClient, at_target: HBaseClient, start_run: StartRun, spark: SparkSession
) -> tuple[Run, str]:
    """A table of which four rows differ, each for another reason; beside them are rows with markers on both sides."""
    table = unique()
    at_source.create_table(table, {"f": {"VERSIONS": "1"}}, [b"m"])
    run = start_run(table)
    at_source.put(table, [value(row, b"first") for row in (b"equal", b"masked", b"stray", b"marked")])
    at_source.mutate(table, [delete_column(b"masked", b"f", b"q", 9)])
    replay(run, spark, until=lambda: True)
    compacted(at_source, table, b"masked")  # which drops the marker; the target keeps it
    at_source.put(table, [value(b"masked", b"after the marker", 7), value(b"shown", b"first")])
    at_source.put(table, [value(b"shown", b"newer", 7)])
    at_source.mutate(table, [delete_column(b"marked", b"f", b"q", 4), delete_column(b"gone", b"f", b"q", 9)])
    at_source.flush_table(table)  # which drops the earlier version of "shown"
    unlogged = put(b"unlogged", [Cell(b"unlogged", b"f", b"q", b"never logged", None)])
    unlogged.durability = pb.MutationProto.SKIP_WAL
    at_source.mutate(table, [delete_version(b"shown", b"f", b"q", 7), unlogged])
    replay(run, spark, until=lambda: True)
    at_target.put(table, [value(b"stray", b"spoilt", 8)])
    return run, table


def test_rows_that_differ_for_any_reason_are_repaired_and_no_other_row_changes(
    differing: tuple[Run, str], at_source: HBaseClient, at_target: HBaseClient, spark: SparkSession, sides: Sides
) -> None:
    run, table = differing
    found = compare(run, lambda: spark, table)
    assert {item.row: item.kind for item in found.differences} == DIFFERING
    planned = {one.row: one.describe() for one in plan_repair(run, table, list(DIFFERING))}
    assert "1 marker that the source does not have" in planned[b"masked"]
    assert "delete exactly 1 version" in planned[b"shown"]
    assert "delete exactly 1 version" in planned[b"stray"]
    assert planned[b"unlogged"] == "send 1 cell of the source that the target lacks"
    before, after = sides(run)
    assert before != after
    told = ask(run, table, [row.decode() for row in DIFFERING], dry_run=True)
    (ways,) = told.ways
    assert (ways.rows, ways.regions, ways.repair.seconds) == (4, 1, None), "nothing was repaired before"
    assert sides(run) == (before, after), "a plan changes nothing"

    made = repair(run, Standstill(), table, DIFFERING)
    assert {row.row: (row.kind, row.fault) for row in made} == {row: (kind, "") for row, kind in DIFFERING.items()}
    here, there = sides(run)
    assert here == before
    assert there == here
    assert not compare(run, lambda: spark, table).differing_rows
    kinds = [{(at, kind) for _, at, kind, _ in raw(client, table, b"gone")} for client in (at_source, at_target)]
    assert kinds == [{(9, CellType.DELETE_COLUMN)}] * 2, "what the compaction dropped was sent again"
    for row in DIFFERING:
        at_the_source, at_the_target = (
            {(at, kind) for _, at, kind, _ in raw(client, table, row) if kind != CellType.PUT}
            for client in (at_source, at_target)
        )
        assert at_the_target == at_the_source, "our own deletes were purged"
    assert {row.row for row in run.ledger.repairs.all(table)} == set(DIFFERING)
    assert repaired(run.ledger).rows >= 4, "those in whose way a marker was, count twice"
    assert repaired(run.ledger).regions
    run.ledger.whole.verify_audit()


def test_without_a_compaction_only_rows_that_need_none_are_repaired(
    differing: tuple[Run, str], spark: SparkSession
) -> None:
    run, table = differing
    made = {row.row: row.fault for row in repair(run, Standstill(), table, DIFFERING, region_bytes=NO_COMPACTION)}
    assert "it is not compacted now" in made.pop(b"masked")
    assert made == {row: "" for row in DIFFERING if row != b"masked"}
    assert [item.row for item in compare(run, lambda: spark, table).differences] == [b"masked"]


def test_in_the_write_stop_the_target_opens_once_rows_that_differ_are_repaired(
    differing: tuple[Run, str], spark: SparkSession, sides: Sides
) -> None:
    run, table = differing
    compare(run, lambda: spark, table)
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    opened = open_target(run, lambda: spark)
    assert opened.why == ()
    assert opened.at_ms is not None
    here, there = sides(run)
    assert there == here


def test_a_target_that_is_open_is_neither_compacted_nor_written_over_its_clients(
    differing: tuple[Run, str], at_target: HBaseClient, spark: SparkSession
) -> None:
    run, table = differing
    skip(run, "check_copy", "replay", "approve", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    touched.look(run)
    run.ledger.phases.start("open_target")
    run.ledger.phases.finish("open_target", {"at_ms": time.time_ns() // 1_000_000})
    at_target.put(table, [Cell(b"unlogged", b"f", b"other", b"by a client", 3)])
    made = {row.row: row.fault for row in repair(run, Standstill(), table, DIFFERING)}
    assert "a compaction would drop deletes of its clients" in made[b"masked"]
    assert "clients have written to the row" in made[b"unlogged"], "a timestamp of its own hides no client"
    compare_last(run, lambda: spark, table)
    assert not [row for row in run.ledger.repairs.all(table) if not row.fault]


def test_a_row_that_is_written_while_it_is_repaired_ends_as_the_source_has_it(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession,
    target: MiniCluster, sides: Sides,
) -> None:  # fmt: skip
    table = make_table(())
    run, standstill = start_run(table), Standstill()
    rows = [b"r%d" % number for number in range(8)]

    def write(over: Callable[[], bool]) -> None:
        number = 0
        while not over():  # of puts with one timestamp the last one wins
            number += 1
            at_source.put(table, [value(row, b"%d" % number) for row in rows])

    repaired = 0
    with at_work(write, lambda over: replay(run, spark, until=over, standstill=standstill)):
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            repaired += len(repair(run, standstill, table, dict.fromkeys(rows, "")))
    replay(run, spark, until=lambda: True)
    assert repaired > 10
    here, there = sides(run)
    assert there == here


KILLED = """
import os, signal, sys
from walferry.ledger import Ledger
from walferry.migration.repairing import repair as module
from walferry.replay.rights.standstill import Standstill
from walferry.run.run import Run

url, run_id, table, place, number = sys.argv[1:6]
left = int(number)

def dies(work):
    def die(*arguments, **keywords):
        global left
        left -= 1
        if place.startswith("before") and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        made = work(*arguments, **keywords)
        if place.startswith("after") and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return made
    return die

with Ledger.open(url) as ledger, Run(ledger, run_id) as run:
    if place.endswith("sent"):
        module.send_cells = dies(module.send_cells)
    else:
        run.target.compact_region = dies(run.target.compact_region)
    rows = ("masked", "shown", "unlogged", "stray")
    module.repair(run, Standstill(), table, {row.encode(): "" for row in rows})
"""


@pytest.mark.parametrize(
    ("place", "number"),
    [pytest.param("after cells are sent", 1, marks=pytest.mark.long),
     pytest.param("before it has compacted", 1, marks=pytest.mark.long),
     ("after it has compacted", 1), ("before cells are sent", 2),
     pytest.param("after cells are sent", 2, marks=pytest.mark.long)],
)  # fmt: skip
def test_a_repair_that_is_killed_is_finished_by_the_next_one(
    differing: tuple[Run, str], sides: Sides, at_target: HBaseClient, place: str, number: int
) -> None:
    run, table = differing
    markers = [cell for cell in raw(at_target, table, b"marked") if cell[2] != CellType.PUT]
    assert markers
    command = [sys.executable, "-c", KILLED, run.ledger.whole.url, run.run_id, table, place, str(number)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    if place == "after it has compacted":
        with pytest.raises(GateShutError, match=r"a repair of .* was interrupted"):
            after_drain(run)
    deadline = time.monotonic() + 60
    while True:
        try:
            repair(run, Standstill(), table, DIFFERING)
            break
        except LeaseHeldError:  # the killed one's runs out
            assert time.monotonic() < deadline
            time.sleep(1)
    here, there = sides(run)
    assert there == here
    assert [cell for cell in raw(at_target, table, b"marked") if cell[2] != CellType.PUT] == markers


STOPPED = """
import os, signal, sys, threading, time
from walferry.hbase import admin
from walferry.ledger import Ledger
from walferry.migration.repairing import repair as module
from walferry.replay.rights.standstill import Standstill
from walferry.run.run import Run

url, run_id, table, place = sys.argv[1:5]
when, what, number, *beside = place.split()
left = int(number)
standstill = Standstill()

def follow(run):
    "As the process that follows the log, whose leases the repair uses."
    with standstill.replaying(run):
        while True:
            standstill.rest()
            time.sleep(0.05)

def stops(work):
    "Suspends this process before or after one of the calls."
    def stop(*arguments, **keywords):
        global left
        left -= 1
        if when == "before" and not left:
            os.kill(os.getpid(), signal.SIGSTOP)
        made = work(*arguments, **keywords)
        if when == "after" and not left:
            os.kill(os.getpid(), signal.SIGSTOP)
        return made
    return stop

with Ledger.open(url) as ledger, Run(ledger, run_id) as run:
    if what == "reading":
        module._read = stops(module._read)
    elif what == "sending":
        module.send_cells = stops(module.send_cells)
    elif what == "purging":
        module._purge = stops(module._purge)
    elif what == "asking":  # once the region is flushed
        admin._major_compaction = stops(admin._major_compaction)
    else:
        run.target.compact_region = stops(run.target.compact_region)
    if beside:
        threading.Thread(target=follow, args=(run,), daemon=True).start()
        while standstill._route is None:
            time.sleep(0.05)
    rows = ("masked", "shown", "unlogged", "stray")
    try:
        module.repair(run, standstill, table, {row.encode(): "" for row in rows})
    finally:
        print("over", flush=True)
        if beside:
            os._exit(0)
"""
SHORT_LEASE = {
    "WALFERRY_ZOOKEEPER_SESSION_SECONDS": "4", "WALFERRY_CLAIM_SECONDS": "1", "WALFERRY_REQUEST_SECONDS": "5",
    "WALFERRY_SETTLE_SECONDS": "2",
}  # fmt: skip


@contextmanager
def stopped(run: Run, table: str, place: str) -> Iterator[subprocess.Popen[str]]:
    """A process that repairs the four rows, and was suspended there."""
    command = [sys.executable, "-c", STOPPED, run.ledger.whole.url, run.run_id, table, place]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | SHORT_LEASE, **pipes) as process:
        deadline = time.monotonic() + 60
        while (state := Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
            assert state != "Z", "it ended"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        try:
            yield process
        finally:
            process.kill()


def held(client: HBaseClient, table: str) -> list[object]:
    """All that the target has, in whatever files."""
    rows = (*DIFFERING, b"equal", b"marked", b"gone")
    return [
        [raw(client, table, row) for row in rows],
        [store_files(client, one, b"f") for one in client.regions(table)],
    ]


@pytest.mark.parametrize(
    "place",
    ["before sending 1", "after asking 1 beside", "after compaction 1",
     *(pytest.param(place, marks=pytest.mark.long) for place in (
         "after reading 1", "after sending 1", "before purging 1", "before asking 1", "after asking 1",
         "before compaction 1", "before sending 2", "after sending 2", "before sending 1 beside",
         "after sending 2 beside",
     ))],
)  # fmt: skip
def test_a_repairer_that_was_suspended_beyond_its_lease_does_nothing_more_to_the_target(
    differing: tuple[Run, str], sides: Sides, at_source: HBaseClient, at_target: HBaseClient, spark: SparkSession,
    place: str,
) -> None:  # fmt: skip
    run, table = differing
    with stopped(run, table, place) as process:
        deadline = time.monotonic() + 90
        while True:
            try:
                repair(run, Standstill(), table, DIFFERING)
                break
            except LeaseHeldError:
                assert time.monotonic() < deadline
        # Of puts with one timestamp the last one wins; the suspended process may have read those before.
        at_source.put(table, [value(b"masked", b"newest", 7), value(b"stray", b"newest"), value(b"shown", b"newest")])
        replay(run, spark, until=lambda: True)
        run.ledger.notes.keep("target opened", {"at_ms": time.time_ns() // 1_000_000})
        at_target.put(table, [Cell(b"unlogged", b"f", b"other", b"by a client", 3)])
        before = held(at_target, table)
        os.kill(process.pid, signal.SIGCONT)
        said, told = process.communicate(timeout=200)
        assert said == "over\n", told
        assert held(at_target, table) == before, told
        assert not is_unfinished(run.ledger, table)
    at_source.put(table, [Cell(b"unlogged", b"f", b"other", b"by a client", 3)])
    here, there = sides(run)
    assert there == here

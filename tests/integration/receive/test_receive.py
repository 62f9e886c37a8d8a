"""Receivers between a real source that replicates natively and a target, killed, stopped and moved under a writer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.migration.moves import spark, visible
from integration.receive.receivers import Receivers, receivers
from integration.replication.fed_pair import spec_of_pair
from integration.replication.native import await_row, native_peer
from integration.replication.writing import writer
from unit.receive.call_builder import REGION, Sent, call
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import encode_cell
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger
from walferry.migration.pairs import pair_pass
from walferry.migration.pairs.pair_pass import open_pair, verify_pair
from walferry.replay.rights import dirty
from walferry.run.run import Run

pytestmark = pytest.mark.cluster


@pytest.fixture
def two(source: MiniCluster, target: MiniCluster, tmp_path: Path) -> Iterator[Receivers]:
    with receivers(source, target, tmp_path) as made:
        yield made


def test_what_is_written_while_regions_split_and_receivers_are_killed_is_at_the_target(
    two: Receivers, source: MiniCluster, target: MiniCluster
) -> None:
    with (
        HBaseClient(source.address) as here,
        HBaseClient(target.address) as there,
        beside(writer(here, two.tables), "writer"),
    ):
        time.sleep(5)
        for client in (here, there):
            client.split_region(client.regions(two.tables[0])[0], b"row1")
        time.sleep(5)
        two.processes[0].send_signal(signal.SIGKILL)
        time.sleep(5)
        two.start()
        time.sleep(5)
    two.equal()
    totals = two.totals()
    assert set(totals) == set(two.tables)
    assert all(total.late == 0 for total in totals.values())


def test_each_receiver_has_its_share_of_the_tables_and_passes_on_what_is_another_ones(
    two: Receivers, source: MiniCluster
) -> None:
    while sorted(len(process.tables) for process in two.serving()) != [1, 1]:
        time.sleep(0.5)
    with HBaseClient(source.address) as here:
        for count in range(40):
            for table in two.tables:
                here.put(table, [Cell(b"row%d%02d" % (count % 10, count), b"d", b"q", b"v")])
            time.sleep(0.1)
    two.equal(60)
    assert {table: total.entries for table, total in two.totals().items()} == dict.fromkeys(two.tables, 40)
    assert any(process.calls > 0 for process in two.serving()), "a source's server may have chosen either of them"


def test_once_the_source_has_shipped_all_by_the_names_of_its_logs_the_target_has_it(
    two: Receivers, source: MiniCluster
) -> None:
    with HBaseClient(source.address) as here, beside(writer(here, two.tables), "writer"):
        time.sleep(3)
    two.ship()
    two.equal(0)


def test_edits_that_the_target_had_first_do_not_come_back(
    two: Receivers, source: MiniCluster, target: MiniCluster
) -> None:
    table = two.tables[0]
    with (
        native_peer(target, source, [table]),
        HBaseClient(source.address) as here,
        HBaseClient(target.address) as there,
    ):
        there.put(table, [Cell(b"there", b"d", b"q", b"v")])
        await_row(source, table, b"there")
        here.put(table, [Cell(b"here", b"d", b"q", b"v")])
        await_row(target, table, b"here")
    assert two.totals()[table].entries == 1


def test_what_cannot_be_applied_is_refused_with_its_cause_until_it_can_be(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with (
        receivers(source, target, tmp_path, count=1, tables=1) as one,
        HBaseClient(source.address) as here,
        HBaseClient(target.address) as there,
    ):
        (table,) = one.tables
        there.disable_table(table)
        here.put(table, [Cell(b"r", b"d", b"q", b"v")])
        while not one.serving()[0].refused:
            time.sleep(0.5)
        assert table in one.serving()[0].last_refusal
        there.enable_table(table)
        one.equal()


def test_a_row_with_an_edit_that_came_after_newer_ones_is_dirty_until_a_pass_has_found_it_equal(
    source: MiniCluster, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_pass, "MARKED_BEFORE_MS", 0)
    with (
        receivers(source, target, tmp_path, count=1, tables=1) as one,
        HBaseClient(source.address) as here,
        HBaseClient(target.address) as there,
    ):
        (table,) = one.tables
        clusters = [(here.cluster_uuid().int >> 64, here.cluster_uuid().int & (1 << 64) - 1)]
        sent = [
            Sent([encode_cell(b"r", b"d", b"q", 7, 4, b"%d" % number)], REGION, table, number, 7, clusters)
            for number in (9, 5, 9)
        ]
        for entry in sent:
            one.send(*call([entry]))
        assert visible(target, table) == [(b"r", b"d:q", [(b"5", 7)])], "5 came last, and the second 9 is left out"
        (mark,) = dirty.marks(there.zk, table)
        assert "number 5 of the source's region" in mark.why
        total = one.totals()[table]
        assert (total.entries, total.repeated, total.late) == (2, 1, 1)

        with Ledger.open(f"sqlite:///{tmp_path / 'pair.db'}", actor="tester") as ledger:
            pair = open_pair(ledger, spec_of_pair(source, target, table), "tester", 7)
            with Run(ledger, pair.run_id) as run:
                assert verify_pair(run, spark)["differing_rows"] == 1
                assert dirty.marks(there.zk, table) == [mark]
                here.put(table, [Cell(b"r", b"d", b"q", b"9", 7)])
                one.equal()
                assert verify_pair(run, spark)["differing_rows"] == 0
        assert dirty.marks(there.zk, table) == []


def test_an_abort_ends_the_processes_removes_their_place_and_names_the_peer_that_is_left(
    two: Receivers, target: MiniCluster
) -> None:
    two.processes[0].kill()  # whose node goes with its session
    answer = two.abort()
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"{two.name}-1 aborted; removed: sink /walferry/receive/{two.name} at the target")
    assert "remove_peer '" in answer.stderr
    assert [process.wait(60) for process in two.processes] == [-signal.SIGKILL, 0]
    with HBaseClient(target.address) as there:
        assert there.zk.exists(f"/walferry/receive/{two.name}") is None


@pytest.mark.long
def test_a_receiver_that_is_stopped_for_two_minutes_applies_nothing_old_afterwards(
    two: Receivers, source: MiniCluster
) -> None:
    with HBaseClient(source.address) as here, beside(writer(here, two.tables), "writer"):
        time.sleep(5)
        two.suspend(0)
        time.sleep(120)
        os.kill(two.processes[0].pid, signal.SIGCONT)
        time.sleep(10)
    two.equal(180)


@pytest.mark.long
@pytest.mark.parametrize("serial", [True, False])
def test_moves_a_killed_server_of_the_source_and_a_sink_that_hangs_lose_nothing_unnamed(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, victim: Server, tmp_path: Path, serial: bool
) -> None:
    with receivers(source, target, tmp_path, serial=serial) as two:
        with beside(writer(at_source, two.tables), "writer"):
            for number in range(8):
                for table in two.tables:
                    regions = at_source.regions(table)
                    region = regions[number % len(regions)]
                    at_source.move_region(region, next(one for one in at_source.servers() if one != region.server))
                time.sleep(1)
            os.kill(target.pids["hbase"], signal.SIGSTOP)  # with its ZooKeeper, whose sessions last a little longer
            time.sleep(5)
            os.kill(target.pids["hbase"], signal.SIGCONT)
            time.sleep(3)
            source.kill_region_server(1)
            time.sleep(20)
        two.ship()
        if serial:
            two.equal(0)
            assert all(total.late == 0 for total in two.totals().values())
        two.differs_only_where_marked()

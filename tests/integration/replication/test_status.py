"""The status of HBase's own replication between two real clusters: what waits, how old it is, and what stops it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from integration.migration.moves import cluster_keys
from integration.replication.native import REPLICATED, await_row, native_peer, table_at_both
from walferry.embedded.cluster import MiniCluster, Ports
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.zookeeper import Server
from walferry.replication import status as replication_status
from walferry.replication.causes import refusing_tables
from walferry.replication.spec import ReplicateSpec, resolve_replicate
from walferry.replication.status import PeerStatus, QueueStatus, look
from walferry.replication.status_lines import lines
from walferry.run.spec import Cluster
from walferry.wal.copies import log_files_of
from walferry.wal.files import WalFile, find_archived

pytestmark = pytest.mark.cluster

ROW = b"row \x00 one"


@pytest.fixture(scope="module")
def at_target(target: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(target.address) as client:
        yield client


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[MiniCluster]:
    """A source whose server writes two groups of logs at once, its regions by turns."""
    site = {"hbase.wal.provider": "multiwal", "hbase.wal.regiongrouping.numgroups": "2"}
    with MiniCluster.start(tmp_path / "spread", ports=Ports.free(1), thrift=False, hbase_site=site) as cluster:
        yield cluster


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit is stuck as soon as it is not shipped."""
    monkeypatch.setattr(replication_status, "STUCK_MS", 0)


def status_of(source: MiniCluster, peer: str, seconds: float = 0, target: Cluster | None = None) -> PeerStatus:
    spec = ReplicateSpec(source=Cluster.model_validate(cluster_keys(source)), target=target, peer=peer)
    found = look(resolve_replicate(spec, lambda name: pytest.fail(name)), seconds)
    print("\n".join(lines(found)))
    json.dumps(asdict(found))
    (status,) = found.peers
    return status


def awaited(what: Callable[[], bool], why: str, deadline_s: float = 120.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.5)


def the_stuck(status: PeerStatus) -> QueueStatus:
    (queue,) = [queue for queue in status.queues if queue.stuck]
    return queue


def test_what_is_caught_up_has_nothing_to_ship(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient
) -> None:
    with (
        table_at_both(at_source, at_target, "d", "e") as table,
        native_peer(source, target, {table: ["d"]}) as peer,
    ):
        at_source.put(table, [Cell(ROW, b"d", b"q", b"1")])
        await_row(target, table, ROW)
        at_source.put(table, [Cell(b"beside", b"e", b"q", b"1")])  # of a family that the peer does not replicate

        def caught_up() -> bool:
            return all(queue.oldest is None and queue.read_whole for queue in status_of(source, peer).queues)

        awaited(caught_up, "its position did not move past the edit")
        status = status_of(source, peer)
        assert (status.enabled, status.stuck, status.sink.fault) == (True, False, None)
        assert (status.sink.cluster_id, status.sink.servers) == (at_target.cluster_id(), 1)
        assert {queue.state for queue in status.queues} == {"live"}


def test_a_disabled_peer_keeps_logs_and_names_its_oldest_edit(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, at_once: None
) -> None:
    with (
        table_at_both(at_source, at_target, "d") as table,
        native_peer(source, target, [table], enabled=False) as peer,
    ):
        at_source.put(table, [Cell(ROW, b"d", b"q", b"1")])
        at_source.put(table, [Cell(b"later", b"d", b"q", b"1")])
        status = status_of(source, peer)
        assert (status.enabled, status.stuck) == (False, False)
        edits = [queue.oldest for queue in status.queues if queue.oldest]
        assert [(edit.table, edit.row, edit.families) for edit in edits] == [(table, r"row \x00 one", ("d",))]
        assert status.bytes > 0
        assert not status.bytes_at_least
        assert status.log_bytes >= status.bytes


def test_a_log_whose_file_is_gone_is_lost(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient
) -> None:
    with (
        table_at_both(at_source, at_target, "d") as table,
        native_peer(source, target, [table], enabled=False) as peer,
        closing(log_files_of(source.address)) as files,
    ):
        at_source.put(table, [Cell(ROW, b"d", b"q", b"1")])
        (name,) = [queue.oldest.file for queue in status_of(source, peer).queues if queue.oldest]

        def archived() -> WalFile | None:
            for one in at_source.tables(system=True):
                if one != "hbase:meta" and at_source.table_enabled(one):
                    at_source.flush_table(one)
            for server in at_source.servers():
                at_source.roll_wal(server)
            return find_archived(files, source.address.wal_path, name)

        awaited(lambda: archived() is not None, "the log is not archived")
        there = find_archived(files, source.address.wal_path, name)
        assert there is not None
        files.delete(there.path)
        status = status_of(source, peer)
        assert [queue.lost_logs for queue in status.queues if queue.lost_logs] == [(name,)]
        assert status.queues[0].lost_logs
        assert f"HDFS has no such file: {name}" in status.queues[0].causes[0]


def test_a_table_that_was_dropped_at_the_sink_is_named(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, at_once: None
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table]) as peer:
        at_target.disable_table(table)
        at_source.put(table, [Cell(ROW, b"d", b"q", b"1")])
        queue = the_stuck(status_of(source, peer))
        assert queue.causes == (f"table {table} is disabled at the sink: enable it",)
        at_target.delete_table(table)
        queue = the_stuck(status_of(source, peer, seconds=2))
        assert queue.causes == (f"table {table} is missing at the sink: create it there, with the family d",)
        assert queue.moving is False
        assert queue.reported_lag_ms is not None
        at_target.create_table(table, {"d": REPLICATED})
        await_row(target, table, ROW)


def test_a_family_that_the_sink_lacks_is_named(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, at_once: None
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table]) as peer:
        both = replace(at_source.describe(table))
        both.schema.column_families.add(name=b"e", attributes=both.schema.column_families[0].attributes)
        at_source.modify_table(both)
        at_source.put(table, [Cell(ROW, b"e", b"q", b"1")])
        queue = the_stuck(status_of(source, peer))
        assert queue.causes == (f"table {table} lacks the family e at the sink: add it there",)
        at_target.modify_table(both)
        await_row(target, table, ROW)


def test_a_table_that_is_read_only_at_the_sink_is_named(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, at_once: None
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table]) as peer:
        at_target.set_read_only(table, True)
        at_source.put(table, [Cell(ROW, b"d", b"q", b"1")])
        queue = the_stuck(status_of(source, peer))
        assert queue.causes == (f"table {table} is READONLY at the sink: alter '{table}', READONLY => 'false'",)
        at_target.set_read_only(table, False)
        await_row(target, table, ROW)


def test_a_table_that_the_sink_takes_has_no_cause(
    target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient
) -> None:
    with table_at_both(at_source, at_target, "d") as table:
        assert refusing_tables(target.address, {table: frozenset({"d"})}) == {}


def test_the_command_prints_all_of_it_as_json(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, tmp_path: Path
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table], enabled=False) as peer:
        (tmp_path / "replicate.yaml").write_text(yaml.safe_dump({"source": cluster_keys(source), "peer": peer}))
        words = [sys.executable, "-m", "walferry.cli", "replicate", "status", "replicate.yaml"]
        told = subprocess.run([*words, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
        (status,) = json.loads(told.stdout)["peers"]
        assert (status["peer"], status["enabled"], len(status["queues"])) == (peer, False, 2)
        told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert (
            f"peer {peer} to {target.address.cluster}: disabled: keeps 2 logs, {status['log_bytes']} bytes"
            in told.stdout
        )


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ({"zookeeper": "127.0.0.1:1"}, "did not answer"),
        ({"znode": "/nothing"}, "there is no HBase below /nothing"),
        ({}, "it is the source itself"),
    ],
    ids=["no ZooKeeper", "no HBase", "the source"],
)
def test_a_sink_that_takes_no_changes_is_named(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, at_once: None,
    place: dict[str, str], fault: str,
) -> None:  # fmt: skip
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table]) as peer:
        at_target.disable_table(table)
        at_source.put(table, [Cell(ROW, b"d", b"q", b"1")])
        elsewhere = {**cluster_keys(target), **place} if place else cluster_keys(source)
        causes = the_stuck(status_of(source, peer, target=Cluster.model_validate(elsewhere))).causes
        assert fault in causes[0]
        # That walferry does not reach a ZooKeeper proves nothing.
        assert [cause.partition(" ")[0] for cause in causes[1:]] == (["unknown:"] if "zookeeper" in place else [])


@pytest.mark.long
def test_the_queue_of_a_dead_server_is_shown_until_it_is_shipped(
    source: MiniCluster,
    target: MiniCluster,
    at_source: HBaseClient,
    at_target: HBaseClient,
    victim: Server,
    at_once: None,
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table]) as peer:
        (region,) = at_source.regions(table)
        if region.server != victim:
            at_source.move_region(region, victim)
        at_target.disable_table(table)
        at_source.put(table, [Cell(ROW, b"d", b"q", b"1")])
        source.kill_region_server(1)

        def of_victim() -> list[QueueStatus]:
            return [queue for queue in status_of(source, peer).queues if queue.writer == victim.name]

        awaited(lambda: [queue.state for queue in of_victim()] == ["recovered"], "nobody claimed the queue")
        (queue,) = of_victim()
        assert queue.server != victim.name
        assert queue.oldest is not None
        assert queue.oldest.table == table
        assert queue.causes == (f"table {table} is disabled at the sink: enable it",)
        at_target.enable_table(table)
        await_row(target, table, ROW)
        awaited(lambda: not of_victim(), "the queue is still there")


@pytest.mark.long
def test_a_group_of_logs_that_is_stuck_is_not_hidden_by_another_one_that_moves(
    spread: MiniCluster, target: MiniCluster, at_target: HBaseClient, at_once: None
) -> None:
    with (
        HBaseClient(spread.address) as at_spread,
        table_at_both(at_spread, at_target, "d") as refused,
        table_at_both(at_spread, at_target, "d") as taken,
        native_peer(spread, target, [refused, taken]) as peer,
    ):
        at_target.disable_table(refused)
        for table in (refused, taken):
            at_spread.put(table, [Cell(ROW, b"d", b"q", b"1")])
        await_row(target, taken, ROW)

        def waiting() -> list[QueueStatus]:
            return [queue for queue in status_of(spread, peer).queues if queue.oldest]

        awaited(lambda: len(waiting()) == 1, "the position of the other group did not move past its edit")
        status = status_of(spread, peer, seconds=2)
        stuck, other = status.queues
        assert (stuck.server, stuck.writer) == (other.server, other.writer)
        assert [group.rpartition(".")[2] for group in sorted((stuck.group, other.group))] == [
            "regiongroup-0", "regiongroup-1",
        ]  # fmt: skip
        assert stuck.oldest is not None
        assert (stuck.stuck, stuck.moving, stuck.oldest.table) == (True, False, refused)
        assert stuck.causes == (f"table {refused} is disabled at the sink: enable it",)
        assert (other.stuck, other.moving, other.causes) == (False, True, ())
        at_target.enable_table(refused)
        await_row(target, refused, ROW)

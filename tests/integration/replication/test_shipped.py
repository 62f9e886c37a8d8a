"""What proves that everything is shipped, between two real clusters: idle, stuck, and while a region server dies."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.migration.moves import cluster_keys, content
from integration.replication.native import native_peer, spec_of, table_at_both
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.replication_queues import queue_nodes
from walferry.hbase.zookeeper import Server
from walferry.replication import shipped
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Shipped, ship_all
from walferry.replication.spec import ReplicateSpec, resolve_replicate
from walferry.run.spec import Cluster

pytestmark = pytest.mark.cluster

SERVERS = 2
ENOUGH_S = 120


@pytest.fixture(scope="module")
def at_target(target: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(target.address) as client:
        yield client


def ship(source: MiniCluster, peer: str, wait_s: float = ENOUGH_S) -> Shipped:
    spec = ReplicateSpec(source=Cluster.model_validate(cluster_keys(source)), peer=peer)
    (one,) = ship_all(resolve_replicate(spec, lambda name: pytest.fail(name)), wait_s, told=print)
    print(shipped.line(one))
    return one


def put(client: HBaseClient, table: str, *rows: bytes) -> None:
    for row in rows:
        client.put(table, [Cell(row, b"d", b"q", b"value of " + row)])


def spread(client: HBaseClient, table: str) -> None:
    """Each region at another server."""
    regions = sorted(client.regions(table), key=lambda region: region.start)
    for region, server in zip(regions, client.servers(), strict=True):
        if region.server != server:
            client.move_region(region, server)


def test_the_sink_has_all_rows_once_all_is_shipped_also_of_servers_that_write_nothing(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient
) -> None:
    with (
        table_at_both(at_source, at_target, "d", splits=[b"m"]) as table,
        native_peer(source, target, [table]) as peer,
    ):
        spread(at_source, table)
        put(at_source, table, *(b"%s%03d" % (half, n) for half in (b"a", b"z") for n in range(100)))
        one = ship(source, peer)
        assert (there := content(target, table)) == content(source, table)
        assert len(there) == 200
        assert (one.queues, one.files) == (SERVERS, 0)
        assert one.logs >= SERVERS
        again = ship(source, peer)  # nothing was written since
        assert again.rolled_ms > one.rolled_ms
        loaded = f"replication/hfile-refs/{peer}/loaded"
        at_source.zookeeper.create({loaded: b""})
        with pytest.raises(NotReplicatedError, match=f"peer {peer}: files of bulk loads are not shipped: loaded"):
            ship(source, peer, 5)
        at_source.zookeeper.delete(loaded)


def test_a_stuck_queue_is_not_called_shipped_and_the_error_names_log_and_cause(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, tmp_path: Path
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table]) as peer:
        at_target.disable_table(table)
        put(at_source, table, b"one")
        (region,) = at_source.regions(table)
        assert region.server is not None
        words = [sys.executable, "-m", "walferry.cli", "replicate", "shipped", spec_of(tmp_path, source, peer=peer)]
        told = subprocess.run([*words, "--dry-run"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "would be rolled" in told.stdout
        told = subprocess.run([*words, "--wait", "15"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert told.returncode == 1, told
        said = told.stderr.strip().splitlines()[-1]
        name = region.server.name
        assert f"not shipped in 15 s: peer {peer}: {name} has not shipped {name.replace(',', '%2C')}." in said
        assert f"table {table} is disabled at the sink: enable it" in said
        assert f"peer {peer}: 1 of {SERVERS} queues left, 1 log" in told.stderr, "the idle one has gone on"
        at_target.enable_table(table)
        ship(source, peer)
        assert content(target, table) == content(source, table) != {}


def test_a_disabled_peer_is_named_at_once(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table], enabled=False) as peer:
        logs = at_source.peer_queues(peer)
        with pytest.raises(NotReplicatedError, match=f"peer {peer} is disabled"):
            ship(source, peer)
        assert at_source.peer_queues(peer) == logs, "no log was rolled"


@pytest.mark.long
def test_edits_of_a_server_that_dies_are_shipped_only_once_its_queue_is_through(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, victim: Server
) -> None:
    with table_at_both(at_source, at_target, "d") as table, native_peer(source, target, [table]) as peer:
        (region,) = at_source.regions(table)
        if region.server != victim:
            at_source.move_region(region, victim)
        at_target.disable_table(table)
        put(at_source, table, *(b"%03d" % n for n in range(50)))
        source.kill_region_server(1)
        with pytest.raises(NotReplicatedError, match=victim.name):  # nobody has claimed its queue yet
            ship(source, peer, 3)
        deadline = time.monotonic() + 90
        while victim.name not in {node.writer for node in queue_nodes(at_source, [peer]) if node.holder != node.writer}:
            assert time.monotonic() < deadline, "nobody claimed the queue"
            time.sleep(0.5)
        with pytest.raises(NotReplicatedError) as refused:
            ship(source, peer, 5)
        log = f"{victim.name.replace(',', '%2C')}."
        assert f"for {victim.name}, which is dead, has not shipped {log}" in str(refused.value)
        at_target.enable_table(table)
        ship(source, peer, 180)
        assert len(there := content(target, table)) == 50
        assert there == content(source, table)

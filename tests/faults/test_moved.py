"""Clusters whose services are found elsewhere while a run is under way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from booting import laid_out
from integration.migration.command import walferry
from integration.migration.moves import begin, content, copy_tables, make_spec, run_of, skip, spark, spec_keys, unique
from integration.migration.test_cli import phase_of, running, wait_until
from integration.moments.writing import KEPT, Writer
from walferry.cutover import gates
from walferry.embedded import processes
from walferry.embedded.cluster import STORAGE, MiniCluster
from walferry.embedded.environment import Environment
from walferry.hbase.client import HBaseClient
from walferry.pipeline import retry_work
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.settings import EmbeddedServers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Clusters of this module's own, since they move."""
    with laid_out(tmp_path_factory.mktemp("servers"), EmbeddedServers.read()) as environment:
        environment.start_clusters()
        yield environment
        environment.stop_clusters()


def table_of(client: HBaseClient) -> tuple[str, Writer]:
    """A table of two regions with edits, and its writer."""
    name = unique()
    client.create_table(name, {"f": KEPT, "g": KEPT}, [b"m"])
    writer = Writer(client, name)
    for _ in range(30):
        writer.edit()
    return name, writer


def move_registry(cluster: MiniCluster) -> None:
    """ZooKeeper's server is replaced by one at another port, with the data of the first; HBase is told."""
    names = [name for name in cluster.names if name not in STORAGE]
    processes.stop(cluster.servers.pop(name) for name in names)
    cluster.ports = replace(cluster.ports, zookeeper=processes.free_ports(1)[0])
    cluster._write_configuration()
    for name in names:
        cluster.start_server(name)
    for name in names:
        cluster.await_ready(name)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_run_goes_on_at_the_new_address_of_a_registry_but_not_at_another_cluster(
    own: Environment, tmp_path: Path, side: str
) -> None:
    moved = own.source if side == "source" else own.target
    with HBaseClient(own.source.address) as here:
        table, _ = table_of(here)
    keys = spec_keys(own.source, own.target, [table], write_stop="readonly", max_lag=60)
    name, spec = keys["name"], tmp_path / "move.yaml"
    spec.write_text(yaml.safe_dump(keys))
    with running(tmp_path, "start", "move.yaml", "--yes") as process:
        wait_until(lambda: phase_of(tmp_path, name) == "copy", process)
    assert process.returncode == -signal.SIGKILL
    move_registry(moved)
    with HBaseClient(own.source.address) as here:
        Writer(here, table).edit()

    if side == "target":
        old = walferry(tmp_path, "resume", name, "--yes")
        assert old.returncode == 1
        assert f"ZooKeeper at {keys[side]['zookeeper']} did not answer within 10 s; is it up?" in old.stderr
        assert "Traceback" not in old.stderr

    other = spec_keys(own.source, own.target, [table])
    wrong = other["target" if side == "source" else "source"]
    spec.write_text(yaml.safe_dump(keys | {side: wrong}))
    refused = walferry(tmp_path, "start", "move.yaml", "--yes")
    assert refused.returncode == 2
    assert f"error: {side} (" in refused.stderr
    assert f"is not the cluster of run {name}-1: the id in ZooKeeper at {wrong['zookeeper']}/hbase is" in refused.stderr

    spec.write_text(yaml.safe_dump(keys | {side: other[side]}))
    went_on = walferry(tmp_path, "start", "move.yaml", "--yes")
    assert went_on.returncode == 0, went_on.stderr
    assert content(own.target, table) == content(own.source, table)
    assert len(content(own.source, table)) > 10


def test_a_run_follows_meta_to_another_server_and_a_server_to_another_port(own: Environment, tmp_path: Path) -> None:
    source = own.source
    with HBaseClient(source.address) as here:
        table, writer = table_of(here)
        with run_of(make_spec(source, own.target, [table]), tmp_path) as run:
            begin(run)
            copy_tables(run)
            assert move_meta(run.source) != move_meta(run.source)
            assert run.source.regions(table)
            move_meta(run.target)
            for _ in range(20):
                writer.edit()
            replay(run, spark(), until=lambda: True)
            for cluster in (source, own.target):
                restart_elsewhere(cluster)
            for _ in range(20):
                writer.edit()
            retry_work(lambda: replay(run, spark(), until=lambda: True))
            skip(run, "replay", "write_stop")
            cut.end_fence(run)
            drain(run, spark())
            gates.after_drain(run)
            assert content(own.target, table) == content(source, table)


def move_meta(client: HBaseClient) -> str:
    """Move hbase:meta to a server that does not have it, if there is one. Returns the server that it is on now."""
    (meta,) = client.regions("hbase:meta")
    others = [server for server in client.servers() if server != meta.server]
    if others:
        client.move_region(meta, others[0])
    return client.zookeeper.meta_server().name


def restart_elsewhere(cluster: MiniCluster) -> None:
    """kill -9 the second region server, if there is one, and start one in its place at another port."""
    if len(cluster.ports.region_servers) < 2:
        return
    cluster.kill_region_server(1)
    first, _, *rest = cluster.ports.region_servers
    cluster.ports = replace(cluster.ports, region_servers=(first, *processes.free_ports(1), *rest))
    cluster.start_region_server(1)
    cluster.await_ready("regionserver-1")

"""HBase's own replication between two clusters, as somebody else would set it up, and specs about it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from integration.migration.moves import cluster_keys, unique
from walferry.embedded import jars
from walferry.embedded.cluster import JVM_FLAGS, MiniCluster
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import peers_by_rpc, peers_in_zookeeper
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import table_name
from walferry.hbase.versions import By

REPLICATED = {"REPLICATION_SCOPE": "1", "VERSIONS": "1"}
"""attributes of a family"""
QUEUES_S = 60.0


def cluster_key(cluster: MiniCluster) -> str:
    """As a peer names a cluster."""
    return f"{cluster.host}:{cluster.ports.zookeeper}:{cluster.address.znode}"


@contextmanager
def native_peer(
    source: MiniCluster,
    target: MiniCluster,
    tables: Sequence[str] | Mapping[str, Sequence[str]],
    enabled: bool = True,
    *,
    key: str | None = None,
    **config: Any,
) -> Iterator[str]:
    """A peer of the source with HBase's own endpoint, for tables, or families by table; removed at the end.

    `key`: where it leads, instead of the target; `config`: more of its configuration.
    """
    families = tables if isinstance(tables, Mapping) else dict.fromkeys(tables, ())
    peer_id = f"native{uuid4().hex[:8]}"
    message = pb.ReplicationPeer(
        clusterkey=key or cluster_key(target),
        replicate_all=False,
        table_cfs=[
            pb.TableCF(table_name=table_name(table), families=[family.encode() for family in of])
            for table, of in families.items()
        ],
        **config,
    )
    state = pb.ReplicationState(state=pb.ReplicationState.ENABLED if enabled else pb.ReplicationState.DISABLED)
    with HBaseClient(source.address) as client:
        way = peers_by_rpc if client.release.peers is By.MASTER else peers_in_zookeeper
        way.add(client, peer_id, message, state)
        try:
            deadline = time.monotonic() + QUEUES_S
            while len(client.peer_queues(peer_id)) < len(client.servers()):
                assert time.monotonic() < deadline, f"peer {peer_id} has no queue at some server"
                time.sleep(0.2)
            yield peer_id
        finally:
            client.remove_peer(peer_id)


def await_row(cluster: MiniCluster, table: str, row: bytes, deadline_s: float = 90.0) -> None:
    """Wait until a row is there."""
    deadline = time.monotonic() + deadline_s
    with HBaseClient(cluster.address) as client:
        while not any(client.scan(table, row, row + b"\0")):
            assert time.monotonic() < deadline, f"row {row!r} of {table} did not come"
            time.sleep(0.3)


def make_both(source: HBaseClient, sink: HBaseClient, families: Sequence[str] = ("f",), name: str = "") -> str:
    """A table at both, whose families are replicated at the source."""
    table = name or unique("n")
    for client, scope in ((sink, "0"), (source, "1")):
        client.create_table(table, {one: {"VERSIONS": "1", "REPLICATION_SCOPE": scope} for one in families})
    return table


@contextmanager
def table_at_both(
    source: HBaseClient, target: HBaseClient, *families: str, splits: Sequence[bytes] = ()
) -> Iterator[str]:
    """A replicated table of these families at both, dropped at the end."""
    table = unique("replicated")
    for client in (source, target):
        client.create_table(table, dict.fromkeys(families, REPLICATED), splits)
    try:
        yield table
    finally:
        for client in (source, target):
            if client.table_exists(table):
                if client.table_enabled(table):
                    client.disable_table(table)
                client.delete_table(table)


def verify_replication(source: MiniCluster, peer: str, table: str, folder: Path) -> tuple[int, int]:
    """How many rows HBase's own VerifyReplication finds equal at both, and how many different. It sees each write that
    has not arrived yet as a difference."""
    program = "org.apache.hadoop.hbase.mapreduce.replication.VerifyReplication"
    settings = {"mapreduce.local.map.tasks.maximum": "2", "hadoop.tmp.dir": str(folder)}
    options = [f"-D{key}={value}" for key, value in settings.items()]
    flags = [*JVM_FLAGS, "-Xmx1g", f"-Djava.io.tmpdir={folder}"]
    command = [jars.java(), *flags, "-cp", source.mapreduce_classpath, program, *options, peer, table]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    # Each map tells its own, the job the sum of them at the end.
    counted = dict(re.findall(r"^\s+(GOODROWS|BADROWS)=(\d+)$", done.stderr, re.MULTILINE))
    assert counted, "it compared nothing"
    return int(counted.get("GOODROWS", 0)), int(counted.get("BADROWS", 0))


def spec_of(folder: Path, source: MiniCluster, target: MiniCluster | None = None, **keys: Any) -> str:
    """The file of a spec of that replication; its name."""
    content = {"source": cluster_keys(source), **({} if target is None else {"target": cluster_keys(target)}), **keys}
    (folder / "replicate.yaml").write_text(yaml.safe_dump(content))
    return "replicate.yaml"

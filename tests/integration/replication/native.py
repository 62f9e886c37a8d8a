"""HBase's own replication between the two clusters, set up as its shell does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from integration.migration.moves import cluster_keys, unique
from walferry.embedded.cluster import MiniCluster
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import peers
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import table_name


def key_of(cluster: MiniCluster) -> str:
    """The cluster's key."""
    return f"{cluster.address.zookeeper}:{cluster.address.znode}"


@contextmanager
def native_peer(
    source: HBaseClient, sink: MiniCluster, tables: Sequence[str] = (), *, enabled: bool = True, **config: Any
) -> Iterator[str]:
    """A peer to the sink, of some tables or of all, until the block ends; `config`: fields of ReplicationPeer. Returns
    its id."""
    peer = unique("native_")
    fields: dict[str, Any] = {"clusterkey": key_of(sink), "replicate_all": not tables, **config}
    if tables:
        fields["table_cfs"] = [pb.TableCF(table_name=table_name(name)) for name in tables]
    message = pb.ReplicationPeer(**fields)
    state = pb.ReplicationState(state=pb.ReplicationState.ENABLED if enabled else pb.ReplicationState.DISABLED)
    peers._WAYS[source.release.peers].add(source, peer, message, state)
    try:
        yield peer
    finally:
        source.remove_peer(peer)


def make_both(source: HBaseClient, sink: HBaseClient, families: Sequence[str] = ("f",), name: str = "") -> str:
    """A table at both, whose families are replicated at the source."""
    table = name or unique("n")
    for client, scope in ((sink, "0"), (source, "1")):
        client.create_table(table, {one: {"VERSIONS": "1", "REPLICATION_SCOPE": scope} for one in families})
    return table


def spec_of(folder: Path, source: MiniCluster, target: MiniCluster | None = None, **keys: Any) -> str:
    """The file of a spec of that replication; its name."""
    content = {"source": cluster_keys(source), **({} if target is None else {"target": cluster_keys(target)}), **keys}
    (folder / "replicate.yaml").write_text(yaml.safe_dump(content))
    return "replicate.yaml"

"""Adds, lists and removes replication peers in the way that the cluster's version supports.

`HBaseClient` documents the functions that take the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import peers_by_rpc, peers_in_zookeeper
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import DEFAULT_NAMESPACE, name_text, table_text
from walferry.hbase.errors import RemoteError, unknown_there
from walferry.hbase.retry import retry_call
from walferry.hbase.versions import By

# A disabled peer with this endpoint keeps WALs without a sink or a jar: the class is part of HBase, replicates nothing.
PINNING_ENDPOINT = "org.apache.hadoop.hbase.replication.VerifyWALEntriesReplicationEndpoint"
HBASE_ENDPOINT = "org.apache.hadoop.hbase.replication.regionserver.HBaseInterClusterReplicationEndpoint"


@dataclass(frozen=True)
class PeerConfig:
    """A peer: where it leads, and what it replicates of a table's families (ReplicationPeerConfig.needToReplicate).

    `cluster_key` is "host,host:port:/znode", empty for an endpoint that needs no cluster; `endpoint` is a class, empty
    for HBase's own. A table without families stands for all of them.
    """

    id: str
    enabled: bool
    cluster_key: str
    endpoint: str
    all_tables: bool
    tables: Mapping[str, frozenset[str]]
    namespaces: frozenset[str]
    left_out_tables: Mapping[str, frozenset[str]]
    left_out_namespaces: frozenset[str]
    serial: bool
    bandwidth: int
    """bytes per second for each region server; 0: no limit"""

    @classmethod
    def of(cls, peer_id: str, enabled: bool, config: pb.ReplicationPeer) -> PeerConfig:
        """From HBase's message."""
        tables, namespaces = _families_by_table(config.table_cfs), _texts(config.namespaces)
        every = config.replicate_all if config.HasField("replicate_all") else not (tables or namespaces)  # 1.x
        return cls(
            peer_id, enabled, config.clusterkey, config.replicationEndpointImpl, every, tables, namespaces,
            _families_by_table(config.exclude_table_cfs), _texts(config.exclude_namespaces), config.serial,
            config.bandwidth,
        )  # fmt: skip

    @property
    def is_hbase(self) -> bool:
        """Whether it leads to another HBase cluster, by HBase's own endpoint."""
        return self.endpoint in ("", HBASE_ENDPOINT)

    def replicates(self, table: str, family: str) -> bool:
        """Whether it replicates a family, given that the family's scope is not 0."""
        namespace = table.partition(":")[0] if ":" in table else DEFAULT_NAMESPACE
        if self.all_tables:
            left_out = self.left_out_tables.get(table)
            if namespace in self.left_out_namespaces or left_out == frozenset():
                return False
            return left_out is None or family not in left_out
        if namespace in self.namespaces:
            return True
        families = self.tables.get(table)
        return families is not None and (not families or family in families)


def _families_by_table(tables: Iterable[pb.TableCF]) -> dict[str, frozenset[str]]:
    return {table_text(one.table_name): _texts(one.families) for one in tables}


def _texts(names: Iterable[bytes]) -> frozenset[str]:
    return frozenset(map(name_text, names))


class Peers(Protocol):
    """One version's way to handle peers. Each call is one attempt; a repeated addition or removal fails or does
    nothing."""

    def add(self, client: Calls, peer_id: str, config: pb.ReplicationPeer, state: pb.ReplicationState) -> None:
        """Add a peer; its queues appear a little later."""

    def enable(self, client: Calls, peer_id: str) -> None:
        """Enable a peer."""

    def configs(self, client: Calls) -> dict[str, tuple[bool, pb.ReplicationPeer]]:
        """id -> (enabled, configuration)"""

    def remove(self, client: Calls, peer_id: str) -> None:
        """Remove a peer; its queues follow."""


_WAYS: dict[By, Peers] = {By.MASTER: peers_by_rpc, By.ZOOKEEPER: peers_in_zookeeper}


def add_peer(client: Calls, peer_id: str, endpoint_class: str = PINNING_ENDPOINT, *, enabled: bool = False) -> None:
    config = pb.ReplicationPeer(replicationEndpointImpl=endpoint_class, replicate_all=True)
    state = pb.ReplicationState(state=pb.ReplicationState.ENABLED if enabled else pb.ReplicationState.DISABLED)

    def add() -> None:
        there = peers(client).get(peer_id)
        if there is None:
            _WAYS[client.release.peers].add(client, peer_id, config, state)
        elif there != (enabled, endpoint_class):
            now = "enabled" if there[0] else "disabled"
            raise UsageError(
                f"replication peer {peer_id} already exists, {now} and with the endpoint {there[1] or '(none)'}; "
                "remove that peer or choose another id",
                peer=peer_id,
            )

    retry_call(add)


def add_disabled_peer(client: Calls, peer_id: str, config: pb.ReplicationPeer) -> None:
    """Add a peer with this configuration, disabled. Its queues appear a little later. A peer of that id that is there
    stays as it is: look first, and compare afterwards."""
    state = pb.ReplicationState(state=pb.ReplicationState.DISABLED)

    def add() -> None:
        if peer_id not in _configs(client):
            _WAYS[client.release.peers].add(client, peer_id, config, state)

    retry_call(add)


def enable_peer(client: Calls, peer_id: str) -> None:
    """Enable a peer; one that is enabled stays as it is. Raises UsageError if there is none."""

    def enable() -> None:
        there = _configs(client).get(peer_id)
        if there is None:
            raise UsageError(f"there is no replication peer {peer_id} at {client.address.zookeeper}", peer=peer_id)
        if not there[0]:
            _WAYS[client.release.peers].enable(client, peer_id)

    retry_call(enable)


def peer_message(client: Calls, peer_id: str) -> tuple[bool, pb.ReplicationPeer] | None:
    """Whether a peer is enabled, and its whole configuration; None if there is none."""
    return _configs(client).get(peer_id)


def peer_created(client: Calls, peer_id: str) -> int | None:
    """The transaction of ZooKeeper that created a peer: another one, once it was removed and added again. None if there
    is no peer, or HBase keeps its peers elsewhere (`hbase.replication.peer.storage.impl`)."""
    there = client.zookeeper.children_at(f"{peers_in_zookeeper.PEERS}/{peer_id}")
    return None if there is None else there.created


def peers(client: Calls) -> dict[str, tuple[bool, str]]:
    return {name: (enabled, config.replicationEndpointImpl) for name, (enabled, config) in _configs(client).items()}


def peer_configs(client: Calls) -> list[PeerConfig]:
    """The replication peers with what they replicate, by id."""
    return [PeerConfig.of(name, enabled, config) for name, (enabled, config) in sorted(_configs(client).items())]


def _configs(client: Calls) -> dict[str, tuple[bool, pb.ReplicationPeer]]:
    return _WAYS[client.release.peers].configs(client)


def remove_peer(client: Calls, peer_id: str) -> bool:
    removed = False

    def remove() -> None:
        nonlocal removed
        if peer_id in peers(client):
            removed = True
            _WAYS[client.release.peers].remove(client, peer_id)

    retry_call(remove)
    return removed


def peer_queues(client: Calls, peer_id: str) -> dict[str, set[str]]:
    return client.zookeeper.replication_queues(peer_id)


def peers_may_change(client: Calls) -> bool | None:
    if not client.release.switches_peers:
        return None
    request = pb.IsReplicationPeerModificationEnabledRequest()
    method = "IsReplicationPeerModificationEnabled"
    try:
        return client.master_call(method, request, pb.IsReplicationPeerModificationEnabledResponse).enabled
    except RemoteError as error:
        if unknown_there(error):  # a vendor's build, or a version without a number
            return None
        raise

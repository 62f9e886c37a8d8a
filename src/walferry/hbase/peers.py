"""Adds, lists and removes replication peers in the way that the cluster's version supports.

`HBaseClient` documents the functions that take the client.
"""

from __future__ import annotations

from typing import Protocol

from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import peers_by_rpc, peers_in_zookeeper
from walferry.hbase.calls import Calls
from walferry.hbase.errors import RemoteError, unknown_there
from walferry.hbase.retry import retry_call
from walferry.hbase.versions import By

# A disabled peer with this endpoint keeps WALs without a sink or a jar: the class is part of HBase, replicates nothing.
PINNING_ENDPOINT = "org.apache.hadoop.hbase.replication.VerifyWALEntriesReplicationEndpoint"


class Peers(Protocol):
    """One version's way to handle peers. Each call is one attempt; a repeated addition or removal fails or does
    nothing."""

    def add(self, client: Calls, peer_id: str, config: pb.ReplicationPeer, state: pb.ReplicationState) -> None:
        """Add a peer; its queues appear a little later."""

    def peers(self, client: Calls) -> dict[str, tuple[bool, str]]:
        """id -> (enabled, class of its endpoint, "" for HBase's own)"""

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


def peers(client: Calls) -> dict[str, tuple[bool, str]]:
    return _WAYS[client.release.peers].peers(client)


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

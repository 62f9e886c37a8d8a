"""Replication peers through calls to the master, which run as procedures: since 2.0."""

from __future__ import annotations

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.procedures import await_procedure


def add(client: Calls, peer_id: str, config: pb.ReplicationPeer, state: pb.ReplicationState) -> None:
    """Add a peer."""
    request = pb.AddReplicationPeerRequest(peer_id=peer_id, peer_config=config, peer_state=state)
    answer = client.master_call("AddReplicationPeer", request, pb.AddReplicationPeerResponse, attempts=1)
    await_procedure(client, answer, f"peer {peer_id}")


def enable(client: Calls, peer_id: str) -> None:
    """Enable a peer."""
    request = pb.EnableReplicationPeerRequest(peer_id=peer_id)
    answer = client.master_call("EnableReplicationPeer", request, pb.EnableReplicationPeerResponse, attempts=1)
    await_procedure(client, answer, f"enabling of peer {peer_id}")


def configs(client: Calls) -> dict[str, tuple[bool, pb.ReplicationPeer]]:
    """All peers."""
    answer = client.master_call(
        "ListReplicationPeers", pb.ListReplicationPeersRequest(), pb.ListReplicationPeersResponse
    )
    return {peer.id: (peer.state.state == pb.ReplicationState.ENABLED, peer.config) for peer in answer.peer_desc}


def remove(client: Calls, peer_id: str) -> None:
    """Remove a peer."""
    request = pb.RemoveReplicationPeerRequest(peer_id=peer_id)
    answer = client.master_call("RemoveReplicationPeer", request, pb.RemoveReplicationPeerResponse, attempts=1)
    await_procedure(client, answer, f"removal of peer {peer_id}")

"""Replication peers as znodes, which region servers watch: the only way before 2.0 (ReplicationPeersZKImpl).

`replication/peers/<id>` holds the peer's configuration; `peer-state` below it says whether the peer is enabled. One
transaction creates both: a peer without its state would count as enabled, even if only for a moment.
"""

from __future__ import annotations

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.zookeeper import parse_znode, znode

PEERS = "replication/peers"
_STATE = "peer-state"


def add(client: Calls, peer_id: str, config: pb.ReplicationPeer, state: pb.ReplicationState) -> None:
    """Add a peer."""
    path = f"{PEERS}/{peer_id}"
    # Servers cannot read a peer without a cluster. As in HBase's shell, name their own: the endpoint never connects.
    here = pb.ReplicationPeer(clusterkey=client.address.cluster_key)
    here.MergeFrom(config)
    client.zookeeper.create({path: znode(_as_of_1x(here)), f"{path}/{_STATE}": znode(state)})


def enable(client: Calls, peer_id: str) -> None:
    """Enable a peer, which region servers see a little later."""
    state = pb.ReplicationState(state=pb.ReplicationState.ENABLED)
    client.zookeeper.write(f"{PEERS}/{peer_id}/{_STATE}", znode(state))


def configs(client: Calls) -> dict[str, tuple[bool, pb.ReplicationPeer]]:
    """All peers."""
    found = {}
    for peer_id in client.zookeeper.children(PEERS):
        config = client.zookeeper.read(f"{PEERS}/{peer_id}")
        state = client.zookeeper.read(f"{PEERS}/{peer_id}/{_STATE}")
        if config is None:
            continue  # removed meanwhile
        disabled = state is not None and parse_znode(state, pb.ReplicationState).state == pb.ReplicationState.DISABLED
        found[peer_id] = not disabled, _from_1x(parse_znode(config, pb.ReplicationPeerOf1x))
    return found


def remove(client: Calls, peer_id: str) -> None:
    """Remove a peer; each region server then removes its queue."""
    client.zookeeper.delete(f"{PEERS}/{peer_id}")


def _as_of_1x(peer: pb.ReplicationPeer) -> pb.ReplicationPeerOf1x:
    """A peer as 1.x keeps it: it knows neither namespaces nor SERIAL, nor what a peer of all tables leaves out."""
    kept = pb.ReplicationPeerOf1x(
        clusterkey=peer.clusterkey, data=peer.data, configuration=peer.configuration, table_cfs=peer.table_cfs
    )
    if peer.replicationEndpointImpl:
        kept.replicationEndpointImpl = peer.replicationEndpointImpl
    if peer.bandwidth:
        kept.bandwidth = peer.bandwidth
    return kept


def _from_1x(kept: pb.ReplicationPeerOf1x) -> pb.ReplicationPeer:
    return pb.ReplicationPeer(
        clusterkey=kept.clusterkey, replicationEndpointImpl=kept.replicationEndpointImpl, data=kept.data,
        configuration=kept.configuration, table_cfs=kept.table_cfs, bandwidth=kept.bandwidth,
    )  # fmt: skip

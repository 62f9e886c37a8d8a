"""Replication peers as znodes, which region servers watch: the only way before 2.0 (ReplicationPeersZKImpl).

`replication/peers/<id>` holds the peer's configuration; `peer-state` below it says whether the peer is enabled. One
transaction creates both: a peer without its state would count as enabled, even if only for a moment.
"""

from __future__ import annotations

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.zookeeper import parse_znode, znode

_PEERS = "replication/peers"
_STATE = "peer-state"


def add(client: Calls, peer_id: str, config: pb.ReplicationPeer, state: pb.ReplicationState) -> None:
    """Add a peer."""
    path = f"{_PEERS}/{peer_id}"
    # Servers cannot read a peer without a cluster. As in HBase's shell, name their own: the endpoint never connects.
    here = pb.ReplicationPeer(clusterkey=_cluster_key(client.address.zookeeper, client.address.znode))
    here.MergeFrom(config)
    client.zookeeper.create({path: znode(here), f"{path}/{_STATE}": znode(state)})


def configs(client: Calls) -> dict[str, tuple[bool, pb.ReplicationPeer]]:
    """All peers."""
    found = {}
    for peer_id in client.zookeeper.children(_PEERS):
        config = client.zookeeper.read(f"{_PEERS}/{peer_id}")
        state = client.zookeeper.read(f"{_PEERS}/{peer_id}/{_STATE}")
        if config is None:
            continue  # removed meanwhile
        disabled = state is not None and parse_znode(state, pb.ReplicationState).state == pb.ReplicationState.DISABLED
        found[peer_id] = not disabled, parse_znode(config, pb.ReplicationPeer)
    return found


def remove(client: Calls, peer_id: str) -> None:
    """Remove a peer; each region server then removes its queue."""
    client.zookeeper.delete(f"{_PEERS}/{peer_id}")


def _cluster_key(zookeeper: str, znode: str) -> str:
    """The cluster key of a peer: "host,host:port:/znode", or "host:port,host:port:port:/znode" if the ports differ."""
    servers = [server.rpartition(":") for server in zookeeper.split(",")]
    ports = {port for _, _, port in servers}
    hosts = ",".join(host for host, _, _ in servers) if len(ports) == 1 else zookeeper
    return f"{hosts}:{servers[0][2]}:{znode}"

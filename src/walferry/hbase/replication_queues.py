"""What is still to be replicated: the queues of all peers in ZooKeeper, and what region servers report of them.

Layout: ZKReplicationQueueStorage, `replication/rs/<server>/<queue id>/<WAL>`. A queue id is the peer's, or, once a live
server has claimed a dead one's queue, "peer-deadserver…". The reports are those of ReplicationLoadSource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.zookeeper import ZooKeeper, first_server, parse_znode

_LIVE_SERVERS = 2  # ClusterStatus.Option
_QUEUES, _FILE_REFS = "replication/rs", "replication/hfile-refs"


@dataclass(frozen=True)
class Queue:
    """The logs of one server that one peer has not shipped whole."""

    peer: str
    holder: str
    """the server that ships them, "host,port,startcode": if it is dead, nobody does until another claims the queue"""
    writer: str
    """the server that wrote them: another one than `holder` in a recovered queue"""
    logs: Mapping[str, tuple[str, ...]]
    """names of WALs by group, oldest first"""
    shipped: Mapping[str, int]
    """by group: how many bytes of its oldest log are shipped, as last recorded; 0 before the first shipment"""

    @property
    def recovered(self) -> bool:
        """Whether its writer is dead."""
        return self.writer != self.holder


@dataclass(frozen=True)
class SourceLoad:
    """What a region server reports of its shipping to a peer."""

    server: str
    peer: str
    queue: str | None
    """id of the queue; since 2.5, before that None: all queues of the peer are one"""
    lag_ms: int
    """by the server's own count"""


def replication_queues(client: Calls, peers: Iterable[str]) -> list[Queue]:
    """All queues of these peers: one request to ZooKeeper for each server, each queue, and each of its groups. (HBase 3
    keeps queues in hbase:replication instead.)"""
    wanted, zookeeper = set(peers), client.zookeeper
    return [
        _queue(zookeeper, holder, queue_id)
        for holder in zookeeper.children(_QUEUES)
        for queue_id in zookeeper.children(f"{_QUEUES}/{holder}")
        if queue_id.partition("-")[0] in wanted
    ]


def _queue(zookeeper: ZooKeeper, holder: str, queue_id: str) -> Queue:
    peer, _, dead = queue_id.partition("-")
    path = f"{_QUEUES}/{holder}/{queue_id}"
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in zookeeper.children(path):
        group, _, number = name.rpartition(".")
        groups.setdefault(group, []).append((int(number) if number.isdecimal() else -1, name))
    logs = {group: tuple(name for _, name in sorted(numbered)) for group, numbered in groups.items()}
    shipped = {group: _position(zookeeper.read(f"{path}/{names[0]}")) for group, names in logs.items()}
    return Queue(peer, holder, first_server(dead) if dead else holder, logs, shipped)


def _position(data: bytes | None) -> int:
    """0 without content: not begun, or gone since."""
    return parse_znode(data, pb.ReplicationHLogPosition).position if data else 0


def waiting_files(client: Calls, peer: str) -> int:
    """How many files of bulk loads a peer has not shipped yet."""
    return len(client.zookeeper.children(f"{_FILE_REFS}/{peer}"))


def source_loads(client: Calls) -> list[SourceLoad]:
    """What the live servers last reported to the master, by server and peer."""
    request = pb.GetClusterStatusRequest(options=[_LIVE_SERVERS])
    answer = client.master_call("GetClusterStatus", request, pb.GetClusterStatusResponse)
    return [
        SourceLoad(
            f"{live.server.host_name},{live.server.port},{live.server.start_code}",
            load.peerID.partition("-")[0],
            load.queueId if load.HasField("queueId") else None,
            load.replicationLag,
        )
        for live in answer.cluster_status.live_servers
        for load in live.server_load.replLoadSource
    ]

"""What is still to be replicated: the queues of all peers in ZooKeeper, and what region servers report of them.

Layout: ZKReplicationQueueStorage, `replication/rs/<server>/<queue id>/<WAL>`. A queue id is the peer's, or, once a live
server has claimed a dead one's queue, "peer-deadserver…". The reports are those of ReplicationLoadSource.

A claim moves a queue from the dead server's znode to the live one's while they are read, so a single reading may see it
in neither. In one transaction, it takes the queue's znode and its logs from there and creates them here: since 2.0
(claimQueue), and in 1.x by default (`hbase.zookeeper.useMulti`); without that, 1.x copies first and deletes then, and
keeps a znode `lock` at the dead server meanwhile (lockOtherRS). HBase's own log cleaner only looks whether the list of
servers has changed (getAllWALs), which since 1.4 happens after the transaction. So here the lists of queues of all
servers are read twice: if none has changed, and no server with a queue that is looked for is locked, each queue was
where it was found throughout.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.zookeeper import Children, ZooKeeper, first_server, parse_znode

_LIVE_SERVERS = 2  # ClusterStatus.Option
_QUEUES, _FILE_REFS = "replication/rs", "replication/hfile-refs"
_LOCK = "lock"
READINGS = 20
"""of all queues, while some of them move"""
PAUSE_SECONDS = 0.1


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


@dataclass(frozen=True)
class QueueNode:
    """The znode of a queue."""

    peer: str
    holder: str
    """as in `Queue`"""
    id: str
    created: int
    """id of the transaction that created it"""
    logs: tuple[str, ...]

    @property
    def writer(self) -> str:
        """As in `Queue`."""
        dead = self.id.partition("-")[2]
        return first_server(dead) if dead else self.holder


def queue_nodes(client: Calls, peers: Iterable[str]) -> list[QueueNode]:
    """All queues of these peers, each exactly once, whatever is claimed meanwhile. A log that is in none of them was
    shipped before this returns, or put into its queue after it was called: two requests to ZooKeeper for each server,
    one for each queue. Raises TransientError if queues move all the time, or a lock stays."""
    wanted, zookeeper = set(peers), client.zookeeper
    zookeeper.catch_up(_QUEUES)
    locks: list[set[str]] = []
    for _ in range(READINGS):
        before = _servers(zookeeper)
        ids = [(holder, one) for holder, queues in before.items() for one in (queues.names if queues else ())]
        wanted_ids = [(holder, one) for holder, one in ids if one.partition("-")[0] in wanted]
        found = [_node(zookeeper, holder, one) for holder, one in wanted_ids]
        stood = [node for node in found if node is not None]
        # A queue is copied whole before it is deleted: under a lock, one that is not listed is where it was copied to.
        locks.append({holder for holder, one in ids if one == _LOCK} & {holder for holder, _ in wanted_ids})
        if not locks[-1] and len(stood) == len(found) and _servers(zookeeper) == before:
            return stood
        time.sleep(PAUSE_SECONDS)
    if stay := sorted(set.intersection(*locks)):
        raise TransientError(
            f"the replication queues of {stay[0]} are locked all the time: {_QUEUES}/{stay[0]}/{_LOCK}, below HBase's "
            f"znode at {zookeeper.hosts}, names the region server that claims them. If that is dead, delete the lock "
            "and restart any region server, which then claims them; else try again later",
            zookeeper=zookeeper.hosts,
        )
    raise TransientError(
        f"replication queues at {zookeeper.hosts} move from server to server all the time: try again later",
        zookeeper=zookeeper.hosts,
    )


def _servers(zookeeper: ZooKeeper) -> dict[str, Children | None]:
    """The list of queues of each server that has one."""
    return {holder: zookeeper.children_at(f"{_QUEUES}/{holder}") for holder in zookeeper.children(_QUEUES)}


def _node(zookeeper: ZooKeeper, holder: str, queue_id: str) -> QueueNode | None:
    found = zookeeper.children_at(f"{_QUEUES}/{holder}/{queue_id}")
    return (
        None if found is None else QueueNode(queue_id.partition("-")[0], holder, queue_id, found.created, found.names)
    )


def replication_queues(client: Calls, peers: Iterable[str]) -> list[Queue]:
    """`queue_nodes` with the positions of their oldest logs: one more request for each group. (HBase 3 keeps queues in
    hbase:replication instead.)"""
    return [_queue(client.zookeeper, node) for node in queue_nodes(client, peers)]


def _queue(zookeeper: ZooKeeper, node: QueueNode) -> Queue:
    path = f"{_QUEUES}/{node.holder}/{node.id}"
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in node.logs:
        group, _, number = name.rpartition(".")
        groups.setdefault(group, []).append((int(number) if number.isdecimal() else -1, name))
    logs = {group: tuple(name for _, name in sorted(numbered)) for group, numbered in groups.items()}
    shipped = {group: _position(zookeeper.read(f"{path}/{names[0]}")) for group, names in logs.items()}
    return Queue(node.peer, node.holder, node.writer, logs, shipped)


def _position(data: bytes | None) -> int:
    """0 without content: not begun, or gone since."""
    return parse_znode(data, pb.ReplicationHLogPosition).position if data else 0


def waiting_files(client: Calls, peer: str) -> list[str]:
    """Names of the files of bulk loads that a peer has not shipped yet."""
    return client.zookeeper.children(f"{_FILE_REFS}/{peer}")


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

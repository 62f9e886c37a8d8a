"""How far HBase's own replication is, and why a queue does not move. Reads both clusters and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from walferry.clock import now_ms, steady_s
from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.hbase.replication_queues import (
    Queue,
    SourceLoad,
    replication_queues,
    source_loads,
    waiting_files,
)
from walferry.hbase.versions import By
from walferry.hbase.zookeeper import first_server
from walferry.replication.causes import Sink, look_at_sink, refusing_tables
from walferry.replication.sink import sink_address, watched_peers
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.replication.unshipped import Edit, Unshipped, unshipped
from walferry.storage import FileSystem
from walferry.wal.copies import log_files_of
from walferry.wal.files import Place, WalFile, list_wals

STUCK_MS = 60_000
"""an enabled peer that has not shipped an edit for longer is stuck or slow"""
READERS = 4
_NEVER_MS = 1 << 62
"""a lag from here on stands for "unknown" (ReplicationLoad)"""
Wals = Mapping[str, WalFile]


@dataclass(frozen=True)
class QueueStatus:
    """The logs of one region server that a peer has not shipped whole. Times in ms."""

    server: str
    """which ships them, "host,port,startcode" """
    writer: str
    """which wrote them: another one than `server` once it is dead and its queue is claimed"""
    state: str
    """live; recovered: from a dead server; unclaimed: of a dead server, and nobody ships it yet"""
    logs: int
    missing_logs: tuple[str, ...]
    """names without a file"""
    bytes: int
    """from the recorded positions to the ends of the logs, edits that the peer does not ship included"""
    bytes_at_least: bool
    """whether more may be there: the name node does not list the end of an open log, which was not read so far"""
    oldest: Edit | None
    """the oldest edit that is not shipped; None: there is none, as far as the logs were read"""
    age_ms: int | None
    """of that edit"""
    read_whole: bool
    """whether the logs were read up to that edit or to their end; else it is younger than `younger_than_ms`"""
    younger_than_ms: int | None
    """age of the newest entry that was read, if no edit to ship was found in what was read"""
    unreadable: str | None
    """why a log could not be read further; None: each was read as far as it had to be"""
    reported_lag_ms: int | None
    """as the server reports it; None: it reports none"""
    shipped_bytes: int | None
    """between the two looks; None with one look"""
    moving: bool | None
    """whether anything was shipped between the two looks, or nothing had to be; None with one look"""
    catch_up_s: float | None
    """seconds until all of `bytes` are shipped at that rate, if nothing else is written; None: not known"""
    stuck: bool
    """whether the peer is enabled and has not shipped its oldest edit for more than a minute: stuck, or slow"""
    causes: tuple[str, ...]
    """why, if it is; the last one names where to look if nothing is known"""


@dataclass(frozen=True)
class PeerStatus:
    """A replication peer and its queues, the worst first."""

    peer: str
    enabled: bool
    serial: bool
    sink: Sink
    logs: int
    log_bytes: int
    """of the logs in its queues, whole"""
    bytes: int
    """not shipped, over all queues"""
    bytes_at_least: bool
    pinned_bytes: int
    """of logs in oldWALs that are in no other peer's queue, so that only this peer keeps them"""
    waiting_files: int
    """files of bulk loads that are not shipped"""
    queues: tuple[QueueStatus, ...]

    @property
    def stuck(self) -> bool:
        """Whether one of its queues is."""
        return any(queue.stuck for queue in self.queues)


@dataclass(frozen=True)
class ReplicationStatus:
    """The replication peers of a source that lead to a cluster, the worst first."""

    source: str
    cluster_id: str
    version: str
    looked_ms: int
    seconds: float
    """between two looks; 0: there was one"""
    peers: tuple[PeerStatus, ...]


@dataclass(frozen=True)
class Look:
    """All peers' queues, and the log's files, at one moment."""

    at_s: float
    at_ms: int
    queues: tuple[Queue, ...]
    wals: Wals


@dataclass(frozen=True)
class Known:
    """What the status of every queue needs."""

    files: FileSystem
    root: str
    now: Look
    before: Look | None
    servers: frozenset[str]
    loads: Sequence[SourceLoad]


def look(spec: ResolvedReplicateSpec, seconds: float = 0) -> ReplicationStatus:
    """Look at all watched peers; twice, so many seconds apart, if `seconds` is not 0.

    Raises UsageError for a source whose queues cannot be read or that lacks the peer, and the errors of its client. A
    sink that cannot be looked at is a fact of its peer.
    """
    address = spec.source.address()
    with HBaseClient(address) as source, closing(log_files_of(address)) as files:
        version = source.version()
        if source.release.queues is not By.ZOOKEEPER:
            raise UsageError(
                f"the source is HBase {version}, which keeps replication queues in a table of its own: only queues in "
                "ZooKeeper can be read, those of HBase 1.4 to 2.6",
                version=version,
            )
        peers, cluster_id = watched_peers(spec, source), source.cluster_id()
        addresses = {peer.id: _sink_address(spec, peer) for peer in peers}
        sinks = _sinks(addresses, cluster_id)
        take = partial(_taken, source, files, address.wal_path)
        before = take() if seconds else None
        time.sleep(seconds)
        now = take()
        servers = frozenset(server.name for server in source.servers())
        known = Known(files, address.wal_path, now, before, servers, source_loads(source))
        waiting = {peer.id: waiting_files(source, peer.id) for peer in peers}
        found = [_peer(peer, sinks[peer.id], addresses[peer.id], waiting[peer.id], known) for peer in peers]
    ordered = tuple(sorted(found, key=_worst_peer))
    return ReplicationStatus(address.cluster, cluster_id, version, now.at_ms, seconds, ordered)


def _sink_address(spec: ResolvedReplicateSpec, peer: PeerConfig) -> ClusterAddress | str:
    """Where a peer leads, or why that cannot be told."""
    try:
        return sink_address(spec, peer)
    except UsageError as error:
        return error.message


def _sinks(addresses: Mapping[str, ClusterAddress | str], source_id: str) -> dict[str, Sink]:
    """The sink of each peer: several that are away are waited for at the same time."""
    places = {place for place in addresses.values() if isinstance(place, ClusterAddress)}
    with ThreadPoolExecutor(READERS, thread_name_prefix="sink") as pool:
        looks = {place: pool.submit(look_at_sink, place, source_id) for place in places}
    return {
        peer: looks[place].result() if isinstance(place, ClusterAddress) else Sink("", fault=place)
        for peer, place in addresses.items()
    }


def _taken(source: HBaseClient, files: FileSystem, root: str) -> Look:
    for again in (True, False):
        at_s, at_ms = steady_s(), now_ms()
        queues = tuple(replication_queues(source, [peer.id for peer in peer_configs(source)]))
        wals = {file.name: file for file in list_wals(files, root)}
        gone = any(name not in wals for queue in queues for name in _logs(queue))
        if not (gone and again):  # a log may have been shipped and deleted between the two requests
            break
    return Look(at_s, at_ms, queues, wals)


def _logs(queue: Queue) -> list[str]:
    return [name for names in queue.logs.values() for name in names]


def _peer(peer: PeerConfig, sink: Sink, place: ClusterAddress | str, waiting: int, known: Known) -> PeerStatus:
    queues = [queue for queue in known.now.queues if queue.peer == peer.id and queue.logs]
    with ThreadPoolExecutor(READERS, thread_name_prefix="queue") as readers:
        found = list(readers.map(lambda one: unshipped(known.files, known.root, one, peer, sink.uuid), queues))
    shown = [queue_status(queue, read, peer, known) for queue, read in zip(queues, found, strict=True)]
    tables: dict[str, frozenset[str]] = {}
    for one, read in zip(shown, found, strict=True):
        for table, families in read.tables.items() if one.stuck else ():
            tables[table] = tables.get(table, frozenset()) | families
    refusals = refusing_tables(place, tables) if tables and sink.fault is None and not isinstance(place, str) else {}
    shown = [
        replace(one, causes=tuple(causes_of(one, read, peer, sink, refusals))) if one.stuck else one
        for one, read in zip(shown, found, strict=True)
    ]
    names = {name for queue in queues for name in _logs(queue)}
    ends = {name: end for read in found for name, end in read.ends.items()}
    others = {name for queue in known.now.queues if queue.peer != peer.id for name in _logs(queue)}
    return PeerStatus(
        peer.id, peer.enabled, peer.serial, sink if sink.address else replace(sink, address=peer.cluster_key),
        sum(queue.length for queue in queues), sum(_length(name, known.now.wals, ends) for name in names),
        sum(queue.bytes for queue in shown), any(queue.bytes_at_least for queue in shown),
        pinned_bytes(known.now.wals, names, others), waiting, tuple(sorted(shown, key=_worst_queue)),
    )  # fmt: skip


def _length(name: str, wals: Wals, ends: Mapping[str, int]) -> int:
    """Bytes of a log, at least those that were read: the name node lists an open one with fewer."""
    return max(wals[name].length if name in wals else 0, ends.get(name, 0))


def pinned_bytes(wals: Wals, names: Collection[str], others: Collection[str]) -> int:
    """Bytes of the archived files with these names, without those that are among the others."""
    only = [wals[name] for name in names if name in wals and name not in others]
    return sum(file.length for file in only if file.place is Place.ARCHIVED)


def queue_status(queue: Queue, found: Unshipped, peer: PeerConfig, known: Known) -> QueueStatus:
    """A queue as it is now, without causes."""
    now, oldest = known.now, found.oldest
    missing = tuple(name for name in _logs(queue) if name not in now.wals and name not in found.ends)
    waiting = bytes_waiting(queue, now.wals, found.ends)
    age = None if oldest is None else max(0, now.at_ms - oldest.write_ms)
    newest = None if oldest or found.whole or found.read_to_ms is None else max(0, now.at_ms - found.read_to_ms)
    shipped = seconds = None
    if known.before is not None:
        key = (queue.peer, queue.holder, queue.writer)
        seconds = now.at_s - known.before.at_s
        earlier = [one for one in known.before.queues if (one.peer, one.holder, one.writer) == key]
        lengths = {name: file.length for wals in (known.before.wals, now.wals) for name, file in wals.items()}
        shipped = shipped_between(earlier[0], queue, lengths) if earlier else None
    # An edit that was written after the first look says nothing.
    had_to = oldest is not None and known.before is not None and oldest.write_ms < known.before.at_ms
    state = "unclaimed" if queue.holder not in known.servers else "recovered" if queue.recovered else "live"
    return QueueStatus(
        server=queue.holder,
        writer=queue.writer,
        state=state,
        logs=queue.length,
        missing_logs=missing,
        bytes=waiting,
        bytes_at_least=any(_may_have_more(names[-1], now.wals, found) for names in queue.logs.values()),
        oldest=oldest,
        age_ms=age,
        read_whole=found.whole,
        younger_than_ms=newest,
        unreadable=found.unreadable,
        reported_lag_ms=reported_lag(queue, known.loads),
        shipped_bytes=shipped,
        moving=None if shipped is None else shipped > 0 or not had_to,
        catch_up_s=waiting / shipped * seconds if shipped and seconds and oldest else None,
        stuck=peer.enabled and age is not None and age > STUCK_MS,
        causes=(),
    )


def _may_have_more(name: str, wals: Wals, found: Unshipped) -> bool:
    return name in wals and wals[name].place is not Place.ARCHIVED and name not in found.read_to_end


def bytes_waiting(queue: Queue, wals: Wals, ends: Mapping[str, int]) -> int:
    """Bytes of a queue's logs past its positions. `ends`: how many bytes of logs were read."""
    total = 0
    for group, names in queue.logs.items():
        for name in names:
            total += max(0, _length(name, wals, ends) - (queue.shipped[group] if name == names[0] else 0))
    return total


def shipped_between(before: Queue, after: Queue, lengths: Mapping[str, int]) -> int:
    """Bytes by which the positions of a queue have moved on; at least so many, if logs came and went meanwhile."""
    total = 0
    for group, names in before.logs.items():
        left = after.logs.get(group, ())
        done = sum(lengths.get(name, 0) for name in names if name not in left)
        total += done + after.shipped.get(group, 0) - before.shipped[group]
    return max(0, total)


def reported_lag(queue: Queue, loads: Sequence[SourceLoad]) -> int | None:
    """The lag that the server which ships a queue reports of it; before 2.6 of all that it ships to the peer."""
    lags = [
        load.lag_ms
        for load in loads
        if (load.server, load.peer) == (queue.holder, queue.peer)
        and (load.queue is None or _writer(load) == queue.writer)
        and load.lag_ms < _NEVER_MS
    ]
    return max(lags, default=None)


def _writer(load: SourceLoad) -> str:
    dead = (load.queue or "").partition("-")[2]
    return first_server(dead) if dead else load.server


def causes_of(
    queue: QueueStatus, found: Unshipped, peer: PeerConfig, sink: Sink, refusals: Mapping[str, str]
) -> list[str]:
    """Why a queue is stuck, the surest first. `refusals`: why the sink refuses edits, by table."""
    causes = []
    if queue.state == "unclaimed":
        causes.append("its server is dead, and no other server has claimed the queue yet")
    if sink.fault is not None:
        causes.append(sink.fault)
    causes += [refusals[table] for table in sorted(found.tables) if table in refusals]
    if causes or queue.moving:
        return causes
    if peer.serial:
        causes.append("perhaps the peer is serial, and earlier edits of the same region wait on another server")
    if peer.bandwidth:
        causes.append(f"perhaps the peer's own limit: {peer.bandwidth} bytes per second for each region server")
    host, port, _ = queue.server.split(",")
    return [*causes, f"unknown: look for ReplicationSource and {peer.id} in the log of region server {host},{port}"]


def _worst_queue(queue: QueueStatus) -> tuple[bool, bool, int, int, str]:
    return not queue.stuck, queue.unreadable is None, -(queue.age_ms or 0), -queue.bytes, queue.writer


def _worst_peer(peer: PeerStatus) -> tuple[bool, int, int, str]:
    return not peer.stuck, -max((queue.age_ms or 0 for queue in peer.queues), default=0), -peer.bytes, peer.peer

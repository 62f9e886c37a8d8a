"""How far HBase's own replication is, and why a queue does not move. Reads both clusters and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial

from walferry.amounts import first_of
from walferry.clock import now_ms, steady_s
from walferry.errors import UsageError
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
from walferry.replication.causes import PERHAPS, refusing_tables
from walferry.replication.sink import PlaceOrWhy, Sink, addresses_of, sinks_of, watched_peers
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.replication.unshipped import Edit, Unshipped, unshipped
from walferry.storage import FileSystem
from walferry.wal.copies import log_files_of
from walferry.wal.files import Place, WalFile, list_wals, parse_wal_name

STUCK_MS = 60_000
"""an enabled peer that has not shipped an edit for longer is stuck or slow"""
READERS = 4
_NEVER_MS = 1 << 62
"""a lag from here on stands for "unknown" (ReplicationLoad)"""
Wals = Mapping[str, WalFile]


@dataclass(frozen=True)
class QueueStatus:
    """The logs of one region server, or of one of the groups that it writes at once (`hbase.wal.provider`), that a peer
    has not shipped whole: each group is shipped by itself. Times in ms."""

    server: str
    """which ships them, "host,port,startcode" """
    writer: str
    """which wrote them: another one than `server` once it is dead and its queue is claimed"""
    group: str
    """of the logs: what their names begin with"""
    state: str
    """live; recovered: from a dead server; unclaimed: of a dead server, and nobody ships it yet"""
    logs: int
    lost_logs: tuple[str, ...]
    """names without a file"""
    headless_logs: tuple[str, ...]
    """without a complete header, although nobody writes to them any more"""
    bytes: int
    """from the recorded positions to the ends of the logs, edits that the peer does not ship included"""
    bytes_at_least: bool
    """whether more may be there: the name node does not list the end of an open log, which was not read so far"""
    oldest: Edit | None
    """the oldest edit that is not shipped; None: there is none, as far as the logs were read"""
    age_ms: int | None
    """of that edit"""
    read_whole: bool
    """whether the logs that are there were read up to that edit or to their end; else older ones may follow"""
    younger_than_ms: int | None
    """age of the newest entry that was read, if not all was: what follows is no older; None: it is not known"""
    unreadable: str | None
    """why a log could not be read further; None: each was read as far as it had to be"""
    reported_lag_ms: int | None
    """as the server reports it, of all groups together; None: it reports none"""
    shipped_bytes: int | None
    """between the two looks; None with one look"""
    moving: bool | None
    """whether anything was shipped between the two looks, or surely nothing had to be; None with one look"""
    catch_up_s: float | None
    """seconds until all of `bytes` are shipped at that rate, if nothing else is written; None: not known"""
    stuck: bool
    """whether the peer is enabled and has not shipped its oldest edit for more than a minute: stuck, or slow"""
    perhaps_stuck: bool
    """whether that may be so of an edit in what was not read, and nothing is known to have been shipped meanwhile; or
    a log has no header, which stops HBase by default"""
    causes: tuple[str, ...]
    """why, and what is wrong with its logs; one that begins with "perhaps" is not proved, and the last one names where
    to look if none is"""

    @property
    def unjudged(self) -> bool:
        """Whether a log could not be read far enough to tell what waits."""
        return self.unreadable is not None and not self.read_whole


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
    servers_without_queue: tuple[str, ...]
    """live region servers that have no queue of it, if it is enabled or has none at all"""
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
    lost: frozenset[str] = frozenset()
    """logs of the queues that no listing has"""


@dataclass(frozen=True)
class Known:
    """What the status of every queue needs."""

    files: FileSystem
    root: str
    now: Look
    before: Look | None
    servers: frozenset[str]
    loads: Sequence[SourceLoad]
    stuck_ms: int = STUCK_MS

    @cached_property
    def earlier(self) -> Mapping[tuple[str, str, str], Queue]:
        """The queues of the first look."""
        return {_key(queue): queue for queue in self.before.queues} if self.before else {}

    @cached_property
    def lengths(self) -> Mapping[str, int]:
        """Of the logs of both looks, by name."""
        looks = [one for one in (self.before, self.now) if one is not None]
        return {name: file.length for one in looks for name, file in one.wals.items()}


def _key(queue: Queue) -> tuple[str, str, str]:
    return queue.peer, queue.holder, queue.writer


def require_readable_queues(source: HBaseClient, name: str = "source") -> None:
    """Raise UsageError for a cluster of this name that does not keep its queues in ZooKeeper."""
    version = source.version()
    if source.release.queues is not By.ZOOKEEPER:
        raise UsageError(
            f"the {name} is HBase {version}, which keeps replication queues in a table of its own: only queues in "
            "ZooKeeper can be read, those of HBase 1.4 to 2.6",
            version=version,
        )


def look(spec: ResolvedReplicateSpec, seconds: float = 0, stuck_ms: int | None = None) -> ReplicationStatus:
    """Look at all watched peers; twice, so many seconds apart, if `seconds` is not 0. `stuck_ms`: STUCK_MS, or what
    stands for it.

    Raises UsageError for a source whose queues cannot be read or that lacks the peer, and the errors of its client. A
    sink that cannot be looked at is a fact of its peer.
    """
    address = spec.source.address()
    with HBaseClient(address) as source, closing(log_files_of(address)) as files:
        require_readable_queues(source)
        version = source.version()
        peers, cluster_id = watched_peers(spec, peer_configs(source)), source.cluster_id()
        addresses = addresses_of(spec, peers)
        sinks = sinks_of(peers, addresses, cluster_id)
        take = partial(taken, source, files, address.wal_path)
        before = take() if seconds else None
        time.sleep(seconds)
        now = take()
        servers = frozenset(server.name for server in source.servers())
        loads, least = source_loads(source), STUCK_MS if stuck_ms is None else stuck_ms
        known = Known(files, address.wal_path, now, before, servers, loads, least)
        waiting = {peer.id: len(waiting_files(source, peer.id)) for peer in peers}
        found = [_peer(peer, sinks[peer.id], addresses[peer.id], waiting[peer.id], known) for peer in peers]
    ordered = tuple(sorted(found, key=worst_peer))
    return ReplicationStatus(address.cluster, cluster_id, version, now.at_ms, seconds, ordered)


def taken(source: HBaseClient, files: FileSystem, root: str) -> Look:
    """The queues of all peers, and the log's files."""
    found = _taken_once(source, files, root)
    if not found.lost:
        return found
    again = _taken_once(source, files, root)  # a log may have been shipped and deleted between the two requests
    return replace(again, lost=again.lost & found.lost)


def _taken_once(source: HBaseClient, files: FileSystem, root: str) -> Look:
    at_s, at_ms = steady_s(), now_ms()
    queues = tuple(replication_queues(source, [peer.id for peer in peer_configs(source)]))
    wals = {file.name: file for file in list_wals(files, root)}
    names = {name for queue in queues for name in _logs(queue)}
    return Look(at_s, at_ms, queues, wals, frozenset(name for name in names - wals.keys() if parse_wal_name(name)))


def _logs(queue: Queue) -> list[str]:
    return [name for names in queue.logs.values() for name in names]


def _peer(peer: PeerConfig, sink: Sink, place: PlaceOrWhy, waiting: int, known: Known) -> PeerStatus:
    queues = [queue for queue in known.now.queues if queue.peer == peer.id]
    groups = [(queue, group) for queue in queues for group in queue.logs]
    with ThreadPoolExecutor(READERS, thread_name_prefix="queue") as readers:
        found = list(readers.map(partial(_unshipped, peer, sink, known), groups))
    shown = [queue_status(*one, read, peer, known) for one, read in zip(groups, found, strict=True)]
    tables: dict[str, frozenset[str]] = {}
    for one, read in zip(shown, found, strict=True):
        for table, families in read.tables.items() if one.stuck else ():
            tables[table] = tables.get(table, frozenset()) | families
    refusals = refusing_tables(place, tables) if tables and sink.fault is None and not isinstance(place, str) else {}
    shown = [
        replace(one, causes=tuple(causes_of(one, read, peer, sink, refusals)))
        for one, read in zip(shown, found, strict=True)
    ]
    names = {name for queue in queues for name in _logs(queue)}
    ends = {name: end for read in found for name, end in read.ends.items()}
    others = {name for queue in known.now.queues if queue.peer != peer.id for name in _logs(queue)}
    return PeerStatus(
        peer.id, peer.enabled, peer.serial, sink, sum(queue.logs for queue in shown),
        sum(_length(name, known.now.wals, ends) for name in names),
        sum(queue.bytes for queue in shown), any(queue.bytes_at_least for queue in shown),
        pinned_bytes(known.now.wals, names, others), waiting, servers_without_queue(peer, known),
        tuple(sorted(shown, key=worst_queue)),
    )  # fmt: skip


def _unshipped(peer: PeerConfig, sink: Sink, known: Known, one: tuple[Queue, str]) -> Unshipped:
    return unshipped(known.files, known.root, *one, known.now.wals, peer, sink.uuid)


def servers_without_queue(peer: PeerConfig, known: Known) -> tuple[str, ...]:
    """The live servers without a queue of an enabled peer, or of one that has no queue at all."""
    of_peer = [queue for queue in known.now.queues if queue.peer == peer.id]
    if of_peer and not peer.enabled:
        return ()
    return tuple(sorted(known.servers - {queue.holder for queue in of_peer if not queue.recovered}))


def _length(name: str, wals: Wals, ends: Mapping[str, int]) -> int:
    """Bytes of a log, at least those that were read: the name node lists an open one with fewer."""
    return max(wals[name].length if name in wals else 0, ends.get(name, 0))


def pinned_bytes(wals: Wals, names: Collection[str], others: Collection[str]) -> int:
    """Bytes of the archived files with these names, without those that are among the others."""
    only = [wals[name] for name in names if name in wals and name not in others]
    return sum(file.length for file in only if file.place is Place.ARCHIVED)


def queue_status(queue: Queue, group: str, found: Unshipped, peer: PeerConfig, known: Known) -> QueueStatus:
    """A group of a queue as it is now, without causes."""
    now, oldest, logs = known.now, found.oldest, queue.logs[group]
    lost = tuple(name for name in logs if name in now.lost)
    waiting = bytes_waiting(queue, group, now.wals, found.ends)
    age = None if oldest is None else max(0, now.at_ms - oldest.write_ms)
    newest = None if found.whole or found.read_to_ms is None else max(0, now.at_ms - found.read_to_ms)
    shipped = seconds = None
    if known.before is not None:
        seconds = now.at_s - known.before.at_s
        earlier = known.earlier.get(_key(queue))
        if earlier is not None and group in earlier.logs:
            shipped = shipped_between(earlier, queue, group, known.lengths)
    # An edit that was written after the first look says nothing.
    had_to = oldest is not None and known.before is not None and oldest.write_ms < known.before.at_ms
    idle = found.whole and not had_to and not lost and not found.headless
    stuck = peer.enabled and age is not None and age > known.stuck_ms
    old_may_follow = not found.whole and found.unreadable is None and (newest is None or newest > known.stuck_ms)
    state = "unclaimed" if queue.holder not in known.servers else "recovered" if queue.recovered else "live"
    return QueueStatus(
        server=queue.holder,
        writer=queue.writer,
        group=group,
        state=state,
        logs=len(logs),
        lost_logs=lost,
        headless_logs=found.headless,
        bytes=waiting,
        bytes_at_least=_may_have_more(logs[-1], now.wals, found),
        oldest=oldest,
        age_ms=age,
        read_whole=found.whole,
        younger_than_ms=newest,
        unreadable=found.unreadable,
        reported_lag_ms=reported_lag(queue, known.loads),
        shipped_bytes=shipped,
        moving=None if shipped is None else shipped > 0 or idle,
        catch_up_s=waiting / shipped * seconds if shipped and seconds and oldest else None,
        stuck=stuck,
        perhaps_stuck=peer.enabled and not stuck and not shipped and (old_may_follow or bool(found.headless)),
        causes=(),
    )


def _may_have_more(name: str, wals: Wals, found: Unshipped) -> bool:
    return name in wals and wals[name].place is not Place.ARCHIVED and name not in found.read_to_end


def bytes_waiting(queue: Queue, group: str, wals: Wals, ends: Mapping[str, int]) -> int:
    """Bytes of a group's logs past its position. `ends`: how many bytes of logs were read."""
    first, *others = (_length(name, wals, ends) for name in queue.logs[group])
    return max(0, first - queue.shipped[group]) + sum(others)


def shipped_between(before: Queue, after: Queue, group: str, lengths: Mapping[str, int]) -> int:
    """Bytes by which the position of a group has moved on; at least so many, if logs came and went meanwhile."""
    done = sum(lengths.get(name, 0) for name in before.logs[group] if name not in after.logs[group])
    return max(0, done + after.shipped[group] - before.shipped[group])


def reported_lag(queue: Queue, loads: Sequence[SourceLoad]) -> int | None:
    """The lag that the server which ships a queue reports of it; before 2.5 of all that it ships to the peer."""
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
    queue: QueueStatus, found: Unshipped, peer: PeerConfig, sink: Sink, refusals: Mapping[str, Sequence[str]]
) -> list[str]:
    """Why a queue is stuck, or may be, and what is wrong with its logs; what is proved comes first. `refusals`: why the
    sink refuses edits, by table."""
    causes = _of_logs(queue)
    waits = queue.stuck or queue.perhaps_stuck or (queue.unjudged and peer.enabled)
    if not waits:
        return causes
    if queue.state == "unclaimed":
        causes.append("its server is dead, and no other server has claimed the queue yet")
    if sink.fault is not None:
        causes.append(sink.fault if sink.proved else f"{PERHAPS}its cluster takes no changes: {sink.fault}")
    causes += [cause for table in sorted(found.tables) for cause in refusals.get(table, ())]
    causes.sort(key=lambda cause: cause.startswith(PERHAPS))
    if queue.moving or (causes and not causes[0].startswith(PERHAPS)):
        return causes
    if queue.oldest is not None and queue.oldest.row is None:
        causes.append(f"{PERHAPS}the sink cannot read the files of the source (hbase.replication.conf.dir there)")
    if peer.serial:
        causes.append(f"{PERHAPS}the peer is serial, and earlier edits of the same region wait on another server")
    if peer.bandwidth:
        causes.append(f"{PERHAPS}the peer's own limit: {peer.bandwidth} bytes per second for each region server")
    host, port, _ = queue.server.split(",")
    return [*causes, f"unknown: look for ReplicationSource and {peer.id} in the log of region server {host},{port}"]


def _of_logs(queue: QueueStatus) -> list[str]:
    """What is wrong with the logs of a queue."""
    causes = []
    if queue.lost_logs:
        causes.append(
            f"log lost: HDFS has no such file: {first_of(queue.lost_logs)}: its edits are gone, or block the queue"
        )
    if queue.headless_logs:
        causes.append(
            f"log without a complete header: {first_of(queue.headless_logs)}: HBase goes on to the next one only with "
            "replication.source.eof.autorecovery, which is off by default"
        )
    if queue.unreadable is not None:
        causes.append(f"{PERHAPS}its region server cannot read on either: {queue.unreadable}")
    return causes


def _trouble(queue: QueueStatus) -> tuple[bool, bool, bool, bool]:
    return not queue.lost_logs, not queue.stuck, not queue.perhaps_stuck, not queue.unjudged


def worst_queue(queue: QueueStatus) -> tuple[tuple[bool, ...], int, int, str, str]:
    """The key by which queues are shown in order."""
    return _trouble(queue), -(queue.age_ms or 0), -queue.bytes, queue.writer, queue.group


def worst_peer(peer: PeerStatus) -> tuple[tuple[bool, ...], int, int, str]:
    """The same of peers."""
    worst = min((_trouble(queue) for queue in peer.queues), default=(True,) * 4)
    return worst, -max((queue.age_ms or 0 for queue in peer.queues), default=0), -peer.bytes, peer.peer

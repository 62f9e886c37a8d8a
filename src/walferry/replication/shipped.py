"""Prove that what was written to a source before a moment has been shipped, by the names of logs alone.

HBase puts a log into the queues of all peers before the first edit is written to it, for each group of multiwal by
itself (ReplicationSourceWALActionListener.preLogRoll). It takes a log out once all of it is shipped, and never one that
is being written. So every edit that was acknowledged before a moment is shipped once all logs that the queues had after
that moment are gone from them: the *fence*. The servers are asked to roll their logs, so that they go on in new ones. A
log keeps its name when its server dies and another one claims its queue, so the same fence holds for the queues of
servers that are dead, or die meanwhile.

What proves nothing is refused: logs whose files are lost, which HBase may pass over; servers whose log is in no queue;
a queue of a live server that is gone, since its peer was removed. Edits that skip the log are not shipped at all, and
edits that are acknowledged before they are logged (ASYNC_WAL) may be in a newer log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from walferry.amounts import amount, first_of
from walferry.clock import iso, now_ms, steady_s
from walferry.errors import TransientError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.hbase.replication_queues import QueueNode, queue_nodes, waiting_files
from walferry.hbase.zookeeper import Server
from walferry.replication.finding import NotReplicatedError
from walferry.replication.sink import watched_peers
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.replication.status import look, require_readable_queues
from walferry.storage import FileSystem
from walferry.wal.copies import log_files_of
from walferry.wal.files import Place, WalFile, list_wals, parse_wal_name

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""between two looks at the queues; longer if a look takes longer"""
SETTLE_SECONDS = 10.0
"""that a log may lack its file, or its place in the queues, as it does while a server starts or rolls"""
ROLL_AGAIN_SECONDS = 10.0
"""after which a server that has not gone on is asked again: one that is just rolling may forget the first request"""
IDLE_SECONDS = 300
"""so long may a server that has had nothing to ship wait until it reads its log again: each time a second longer, up to
`replication.source.maxretriesmultiplier` times `replication.source.sleepforretries` (ReplicationSourceWALReader.run)"""
STAYS_SECONDS, STAYS_ROLLS = 30.0, 3
"""how long the same logs may be left of a server that has gone on before it is asked once more, and how many times.
HBase takes an idle server's older log out of its queue with the next entry that it reads, or with the next log"""
ROLLERS = 8
NAMED = 3
"""stuck queues that an error names"""


@dataclass(frozen=True)
class Shipped:
    """What a peer has shipped. Times are of this machine's clock."""

    peer: str
    rolled_ms: int
    """all that was acknowledged before is shipped"""
    shipped_ms: int | None
    """when that was seen; None: nothing was rolled, in a dry run"""
    queues: int
    logs: int
    """in those queues after the roll was decided"""
    files: int
    """of bulk loads that waited then"""


def line(one: Shipped) -> str:
    """As people read it."""
    waited = f"{amount(one.logs, 'log')} in {amount(one.queues, 'queue')}"
    if one.files:
        waited += f" and {amount(one.files, 'file')} of bulk loads"
    if one.shipped_ms is None:
        return f"peer {one.peer}: the log of each region server would be rolled, and {waited} waited for"
    seconds = (one.shipped_ms - one.rolled_ms) / 1000
    return (
        f"peer {one.peer}: all that was written before {iso(one.rolled_ms)} is shipped: {waited}, after {seconds:.1f} s"
    )


@dataclass(frozen=True)
class Fence:
    """What a peer had to ship at a moment: logs by name, files of bulk loads, and its queues."""

    peer: str
    at_ms: int
    logs: frozenset[str]
    files: frozenset[str]
    queues: Mapping[tuple[str, str], int]
    """by holder and id: the transaction that created it"""

    @classmethod
    def of(cls, peer: str, at_ms: int, nodes: Collection[QueueNode], files: Collection[str]) -> Fence:
        """The fence after the logs that are in the queues now."""
        mine = [node for node in nodes if node.peer == peer]
        logs = frozenset(name for node in mine for name in node.logs)
        return cls(peer, at_ms, logs, frozenset(files), {(node.holder, node.id): node.created for node in mine})

    def left(self, nodes: Collection[QueueNode]) -> dict[QueueNode, list[str]]:
        """The logs before the fence that queues still have, oldest first, under whichever server."""
        mine = {
            node: sorted(self.logs.intersection(node.logs), key=_number) for node in nodes if node.peer == self.peer
        }
        return {node: names for node, names in mine.items() if names}

    def removed(self, nodes: Collection[QueueNode], live: Collection[str]) -> list[str]:
        """Live servers whose own queue is not the one that it was: somebody has removed the peer, and perhaps added it
        again. The queue of a dead server goes once it is claimed, a claimed one once it is shipped."""
        now = {(node.holder, node.id): node.created for node in nodes}
        return sorted(
            holder
            for (holder, queue_id), created in self.queues.items()
            if queue_id == self.peer and holder in live and now.get((holder, queue_id)) != created
        )


def _number(name: str) -> tuple[int, str]:
    parsed = parse_wal_name(name)
    return (parsed.number if parsed else -1), name


def _group(name: str) -> str:
    return name.rpartition(".")[0]


def written(node: QueueNode, names: Collection[str]) -> bool:
    """Whether the server of the queue may still write to a log before the fence: it is its own queue, and one of the
    logs that are left, `names`, is the newest of its group."""
    newest = {_group(name): name for name in sorted(node.logs, key=_number)}
    return node.writer == node.holder and not set(newest.values()).isdisjoint(names)


def ship_all(
    spec: ResolvedReplicateSpec, wait_s: float, *, dry_run: bool = False, told: Callable[[str], None] = log.info
) -> list[Shipped]:
    """`ship` with clients of its own."""
    address = spec.source.address()
    with HBaseClient(address) as source, closing(log_files_of(address)) as files:
        return ship(spec, source, files, address.wal_path, wait_s, dry_run=dry_run, told=told)


def ship(
    spec: ResolvedReplicateSpec, source: HBaseClient, files: FileSystem, root: str, wait_s: float, *,
    dry_run: bool = False, told: Callable[[str], None] = log.info,
) -> list[Shipped]:  # fmt: skip
    """Roll the logs of the source's region servers, and wait until all that was written before is shipped by each
    watched peer. With `dry_run`, only look what would have to be shipped. `told` hears how much is left. `files`,
    `root`: where the source's logs are.

    Raises NotReplicatedError if it cannot be shipped, or is not within `wait_s` seconds: it names queue, log and cause.
    Raises UsageError for a source whose queues cannot be read or that lacks the peer, and the errors of its client.
    """
    deadline = steady_s() + wait_s
    require_readable_queues(source)
    peers, rolled_ms = _enabled(spec, peer_configs(source)), now_ms()
    fences = _fences(source, files, root, peers, rolled_ms)
    if dry_run:
        return [Shipped(one.peer, one.at_ms, None, len(one.queues), len(one.logs), len(one.files)) for one in fences]
    waiting = _Waiting(spec, source, fences, wait_s, told)
    waiting.until(deadline)
    return waiting.done


def _enabled(spec: ResolvedReplicateSpec, there: Sequence[PeerConfig]) -> list[str]:
    """The watched peers, of those of the source. Raises NotReplicatedError if one is disabled, or there is none."""
    peers = watched_peers(spec, there)
    if not peers:
        raise NotReplicatedError("no replication peer leads to a cluster", findings=[])
    if disabled := [peer.id for peer in peers if not peer.enabled]:
        ids = ", ".join(disabled)
        raise NotReplicatedError(
            f"peer {ids} is disabled, and ships nothing: enable_peer '{disabled[0]}'", findings=disabled
        )
    return [peer.id for peer in peers]


# ------------------------------------------------------------------ the fence


def _fences(source: HBaseClient, files: FileSystem, root: str, peers: Sequence[str], at_ms: int) -> list[Fence]:
    """The fence of each peer. Raises NotReplicatedError for logs that are lost or in no queue."""
    deadline = steady_s() + SETTLE_SECONDS
    wals = list_wals(files, root)
    while True:
        waiting = {peer: waiting_files(source, peer) for peer in peers}
        nodes, servers = queue_nodes(source, peers), source.servers()
        faults = [fault for peer in peers for fault in unqueued(peer, nodes, wals, servers)]
        wals = list_wals(files, root)
        names = {name for node in nodes for name in node.logs if parse_wal_name(name)}
        lost = sorted(names - {file.name for file in wals})
        faults += [f"log lost: HDFS has no such file: {name}" for name in lost]
        if not faults:
            return [Fence.of(peer, at_ms, nodes, waiting[peer]) for peer in peers]
        if steady_s() > deadline:
            raise NotReplicatedError(
                f"it cannot be told what is shipped: {first_of(faults, most=NAMED)}", findings=faults
            )
        time.sleep(LOOK_SECONDS)


def unqueued(
    peer: str, nodes: Collection[QueueNode], listed: Collection[WalFile], servers: Collection[Server]
) -> list[str]:
    """Live servers with a log that no queue of the peer knows. `listed`: the logs before the queues were read."""
    known: dict[str, int] = {}
    for node in nodes:
        for parsed in map(parse_wal_name, node.logs) if node.peer == peer else ():
            if parsed is not None:
                known[parsed.group] = max(known.get(parsed.group, 0), parsed.number)
    live, newest = {server.name for server in servers}, dict[str, WalFile]()
    for file in listed:
        if file.server in live and file.place is Place.LIVE:
            newest[file.group] = max(file, newest.get(file.group, file), key=lambda one: one.number)
    return [
        f"peer {peer}: no queue at {file.server} has its log {file.name}: hbase.replication may be off there"
        for group, file in sorted(newest.items())
        if known.get(group, -1) < file.number
    ]


# ------------------------------------------------------------------ roll and wait


class _Waiting:
    """Fences, and what is still before them."""

    def __init__(
        self, spec: ResolvedReplicateSpec, source: HBaseClient, fences: Sequence[Fence], wait_s: float,
        told: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._spec, self._source, self._wait_s, self._told = spec, source, wait_s, told
        self._open = {fence.peer: fence for fence in fences}
        self._asked_s = 0.0
        self._stayed: dict[tuple[str, str], tuple[list[str], float, int]] = {}
        """by peer and server: the logs that are left of it, since when these, how many times it was asked once more"""
        self._said: dict[str, str] = {}
        """the last line by peer; of looks that failed by ""."""
        self._asked: dict[str, str] = {}
        """live servers that were asked to roll: why that failed, "" if it did not"""
        self.done: list[Shipped] = []

    def until(self, deadline: float) -> None:
        """Wait until nothing is before the fences. A look that fails, as while ZooKeeper elects its leader, has seen
        nothing; its error is raised only after the deadline."""
        while True:
            began = steady_s()
            try:
                left, files = self._look()
                if not self._open:
                    return
                own = [
                    (node, names) for of in left.values() for node, names in of.items() if node.writer == node.holder
                ]
                self._roll(
                    {node.holder for node, names in own if written(node, names)},
                    {(node.peer, node.holder) for node, names in own if self._stays(node, names)},
                )
            except TransientError as error:
                if steady_s() > deadline:
                    raise
                self._say("", f"the queues cannot be looked at: {error}")
            else:
                if steady_s() > deadline:
                    raise self._too_slow(left, files)
            time.sleep(max(LOOK_SECONDS, steady_s() - began))

    def _look(self) -> tuple[dict[str, dict[QueueNode, list[str]]], dict[str, list[str]]]:
        """By peer: queues with logs before the fence, and files of bulk loads from then."""
        nodes = queue_nodes(self._source, self._open)
        # A server that is alive after its queue was looked for was alive then, and a peer is removed before its queues.
        live = {server.name for server in self._source.servers()}
        there = peer_configs(self._source)
        if gone := sorted(self._open.keys() - {peer.id for peer in there}):
            raise NotReplicatedError(
                f"peer {gone[0]} was removed meanwhile, and nobody knows what it had not shipped", findings=gone
            )
        _enabled(self._spec, there)
        left = {peer: fence.left(nodes) for peer, fence in self._open.items()}
        files = {
            peer: sorted(fence.files.intersection(waiting_files(self._source, peer))) if fence.files else []
            for peer, fence in self._open.items()
        }
        for peer, fence in list(self._open.items()):
            if removed := fence.removed(nodes, live):
                raise NotReplicatedError(
                    f"peer {peer} was removed meanwhile, and perhaps added again: its queue at {first_of(removed)} is "
                    "gone, and nobody knows what that had not shipped",
                    findings=removed,
                )
            if not left[peer] and not files[peer]:
                self.done.append(
                    Shipped(peer, fence.at_ms, now_ms(), len(fence.queues), len(fence.logs), len(fence.files))
                )
                del self._open[peer]
            self._tell(fence, left[peer], files[peer])
        return left, files

    def _tell(self, fence: Fence, left: Mapping[QueueNode, list[str]], files: Sequence[str]) -> None:
        more = f", and {amount(len(files), 'file')} of bulk loads" if files else ""
        logs = sum(map(len, left.values()))
        queues = f"{len(left)} of {amount(len(fence.queues), 'queue')}"
        self._say(fence.peer, f"peer {fence.peer}: {queues} left, {amount(logs, 'log')}{more}")

    def _say(self, about: str, line: str) -> None:
        """Tell a line unless it was the last one about this."""
        if self._said.get(about) != line:
            self._told(line)
        self._said[about] = line

    def _stays(self, node: QueueNode, names: Sequence[str]) -> bool:
        """Whether a server that has gone on is to be asked once more."""
        now, key, left = steady_s(), (node.peer, node.holder), list(names)
        before, since_s, rolls = self._stayed.get(key, ([], now, 0))
        if left != before:
            since_s = now
        self._stayed[key] = (left, since_s, rolls)
        return now - max(since_s, self._asked_s) >= STAYS_SECONDS and rolls < STAYS_ROLLS

    def _roll(self, writing: Collection[str], staying: Collection[tuple[str, str]]) -> None:
        """Ask servers to roll, once in a while: those that still write to a log before the fence, and, by peer and
        server, those that have gone on. One that dies needs no roll. One that has gone on is asked a few times more at
        most: too many logs force flushes (hbase.regionserver.maxlogs)."""
        now, holders = steady_s(), {*writing, *(holder for _, holder in staying)}
        if not holders or now - self._asked_s < ROLL_AGAIN_SECONDS:
            return
        servers = [server for server in self._source.servers() if server.name in holders]
        self._asked_s = now
        for key in staying:
            left, _, rolls = self._stayed[key]
            self._stayed[key] = (left, now, rolls + 1)
        with ThreadPoolExecutor(ROLLERS, thread_name_prefix="roll") as pool:
            why = list(pool.map(self._ask, servers))
        self._asked = {server.name: one for server, one in zip(servers, why, strict=True)}

    def _ask(self, server: Server) -> str:
        try:
            self._source.roll_wal(server, attempts=1)
        except AccessDeniedError:
            raise
        except WalferryError as error:
            return str(error)
        return ""

    def _too_slow(
        self, left: Mapping[str, Mapping[QueueNode, list[str]]], files: Mapping[str, Sequence[str]]
    ) -> NotReplicatedError:
        """The error: which queues are not through, and why, as far as a look at their logs and the sink can tell."""
        causes, unknown = self._causes()
        found = []
        for peer in self._open:
            for node, names in list(left[peer].items())[:NAMED]:
                why = [self._unrolled(node, names), unknown]
                for group in map(_group, names):
                    why += causes.get((peer, node.holder, node.writer, group), ())
                text = "; ".join(one for one in dict.fromkeys(why) if one) or "it ships, but slowly"
                more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
                dead = f" for {node.writer}, which is dead," if node.writer != node.holder else ""
                found.append(f"peer {peer}: {node.holder}{dead} has not shipped {names[0]}{more}: {text}")
            if (rest := len(left[peer]) - NAMED) > 0:
                found.append(f"peer {peer}: {amount(rest, 'more queue')}")
            if files[peer]:
                found.append(f"peer {peer}: files of bulk loads are not shipped: {first_of(files[peer])}")
        return NotReplicatedError(f"not shipped in {self._wait_s:g} s: {'; '.join(found)}", findings=found)

    def _unrolled(self, node: QueueNode, names: Sequence[str]) -> str:
        """What is wrong if a live server still writes to a log before the fence; "" otherwise."""
        if node.holder not in self._asked or not written(node, names):
            return ""
        return f"its log is not rolled: {self._asked[node.holder] or 'its server was asked to'}"

    def _causes(self) -> tuple[dict[tuple[str, str, str, str], tuple[str, ...]], str]:
        """Causes by peer, holder, writer and group; and why there are none."""
        try:
            found = look(self._spec, stuck_ms=0)
        except (WalferryError, OSError) as error:
            return {}, f"its cause could not be looked for: {error}"
        return {
            (one.peer, queue.server, queue.writer, queue.group): queue.causes
            for one in found.peers
            for queue in one.queues
        }, ""

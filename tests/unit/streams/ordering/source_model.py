"""A model of an HBase cluster's log: servers that append, sync, die and are recovered; regions that move and split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from walferry.apply.region_events import Origin
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.streams.ordering.order import RegionOrder
from walferry.streams.ordering.stays import NEVER, LogPlace, Opened, Taken
from walferry.streams.snapshot.covered import Covered
from walferry.streams.snapshot.records import RegionRows

TABLE = b"t"
EVENT_MS = 1000
"""between two events, so that what was made at once is told from what was made one after the other"""


@dataclass(frozen=True)
class Entry:
    region: str
    number: int
    marker: Marker = Marker.NONE
    at_ms: int = field(default=0, compare=False)


@dataclass
class Server:
    name: str
    log: list[Entry] = field(default_factory=list)
    synced: int = 0
    state: str = "alive"  # then "splitting", then "sealed"


@dataclass
class Region:
    name: str
    server: Server | None
    number: int = 2


class Source:
    """The cluster. Every method is an event that can happen at any time."""

    def __init__(self, servers: int, regions: int) -> None:
        self.servers = [Server(f"s{number}") for number in range(servers)]
        self.regions = {f"r{n}": Region(f"r{n}", self.servers[n % servers]) for n in range(regions)}
        self.parents: dict[str, tuple[str, ...]] = {}
        """of each region that came later, the regions that had its rows before"""
        self.made = {name: number for number, name in enumerate(self.regions)}
        """in which order the regions were made"""
        self.origins = {name: Origin(b"%d" % number, 0) for number, name in enumerate(self.regions)}
        self.histories = dict.fromkeys(self.regions, 0)
        """of each region, how often the table was truncated before"""
        self._clock_ms = 0

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.state == "alive"]

    def write(self, name: str) -> None:
        region = self.regions[name]
        if region.server is not None and region.server.state == "alive":
            region.number += 1
            self._append(region.server, Entry(name, region.number))

    def _append(self, server: Server, entry: Entry) -> None:
        self._clock_ms += EVENT_MS
        server.log.append(replace(entry, at_ms=self._clock_ms))

    def sync(self, server: Server) -> None:
        if server.state == "alive":
            server.synced = len(server.log)

    def _is_open(self, region: Region) -> bool:
        return region.server is not None and region.server.state == "alive"

    def _close(self, region: Region) -> Server:
        assert region.server is not None
        server, region.server = region.server, None
        region.number += 1
        self._append(server, Entry(region.name, region.number, Marker.REGION_CLOSE))
        self.sync(server)
        return server

    def _open(self, region: Region, server: Server) -> None:
        region.server, region.number = server, region.number + 2
        self._append(server, Entry(region.name, region.number, Marker.REGION_OPEN))
        self.sync(server)

    def move(self, name: str, to: int) -> None:
        region, alive = self.regions[name], self.alive()
        if self._is_open(region):
            self._close(region)
            self._open(region, alive[to % len(alive)])

    def split(self, name: str) -> None:
        region = self.regions[name]
        if not self._is_open(region):
            return
        server = self._close(region)
        del self.regions[name]
        made_ms = self._clock_ms
        start = self.origins[name].start
        for half, begins in (("a", start), ("b", start + b"b")):
            origin = Origin(begins, made_ms)
            self._make(Region(name + half, None, region.number), (name,), origin, self.histories[name])
            self._open(self.regions[name + half], server)

    def merge(self, one: str, other: str) -> None:
        left, right = self.regions[one], self.regions[other]
        if one == other or not self._is_open(left) or not self._is_open(right):
            return
        server = self._close(left)
        self._close(right)
        del self.regions[one], self.regions[other]
        merged = Region(f"({one}+{other})", None, max(left.number, right.number))
        origin = Origin(min(self.origins[name].start for name in (one, other)), self._clock_ms)
        self._make(merged, (one, other), origin, self.histories[one])
        self._open(merged, server)

    def _make(self, region: Region, parents: tuple[str, ...], origin: Origin, history: int) -> None:
        self.regions[region.name] = region
        self.parents[region.name] = parents
        self.made[region.name] = len(self.made)
        self.origins[region.name], self.histories[region.name] = origin, history

    def truncate(self) -> None:
        """All regions give way to new ones, whose numbers begin anew."""
        if any(not self._is_open(region) for region in self.regions.values()):
            return
        old = sorted(self.regions)
        for name in old:
            self._close(self.regions[name])
        self.regions.clear()
        alive, generation = self.alive(), len(self.parents)
        made_ms, history = self._clock_ms, self.histories[old[0]] + 1
        for number, server in enumerate(alive):
            region = Region(f"n{generation}.{number}", None, 0)
            origin = Origin(b"%d" % number, made_ms)
            self._make(region, tuple(old[number :: len(alive)]) or tuple(old), origin, history)
            self._open(region, server)

    def kill(self, server: Server, lost: int) -> None:
        """A server dies; of what it had not synced, the last `lost` entries do not survive."""
        if server.state == "alive" and len(self.alive()) > 1:
            server.state = "splitting"
            server.synced = max(server.synced, len(server.log) - lost)

    def recover(self, server: Server, to: int) -> None:
        """The dead server's log is split, and its regions open elsewhere."""
        if server.state != "splitting":
            return
        server.state = "sealed"
        del server.log[server.synced :]
        alive = self.alive()
        for region in self.regions.values():
            if region.server is server:
                others = (e.number for one in self.servers for e in one.log if e.region == region.name)
                region.number = max(others, default=1)
                self._open(region, alive[to % len(alive)])

    def snapshot(self, meanwhile: Callable[[], None]) -> dict[str, int] | None:
        """Flush the regions one by one; up to which number the snapshot has each. None: it failed, since regions have
        changed, or one is not open."""
        found = {}
        for name in sorted(self.regions):
            region = self.regions.get(name)
            if region is None or not self._is_open(region):
                return None
            assert region.server is not None
            self.sync(region.server)
            found[name] = region.number
            meanwhile()
        return found if found.keys() == self.regions.keys() else None

    def are_related(self, one: str, other: str) -> bool:
        """Whether two regions have a row in common."""
        return one == other or other in self.ancestors(one) or one in self.ancestors(other)

    def read_point(self, server_name: str, region_name: str) -> int | None:
        """What a server answers: the newest number of the region that is synced, if it has the region."""
        region = self.regions.get(region_name)
        if region is None or not self._is_open(region):
            return None
        assert region.server is not None
        if region.server.name != server_name:
            return None
        synced = region.server.log[: region.server.synced]
        return max((e.number for e in synced if e.region == region_name), default=0)

    def ancestors(self, region: str) -> set[str]:
        """All regions that had the region's rows before."""
        found, left = set[str](), list(self.parents.get(region, ()))
        while left:
            one = left.pop()
            found.add(one)
            left += self.parents.get(one, ())
        return found

    def edits(self) -> list[Entry]:
        """Every edit of the log."""
        return [entry for server in self.servers for entry in server.log if entry.marker is Marker.NONE]


def batch_of(entries: Sequence[Entry], first: int) -> EntryBatch:
    """Entries as a reader returns them; entry n of a log is bytes [n, n + 1) of its file."""
    count = len(entries)
    regions = list(dict.fromkeys(entry.region.encode() for entry in entries))
    at = np.arange(count, dtype=np.int64)
    zeros, ones = np.zeros(count, np.int32), np.ones(count, np.int32)
    return EntryBatch(
        np.zeros(count, np.uint8), at + first, at + first + 1, at, at + 1, at, at, ones, ones,
        np.array([entry.number for entry in entries], np.int64), np.array([entry.at_ms for entry in entries], np.int64),
        np.array([regions.index(entry.region.encode()) for entry in entries], np.int32), regions,
        zeros, [TABLE], zeros, [b""], np.array([entry.marker for entry in entries], np.int8),
    )  # fmt: skip


class Streamer:
    """Reads the log as a stream does, and keeps what it has sent."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sent: list[Entry] = []
        self.incarnations: list[int] = []
        """of each entry sent"""
        self.begun: list[tuple[int, int]] = []
        """new histories: before how many entries sent, and their incarnation"""
        self.has_missed = False
        """a region has come and gone between two looks into hbase:meta, so that its rows are unknown"""
        self.repeated = 0
        self._known = {
            name: ("t", r.server.name, NEVER, 0) for name, r in source.regions.items() if r.server is not None
        }
        self._seen = set(source.regions)
        """regions that were in hbase:meta when it was looked at"""
        self.holds = False
        """the changes of the table are held"""
        self.covered: Covered | None = None
        self.left_out: list[Entry] = []
        """entries that a snapshot has"""
        self._from: dict[str, LogPlace] = {}
        self._read: dict[str, LogPlace] = {}
        self.restart()

    def restart(self) -> None:
        """Go on from what the last pass has recorded."""
        self.order = RegionOrder(
            self._read, self._share_rows, held_tables={"t"} if self.holds else (), origin=self.source.origins.get
        )
        for name, (table, server, number, incarnation) in self._known.items():
            self.order.know(table, name, server, number, incarnation)
            if self.holds:
                self.order.hold(name, {}, number)
        self._at = {group: place.offset for group, place in self._from.items()}

    def hold(self) -> None:
        """Hold the table: what is not sent now is sent after the snapshot."""
        self.holds = True
        self.restart()

    def send_rows(self, snapshot: dict[str, int], *, joins: bool) -> bool:
        """Send the rows of a snapshot, and go on with the changes after it. False if it cannot be used."""
        if snapshot.keys() - self._known.keys() and not joins:
            return False
        regions = {}
        for name, number in snapshot.items():
            _, _, sent, incarnation = self._known.get(name, ("t", "", NEVER, 0))
            numbers = {b"f": max(0, sent, number)}
            start = f"{self.source.made[name]:06}".encode()
            regions[name] = RegionRows("t", start, self.source.made[name], numbers, frozenset(), incarnation, None)
            self.sent.append(Entry(name, regions[name].number, Marker.FLUSH))
            self.incarnations.append(incarnation)

        def origin(region: str) -> Origin:
            related = next(rows.start for name, rows in regions.items() if self.source.are_related(region, name))
            return Origin(related, self.source.made[region])

        self.covered = Covered(regions, origin)
        return True

    def let_go(self) -> None:
        """Go on with the changes of the table."""
        self.holds = False
        self.restart()

    def _share_rows(self, one: str, other: str) -> bool | None:
        if {one, other} - self._seen:
            return None
        return other in self.source.ancestors(one) or one in self.source.ancestors(other)

    def make_pass(
        self,
        unseen: int = 0,
        *,
        commit: bool = True,
        rolled: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Read all logs up to their visible ends; of what is not synced, `unseen` entries are not visible.

        `rolled`: all logs are sealed, since they waited for long. `meanwhile` happens after each log was read.
        """
        taken, whole = [], True
        listed = {server.name: server.state for server in self.source.servers}
        for number, server in enumerate(self.source.servers):
            if number:
                meanwhile()
            begin = self._at.get(server.name, 0)
            if "splitting" in (server.state, listed[server.name]):
                whole = False
                continue
            sealed = rolled or server.state == "sealed"
            end = len(server.log) if sealed else max(server.synced, len(server.log) - unseen)
            if sealed:
                self.order.seal(server.name, 0, len(server.log))
            if end > begin:
                batch = batch_of(server.log[begin:end], begin)
                picked = np.arange(len(batch))
                taken.append(Taken(server.name, server.name, 0, batch, picked, sealed))
            self._at[server.name] = max(begin, end)
        self._seen |= self.source.regions.keys()
        self.has_missed |= bool(self.source.parents.keys() - self._seen)
        answers = {
            asked: point for asked in self.order.asks(taken) if (point := self.source.read_point(*asked)) is not None
        }
        passed = self.order.pass_on(taken, answers, whole=whole)
        self.repeated += len(self.order.take_repeated())
        if not commit:  # killed before the transaction ended: nothing of it counts
            return
        for one in passed:
            if isinstance(one, Opened):
                if self.covered is None or not self.covered.has_opening("t", one.region):
                    self.begun += [(len(self.sent), one.incarnation)] * one.begins
                continue
            for part, families in self.covered.parts(one) if self.covered else [(one, ())]:
                for entry in part.picked.tolist():
                    name, number = one.batch.table_and_region(entry)[1], int(one.batch.sequence_number[entry])
                    if families is None:
                        self.left_out.append(Entry(name, number))
                        continue
                    self.sent.append(Entry(name, number))
                    self.incarnations.append(self.order.incarnation(name))
        self._known = self.order.sent()
        unsent, now = self.order.unsent(), {group: LogPlace(0, offset) for group, offset in self._at.items()}
        self._read = {group: max(place, self._read.get(group, place)) for group, place in now.items()}
        self._from = {group: unsent.get(group, place) for group, place in now.items()}
        if whole and not unsent and not self.holds:
            self.covered = None  # everything before the snapshot was read
            self.order.forget_gone("t", set(self.source.regions))

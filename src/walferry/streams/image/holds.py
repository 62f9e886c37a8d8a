"""Read points that are held at the source, so that it keeps what was written over until the images were read.

`hbase.past_rows` has what a held read point keeps. What HBase shows differently after a flush, a compaction or a bulk
load is no part of it, but all of these change the store files of the region: a flush adds a file, since it keeps
delete markers; one that finds nothing but cells whose own TTL has expired does not, and for them nothing is proved. So
an answer is exact if the change came after a read point that was held until the answer, if the region has the same
store files after the answer as right before the read point was held, and if `proof` has nothing against it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from walferry.clock import now_ms, steady_s
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RemoteError, TableNotFoundError
from walferry.hbase.past_rows import HeldReadPoint, hold_read_points, let_go, still_held
from walferry.hbase.read_points import served
from walferry.hbase.zookeeper import Server

log = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
"""a region that is written to has a newer read point held after so long: HBase then keeps less"""
KEEP_SECONDS = 300.0
"""no read point is held for longer, whatever waits to be sent"""
LOOK_SECONDS = 20.0
"""time between two look-ups of a table's regions"""
SERVERS_AT_ONCE = 4
T = TypeVar("T")
Place = tuple[str, str, str]
"""a table, a region and the server that wrote entries"""


@dataclass(eq=False)
class Hold:
    """A read point of a region that is held."""

    point: HeldReadPoint
    files: frozenset[str]
    """the store files of the region right before"""
    taken_ms: int
    taken_s: float
    renewed_s: float
    stale: bool = False
    """other store files were seen since: what came before them can be proved no more"""

    @property
    def server(self) -> Server | None:
        """Where it is held."""
        return self.point.region.server


class Holds:
    """The holds of all regions of some tables: of each at most an older one, which waits until what came after it was
    sent, and a newer one. Not thread-safe. What cannot be held is not, and no error."""

    def __init__(self, source: HBaseClient, families: Callable[[str], Sequence[bytes]]) -> None:
        """`families`: of a table; none if it does not exist."""
        self._source = source
        self._families = families
        self._regions: dict[str, Region] = {}
        self._looked: dict[str, float] = {}
        self._holds: dict[str, list[Hold]] = defaultdict(list)
        self._points: dict[tuple[str, str], int] = {}

    def tend(self, tables: Collection[str]) -> None:
        """Renew the holds that are due, and hold the regions of these tables that are not held."""
        self._renew()
        for table in tables:
            lacking = [name for name, region in self._regions.items() if region.table == table and not self._of(name)]
            known = any(region.table == table for region in self._regions.values())
            if (lacking or not known) and self._may_look(table):
                self._look(table)
        there = [region for region in self._regions.values() if region.table in tables]
        self._take(
            [
                (region.server.name, region) for region in there
                if region.server is not None and self._wants(region.encoded, region.server, KEEP_SECONDS / 2)
            ]
        )  # fmt: skip

    def take(self, busy: Iterable[Place]) -> None:
        """Hold the present read points of regions that were written to."""
        asked = []
        for table, name, server in busy:
            if name not in self._regions and self._may_look(table):
                self._look(table)
            region = self._regions.get(name)
            if region is not None and self._wants(name, Server.parse(server), FRESH_SECONDS):
                asked.append((server, region))
        self._take(asked)

    def learn(self, points: Mapping[tuple[str, str], int]) -> None:
        """Note read points that servers have told, by server and region. Later ones replace earlier ones, which the
        region may have had in another history."""
        self._points |= points

    def read_point(self, server: str, region: str) -> int:
        """The read point of a region at a server, as it was told last; -1 if it is unknown."""
        return self._points.get((server, region), -1)

    def ask(self, asked: Collection[Place]) -> set[Place]:
        """Ask servers for read points of regions. Returns those that a server does not tell, since it does not serve
        the region, or the region does not exist. Raises TransientError if a server does not answer."""
        for table in {table for table, name, _ in asked if name not in self._regions}:
            self._look(table)
        known = [place for place in asked if place[1] in self._regions]
        answers = self._source.read_points([(server, self._regions[name]) for _, name, server in known])
        told = {place: point for place, point in zip(known, answers, strict=True) if point is not None}
        self.learn({(server, name): point for (_, name, server), point in told.items()})
        return set(asked) - told.keys()

    def before(self, server: str, region: str, number: int) -> Hold | None:
        """The newest hold of a region at a server that was there before a change with this number; None without one
        that may still prove something."""
        for hold in reversed(self._of(region)):
            if hold.point.number < number and not hold.stale and hold.server == Server.parse(server):
                return hold
        return None

    def proven(self, holds: Sequence[Hold]) -> list[bool]:
        """Whether regions have the store files that they had when these holds were taken."""
        regions = [hold.point.region for hold in holds]
        found = dict(zip(holds, self._by_server(regions, self._files), strict=True))
        for hold, files in found.items():
            hold.stale = hold.stale or files != hold.files
        return [not hold.stale for hold in holds]

    def lose(self, hold: Hold) -> None:
        """Forget a hold that the server has lost."""
        with suppress(ValueError):
            self._holds[hold.point.region.encoded].remove(hold)

    def settle(self, sent: Mapping[str, int], covered_ms: int | None) -> None:
        """Let go what is no longer needed: everything up to the numbers of regions was sent, and all that was written
        before a moment."""
        over = list[Hold]()
        for name, holds in self._holds.items():
            while len(holds) > 1:
                newer = holds[1]
                if sent.get(name, -1) < newer.point.number and (covered_ms is None or covered_ms < newer.taken_ms):
                    break
                over.append(holds.pop(0))
        self._let_go(over)

    def close(self) -> None:
        """Let go all of them."""
        over = [hold for holds in self._holds.values() for hold in holds]
        self._holds.clear()
        self._let_go(over)

    def _of(self, region: str) -> list[Hold]:
        return self._holds.get(region, [])

    def _may_look(self, table: str) -> bool:
        return steady_s() - self._looked.get(table, -LOOK_SECONDS) >= LOOK_SECONDS

    def _look(self, table: str) -> None:
        self._looked[table] = steady_s()
        found: list[Region] = []
        try:
            found = self._source.regions(table)
        except TableNotFoundError:
            pass
        except (TransientError, RemoteError) as error:
            log.info("the regions of %s are not known now: %s", table, error)
            return
        self._regions = {name: region for name, region in self._regions.items() if region.table != table}
        self._regions |= {region.encoded: region for region in found}

    def _wants(self, name: str, server: Server, most_s: float) -> bool:
        """Whether a region is to be held anew: it is not yet at this server, or has been for long."""
        here = [hold for hold in self._of(name) if hold.server == server]
        if not here:
            return True
        age_s = steady_s() - here[-1].taken_s
        return len(here) < 2 and (age_s >= most_s or here[-1].stale)

    def _renew(self) -> None:
        now = steady_s()
        every = [hold for holds in self._holds.values() for hold in holds]
        old = [hold for hold in every if now - hold.taken_s > KEEP_SECONDS]
        for hold in old:
            self.lose(hold)
        self._let_go(old)
        due = [
            hold for hold in every
            if hold not in old and now - hold.renewed_s > hold.point.lease_s / 3
        ]  # fmt: skip
        by_server: dict[Server | None, list[Hold]] = defaultdict(list)
        for hold in due:
            by_server[hold.server].append(hold)
        for held in by_server.values():
            try:
                kept = still_held(self._source, [hold.point for hold in held], attempts=1)
            except (TransientError, RemoteError):
                kept = [False] * len(held)
            for hold, is_kept in zip(held, kept, strict=True):
                hold.renewed_s = now
                if not is_kept:
                    self.lose(hold)
        self.proven([hold for hold in due if hold in self._of(hold.point.region.encoded)])

    def _take(self, asked: Sequence[tuple[str, Region]]) -> None:
        there = [replace(region, server=Server.parse(server)) for server, region in asked]
        for region, hold in zip(there, self._by_server(there, self._hold), strict=True):
            if hold is not None:
                kept = [one for one in self._of(region.encoded) if one.server == region.server]
                self._let_go([one for one in self._of(region.encoded) if one not in kept])
                self._holds[region.encoded] = [*kept, hold]
                assert region.server is not None
                self.learn({(region.server.name, region.encoded): hold.point.number})

    def _hold(self, regions: Sequence[Region]) -> list[Hold | None]:
        files = self._files(regions)
        points = hold_read_points(
            self._source, [(region.server.name, region) for region in regions if region.server], attempts=1
        )
        now = steady_s()
        return [
            None if point is None or known is None else Hold(point, known, now_ms(), now, now)
            for point, known in zip(points, files, strict=True)
        ]

    def _files(self, regions: Sequence[Region]) -> list[frozenset[str] | None]:
        """The store files of regions at one server; None: it does not serve the region."""

        def files(region: Region) -> frozenset[str] | None:
            families = self._families(region.table)
            found = served(lambda: self._source.store_files(region, *families), 1) if families else None
            return None if found is None else frozenset(found)

        return [files(region) for region in regions]

    def _by_server(
        self, regions: Sequence[Region], ask: Callable[[Sequence[Region]], list[T | None]]
    ) -> list[T | None]:
        """Ask about regions, each server's together and several servers at once; None where one does not answer."""
        of_server: dict[Server | None, list[int]] = defaultdict(list)
        for number, region in enumerate(regions):
            of_server[region.server].append(number)
        found: list[T | None] = [None] * len(regions)

        def of(server: Server | None) -> None:
            numbers = of_server[server]
            try:
                for number, answer in zip(numbers, ask([regions[number] for number in numbers]), strict=True):
                    found[number] = answer
            except (TransientError, RemoteError) as error:
                log.info("%s does not hold read points now, so images are not exact: %s", server, error)

        if of_server:
            with ThreadPoolExecutor(SERVERS_AT_ONCE, thread_name_prefix="holds") as asking:
                list(asking.map(of, of_server))
        return found

    def _let_go(self, holds: Sequence[Hold]) -> None:
        if holds:
            with suppress(TransientError, RemoteError):
                let_go(self._source, [hold.point for hold in holds])

"""Decide which regions of a pair a pass reads whole and why, and which rows of the others. Pure functions.

A region was equal when it was last read. Since then only rows named by the log have changed. This holds if the log is
complete, the same servers have the region's rows, and nothing that may change what is visible happened to the region's
files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from walferry.hbase.descriptors import Region
from walferry.ledger import PassRegion
from walferry.migration.pairs.pair_log import COMPACTED

DAY_MS = 86_400_000
MOST_ROWS = 1_000_000
"""the most rows that the logs of one pass name, since its process holds them; the fullest regions are read whole
instead"""
NEW = "never read before"
MOVED = "opened, moved, split or merged since it was last read"
OVERFLOWN = "more of its rows differed than are kept"
CROWDED = f"more than {MOST_ROWS} rows of the pair were written"


@dataclass(frozen=True)
class Sight:
    """A source region as it is now, with the target's regions that have its rows."""

    table: str
    target_table: str
    region: Region
    target: tuple[Region, ...]

    @property
    def name(self) -> tuple[str, str]:
        """Table and encoded region."""
        return self.table, self.region.encoded

    @property
    def lines(self) -> str:
        """A digest of the servers that have the region on both sides, and since when; "" while that is not certain."""
        lines = [_line(region) for region in (self.region, *self.target)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest() if all(lines) else ""


def _line(region: Region) -> str:
    if region.server is None or region.may_lag:
        return ""
    return f"{region.encoded} {region.server.name} {region.open_sequence}"


def sights(table: str, target_table: str, source: Iterable[Region], target: Iterable[Region]) -> list[Sight]:
    """The regions of a table in order."""
    there = sorted(target, key=lambda region: region.start)
    starts = [region.start for region in there]

    def beside(region: Region) -> tuple[Region, ...]:
        first = max(0, bisect_right(starts, region.start) - 1)
        last = bisect_left(starts, region.end) if region.end else len(there)
        return tuple(other for other in there[first:last] if not other.end or region.start < other.end)

    return [
        Sight(table, target_table, region, beside(region)) for region in sorted(source, key=lambda region: region.start)
    ]


@dataclass(frozen=True)
class SideNews:
    """News from one side's log since a region was last read."""

    gaps: Mapping[str, str] = field(default_factory=dict)
    """by server: why part of its log is missing"""
    marks: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """by table and region: why rows other than those in the log may have changed"""
    compacted: Collection[tuple[str, str]] = ()
    fragile: Collection[tuple[str, str]] = ()
    """regions that became fragile (`pair_log.is_fragile`)"""


def why_whole(
    sight: Sight, known: PassRegion | None, source: SideNews, target: SideNews, now_ms: int, whole_every_ms: float
) -> str:
    """Why a region must be read whole; "" if the rows written since are enough."""
    if known is None or known.target_table != sight.target_table:
        return NEW
    if known.lines == "" or known.lines != sight.lines:
        return MOVED
    if known.unnamed:
        return OVERFLOWN
    if now_ms - known.whole_ms >= whole_every_ms:
        return f"last read whole {(now_ms - known.whole_ms) / DAY_MS:.1f} days ago"
    fragile = known.fragile or became_fragile(sight, source, target)
    for side, news, region, name in _of_both(sight, source, target):
        if region.server is not None and (gap := news.gaps.get(region.server.name)):
            return f"{side}: {gap}"
        if mark := news.marks.get(name):
            return f"{side}: {mark}"
        if fragile and name in news.compacted:
            return f"{side}: {COMPACTED}"
    return ""


def became_fragile(sight: Sight, source: SideNews, target: SideNews) -> bool:
    """Whether cells were written to a region, on either side, that make the region fragile."""
    return any(name in news.fragile for _, news, _, name in _of_both(sight, source, target))


def _of_both(
    sight: Sight, source: SideNews, target: SideNews
) -> Iterator[tuple[str, SideNews, Region, tuple[str, str]]]:
    """Each region of either side that has rows of the sight's region, with that side's news and the region's name
    there."""
    yield "source", source, sight.region, sight.name
    for region in sight.target:
        yield "target", target, region, (sight.target_table, region.encoded)


class Borders:
    """The borders of the source regions, to find the region of a row."""

    def __init__(self, regions: Sequence[Sight]) -> None:
        self._tables: dict[str, list[Sight]] = {}
        for sight in regions:
            self._tables.setdefault(sight.table, []).append(sight)
        self._starts = {table: [sight.region.start for sight in of] for table, of in self._tables.items()}

    def sight(self, table: str, row: bytes) -> Sight:
        """The source region that a row is in; `table`: the table's name at the source."""
        return self._tables[table][bisect_right(self._starts[table], row) - 1]


class NamedRows:
    """The rows that both logs name, by table and region of the source.

    If there are more than `most` rows, the rows of the fullest regions are let go, and these regions are read whole.
    """

    def __init__(self, regions: Sequence[Sight], most: int = MOST_ROWS) -> None:
        self._borders = Borders(regions)
        self._most = most
        self._gone = 0
        self.rows: dict[tuple[str, str], set[bytes]] = {}
        self.let_go: set[tuple[str, str]] = set()

    def add(self, table: str, rows: Iterable[bytes]) -> None:
        """Add rows of a table; `table`: the source's name."""
        for row in rows:
            name = self._borders.sight(table, row).name
            if name not in self.let_go:
                self.rows.setdefault(name, set()).add(row)
        for name in crowded({name: len(found) for name, found in self.rows.items()}, self._most):
            self._gone += len(self.rows.pop(name))
            self.let_go.add(name)

    @property
    def count(self) -> int:
        """The number of rows, including the rows let go, which were counted when they were let go."""
        return self._gone + sum(map(len, self.rows.values()))


def crowded(rows: Mapping[tuple[str, str], int], most: int = MOST_ROWS) -> set[tuple[str, str]]:
    """The fullest regions: as few as needed so that the others have at most `most` rows together."""
    left, out = sum(rows.values()), set()
    for name in sorted(rows, key=lambda name: (-rows[name], name)):
        if left <= most:
            break
        out.add(name)
        left -= rows[name]
    return out

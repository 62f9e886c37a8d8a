"""`walferry snapshot stat`: how many rows and cells a snapshot shows, by region."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from walferry.formats.resolve import row_sums
from walferry.snapshots.manifest import SnapshotRegion
from walferry.snapshots.reading import SnapshotPart, SnapshotQuery, chosen_cells, cut, regions_asked

PART_BYTES = 64 << 20
"""A region with more bytes of store files is counted in several parts."""
_MOST_THREADS = 8
"""Each thread has a stream of each store file of its region."""


@dataclass(frozen=True)
class RegionCount:
    """What a region shows, or the whole table (`region` is empty then)."""

    region: str
    """encoded name"""
    start_row: str
    """in hexadecimal digits; empty: no border"""
    files: int
    bytes: int
    """of its store files, each counted whole, even if a clone shares it or a reference has only a part of it"""
    rows: int
    cells: int
    oldest: int | None
    """the least timestamp (ms since 1970) of a cell; None without cells"""
    newest: int | None


@dataclass(frozen=True)
class SnapshotStat:
    """What a snapshot shows."""

    snapshot: str
    table: str
    total: RegionCount
    regions: tuple[RegionCount, ...]

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def stat(
    query: SnapshotQuery,
    progress: Callable[[Iterable[None], int], Iterable[None]] = lambda done, parts: done,
) -> SnapshotStat:
    """Count what is asked of a snapshot, in a thread for each processor, eight at most.

    `progress` is called with an iterator that yields once for each finished part, and with the number of parts; it must
    yield as often. Raises the errors of `regions_asked`, and UnreadableInputError for a store file that is gone.
    """
    table, regions = regions_asked(query)
    counts: dict[str, list[_PartCount]] = defaultdict(list)
    over = threading.Event()
    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS), thread_name_prefix="count")
    try:
        parts = [part for found in pool.map(partial(cut, query), regions) for part in found]
        named = {pool.submit(_count, query, part, over): part.region.name for part in parts}

        def counted() -> Iterator[None]:
            for done in as_completed(named):
                counts[named[done]].append(done.result())
                yield

        for _ in progress(counted(), len(parts)):
            pass
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)
    every = [count for found in counts.values() for count in found]
    of_region = tuple(_sum([part], counts[part.region.name], part.region) for part in regions)
    return SnapshotStat(query.snapshot, table, _sum(regions, every), of_region)


@dataclass(frozen=True)
class _PartCount:
    rows: int
    cells: int
    oldest: int | None
    newest: int | None


def _total(counts: Sequence[_PartCount]) -> _PartCount:
    return _PartCount(
        sum(count.rows for count in counts),
        sum(count.cells for count in counts),
        min((count.oldest for count in counts if count.oldest is not None), default=None),
        max((count.newest for count in counts if count.newest is not None), default=None),
    )


def _count(query: SnapshotQuery, part: SnapshotPart, over: threading.Event) -> _PartCount:
    found = []
    for index, chosen in chosen_cells(query, part):
        if over.is_set():
            break
        first, cells, oldest, newest = row_sums(index, chosen)
        found.append(_PartCount(len(first), int(cells.sum()), int(oldest.min()), int(newest.max())))
    return _total(found)


def _sum(
    parts: Sequence[SnapshotPart], counts: Sequence[_PartCount], region: SnapshotRegion | None = None
) -> RegionCount:
    name, start = ("", "") if region is None else (region.name, region.start.hex())
    sizes = {file.paths[0]: file.size for part in parts for file in part.region.files}
    total = _total(counts)
    return RegionCount(
        name, start, len(sizes), sum(sizes.values()), total.rows, total.cells, total.oldest, total.newest
    )

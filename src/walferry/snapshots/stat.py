"""`walferry snapshot stat`: how many rows and cells a snapshot shows, by region."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from walferry.errors import WalferryError
from walferry.formats.resolve import rows_to_arrow
from walferry.snapshots.reading import SnapshotPart, SnapshotQuery, chosen_cells, parts_of, table_of

PART_BYTES = 64 << 20
"""A region with more bytes of store files is counted in several parts."""


@dataclass(frozen=True)
class RegionCount:
    """What a region shows, or the whole table (`region` is empty then)."""

    region: str
    """encoded name"""
    start_row: str
    """in hexadecimal digits; empty: no border"""
    files: int
    bytes: int
    """of its store files, which a clone shares with others, and a reference has a part of"""
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
    """Count what is asked of a snapshot, in a thread for each processor.

    `progress` is given what yields once for each part that is done, and how many parts there are; it yields the same.
    Raises what `parts_of` raises, and WalferryError (fact `file`) for a store file that is gone.
    """
    parts = parts_of(query)
    counts: dict[str, list[_Count]] = defaultdict(list)

    def count_all() -> Iterator[None]:
        pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="count")
        try:
            named = {pool.submit(_count, query, part): part.region.name for part in parts}
            for done in as_completed(named):
                counts[named[done]].append(done.result())
                yield
        finally:
            pool.shutdown(cancel_futures=True)

    for _ in progress(count_all(), len(parts)):
        pass
    first = {part.region.name: part for part in reversed(parts)}
    regions = [_sum([part], counts[part.region.name]) for part in reversed(first.values())]
    every = [count for found in counts.values() for count in found]
    return SnapshotStat(
        query.snapshot, table_of(query).name, _sum(list(first.values()), every, is_table=True), tuple(regions)
    )


_Count = tuple[int, int, int | None, int | None]
"""rows, cells, the least and the greatest timestamp"""


def _count(query: SnapshotQuery, part: SnapshotPart) -> _Count:
    rows = cells = 0
    oldest: int | None = None
    newest: int | None = None
    try:
        for index, chosen in chosen_cells(query, part):
            found = rows_to_arrow(index, chosen, ("cells", "oldest", "newest"))
            rows += len(found)
            many, old, new = (column.to_numpy() for column in found.columns)
            cells += int(many.sum())
            oldest = int(old.min()) if oldest is None else min(oldest, int(old.min()))
            newest = int(new.max()) if newest is None else max(newest, int(new.max()))
    except FileNotFoundError as error:
        raise WalferryError(
            f"snapshot {query.snapshot}: its store file {error} is gone, and is not in archive/ either: was the "
            "snapshot deleted?", file=str(error),
        ) from error  # fmt: skip
    return rows, cells, oldest, newest


def _sum(of: Sequence[SnapshotPart], counts: Sequence[_Count], *, is_table: bool = False) -> RegionCount:
    region = of[0].region if of and not is_table else None
    return RegionCount(
        "" if region is None else region.name,
        "" if region is None else region.start.hex(),
        sum(len(part.region.files) for part in of),
        sum(file.size for part in of for file in part.region.files),
        sum(rows for rows, _, _, _ in counts),
        sum(cells for _, cells, _, _ in counts),
        min((oldest for _, _, oldest, _ in counts if oldest is not None), default=None),
        max((newest for _, _, _, newest in counts if newest is not None), default=None),
    )

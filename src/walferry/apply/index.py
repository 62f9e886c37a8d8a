"""What a sealed WAL file holds, read without applying anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from walferry.apply.outcomes import FileReport, Moved, MovedEdits, Refusal, Tally, damage, unreadable_markers
from walferry.apply.region_events import RegionEvent, region_events
from walferry.errors import DamagedInputError
from walferry.formats.wal import EntryBatch
from walferry.spark.byte_counts import count_bytes
from walferry.wal.files import WalFile
from walferry.wal.open import Wal

Select = Callable[[EntryBatch], tuple[np.ndarray, np.ndarray]]
"""positions in a batch of the entries of a window, and of those of other times that the target already has"""


@dataclass(frozen=True)
class InWindow:
    """A region's edits in one file, in a window's replay."""

    cells: int
    """of the window"""
    lowest: int
    """sequence number of the window's edits; `NONE` without any"""
    settled: int
    """the highest sequence number of edits of other times that the target already has; -1 without any"""


NONE = 1 << 62


@dataclass(frozen=True)
class FileIndex:
    """What one file holds for the wanted tables."""

    report: FileReport
    in_window: Mapping[tuple[str, str], InWindow] = field(default_factory=dict)
    """by table and region, if the index is made for a window"""
    inside: tuple[MovedEdits, ...] = ()
    """the edits of a window"""
    settled: tuple[MovedEdits, ...] = ()
    """those of other times that the target already has"""


def index_file(wal: Wal, file: WalFile, tables: Collection[str], select: Select | None = None) -> FileIndex:
    """Read one sealed file: tallies, region events and unreadable markers of the wanted tables; what is selected."""
    tally = Tally(tables)
    in_window: dict[tuple[str, str], InWindow] = {}
    events: list[RegionEvent] = []
    refusals: list[Refusal] = []
    inside, settled = Moved(file.name), Moved(file.name)
    complete = True
    try:
        for batch in wal:
            selected = tally.add(batch)
            events += region_events(batch, file.name, selected)
            refusals += unreadable_markers(batch, file.name, tables)
            if select is not None:
                picked = select(batch)
                _look(in_window, batch, *picked)
                inside.add(batch, picked[0])
                settled.add(batch, picked[1])
            if len(batch):
                count_bytes(int(batch.offset_end[-1] - batch.offset[0]))
    except DamagedInputError as error:
        refusals.append(damage(error))
        complete = False
    length = wal.length if complete else file.length
    report = FileReport(file.name, length, complete, tally.rows(), tuple(refusals), (), tuple(events))
    return FileIndex(report, in_window, inside.edits(), settled.edits())


def merge(one: InWindow | None, other: InWindow) -> InWindow:
    """The edits of a region in several files."""
    if one is None:
        return other
    return InWindow(one.cells + other.cells, min(one.lowest, other.lowest), max(one.settled, other.settled))


def _look(found: dict[tuple[str, str], InWindow], batch: EntryBatch, inside: np.ndarray, settled: np.ndarray) -> None:
    for table, region in {*_pairs(batch, inside), *_pairs(batch, settled)}:
        mine, others = (
            picked[(batch.table[picked] == table) & (batch.region[picked] == region)] for picked in (inside, settled)
        )
        key = batch.tables[table].decode(), batch.regions[region].decode()
        numbers = batch.sequence_number
        found[key] = merge(
            found.get(key),
            InWindow(
                int(batch.cell_count[mine].sum()),
                int(numbers[mine].min()) if len(mine) else NONE,
                int(numbers[others].max()) if len(others) else -1,
            ),
        )


def _pairs(batch: EntryBatch, picked: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(batch.table[picked].tolist(), batch.region[picked].tolist(), strict=True))

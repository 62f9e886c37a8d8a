"""What a sealed WAL file holds, read without applying anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from walferry.apply.number_spans import NumberSpans
from walferry.apply.outcomes import FileReport, Moved, MovedEdits, Refusal, Tally, damage, unreadable_markers
from walferry.apply.region_events import RegionEvent, region_events
from walferry.errors import DamagedInputError
from walferry.formats.wal import EntryBatch
from walferry.spark.byte_counts import count_bytes
from walferry.wal.files import WalFile
from walferry.wal.open import Wal

Select = Callable[[EntryBatch], tuple[np.ndarray, np.ndarray]]
"""selects entries of a batch: positions of the window's entries, and of entries that the target already has"""


@dataclass(frozen=True)
class InWindow:
    """A region's edits in one file, for a window's replay."""

    cells: int
    """number of cells in the window"""
    lowest: int
    """lowest sequence number of the window's edits; `NONE` without any"""
    settled: int
    """highest sequence number of the edits of other times that the target already has; -1 without any"""


NONE = 1 << 62


@dataclass(frozen=True)
class FileIndex:
    """What one file holds for the wanted tables."""

    report: FileReport
    in_window: Mapping[tuple[str, str], InWindow] = field(default_factory=dict)
    """by table and region, if the index is for a window"""
    inside: tuple[MovedEdits, ...] = ()
    """the edits of a window"""
    settled: tuple[MovedEdits, ...] = ()
    """the edits of other times that the target already has"""


class FileIndexer:
    """One pass over a sealed file: tallies, region events, numbers and unreadable markers of the wanted tables."""

    def __init__(self, wal: Wal, file: WalFile, tables: Collection[str]) -> None:
        self._wal = wal
        self._file = file
        self._tables = tables
        self._tally = Tally(tables)
        self._events: list[RegionEvent] = []
        self._numbers = NumberSpans(file.name)
        self._complete = False
        self.refusals: list[Refusal] = []

    def batches(self, accepted: int | None = None) -> Iterator[EntryBatch]:
        """The file's batches up to its end, or up to damage, which becomes a refusal. Keeps no batch in memory.

        Raises DamagedInputError for damage before `accepted`, the offset of accepted damage.
        """
        name = self._file.name
        try:
            for batch in self._wal:
                selected = self._tally.add(batch)
                self._events += region_events(batch, name, selected)
                self._numbers.add(batch, selected)
                self.refusals += unreadable_markers(batch, name, self._tables)
                yield batch
                if len(batch):
                    count_bytes(int(batch.offset_end[-1] - batch.offset[0]))
                del batch
        except DamagedInputError as error:
            if accepted is not None and error.facts["offset"] < accepted:
                raise
            self.refusals.append(damage(error))
        else:
            self._complete = True

    def report(self) -> FileReport:
        """The report on everything read so far."""
        length = self._wal.length if self._complete else self._file.length
        return FileReport(
            self._file.name, length, self._complete, self._tally.rows(), tuple(self.refusals), (), tuple(self._events),
            numbers=self._numbers.spans(),
        )  # fmt: skip


def index_file(wal: Wal, file: WalFile, tables: Collection[str], select: Select | None = None) -> FileIndex:
    """Index one sealed file for the wanted tables, with the entries that `select` picks."""
    in_window: dict[tuple[str, str], InWindow] = {}
    inside, settled = Moved(file.name), Moved(file.name)
    reading = FileIndexer(wal, file, tables)
    for batch in reading.batches():
        if select is not None:
            picked = select(batch)
            _look(in_window, batch, *picked)
            inside.add(batch, picked[0])
            settled.add(batch, picked[1])
    return FileIndex(reading.report(), in_window, inside.edits(), settled.edits())


def merge(one: InWindow | None, other: InWindow) -> InWindow:
    """Combine what two files hold of a region."""
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

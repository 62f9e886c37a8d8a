"""Reports of the executors on WAL files: what they hold, and what was applied, refused or withheld."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from walferry.apply.number_spans import NumberSpan
from walferry.apply.region_events import RegionEvent
from walferry.apply.written import WrittenRows
from walferry.errors import DamagedInputError
from walferry.formats.cells import index_cells
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.refusals import ANY_REGION, ANY_TABLE, RefusalKind


@dataclass(frozen=True)
class TableTally:
    """What one file holds for one table: number of entries and cells, write times of the first entry and the last edit
    (ms). A region that moves or is flushed writes entries, too."""

    table: str
    entries: int
    cells: int
    first_write_ms: int
    last_write_ms: int
    """0: without an edit"""


@dataclass(frozen=True)
class Refusal:
    """Bytes that could not be applied. Damage has ANY_TABLE and ANY_REGION, a broken lineage ANY_REGION."""

    file: str
    start: int
    end: int
    table: str
    region: str
    sequence_number: int
    reason: str
    data: bytes
    kind: RefusalKind = RefusalKind.REFUSED
    write_time: int = 0
    """ms; 0 for damage"""


@dataclass(frozen=True)
class Withheld:
    """Entries of a held region in one file, from an offset on."""

    file: str
    table: str
    region: str
    from_offset: int


@dataclass(frozen=True)
class MovedEdits:
    """The edits of one region in one file that were left to be applied in row order.

    `rows`: the row of about every `SAMPLE_BYTES`th byte of their cells.
    """

    table: str
    region: str
    size: int
    """bytes of their cells"""
    rows: tuple[bytes, ...]


@dataclass(frozen=True)
class FileReport:
    """The outcome for one file. `complete`: read and applied to its end, except what was refused or withheld."""

    file: str
    length: int
    complete: bool
    tallies: tuple[TableTally, ...]
    refusals: tuple[Refusal, ...]
    withheld: tuple[Withheld, ...]
    events: tuple[RegionEvent, ...] = ()
    """events of regions of the wanted tables; all events, if the report is complete"""
    moved: tuple[MovedEdits, ...] = ()
    numbers: tuple[NumberSpan, ...] = ()
    """the spans of the regions of the wanted tables; all spans, if the report is complete"""
    rows: tuple[WrittenRows, ...] = ()
    """the written rows of the tables whose rows are collected; all such rows, if the report is complete"""
    compared: bool = False
    """whether the file was compared with what it had shown while it was open; if it begins differently, the tables are
    marked"""


SAMPLE_BYTES = 256 << 10
"""bytes of cells of regions that moved, for each row that is named; the named rows decide where the rows are cut into
pieces"""


class Moved:
    """What one file holds of regions that moved."""

    def __init__(self, file: str) -> None:
        # Start anywhere within the first sample, so that many small files are sampled like one large file.
        self._unsampled = zlib.crc32(file.encode()) % SAMPLE_BYTES
        self._bytes: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[str, str], list[bytes]] = {}

    def add(self, batch: EntryBatch, picked: np.ndarray) -> None:
        """Count these entries of a batch."""
        if len(picked) == 0:
            return
        sizes = batch.end[picked] - batch.cells_start[picked]
        total = np.cumsum(sizes) + self._unsampled
        sampled = np.diff(total // SAMPLE_BYTES, prepend=0) > 0
        self._unsampled = int(total[-1]) % SAMPLE_BYTES
        for table, region in np.unique(np.stack([batch.table[picked], batch.region[picked]]), axis=1).T:
            mine = (batch.table[picked] == table) & (batch.region[picked] == region)
            key = batch.tables[table].decode(), batch.regions[region].decode()
            self._bytes[key] = self._bytes.get(key, 0) + int(sizes[mine].sum())
        for entry, end in zip(picked[sampled].tolist(), total[sampled].tolist(), strict=True):
            key = batch.table_and_region(entry)
            cells = index_cells(batch.buffer, int(batch.cells_start[entry]), int(batch.end[entry]))
            # Cells of one entry may be of many rows.
            before = end - int(batch.end[entry] - batch.cells_start[entry])
            marks = np.arange(before // SAMPLE_BYTES + 1, end // SAMPLE_BYTES + 1) * SAMPLE_BYTES - 1 - before
            at = np.searchsorted(cells.position, marks + int(batch.cells_start[entry]), side="right") - 1
            starts, lengths = cells.row_start[at].tolist(), cells.row_length[at].tolist()
            rows = [
                batch.buffer[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)
            ]
            self._rows.setdefault(key, []).extend(rows)

    def edits(self) -> tuple[MovedEdits, ...]:
        """What was counted, by table and region."""
        return tuple(
            MovedEdits(*key, size, tuple(self._rows.get(key, ()))) for key, size in sorted(self._bytes.items())
        )


class Tally:
    """Counts the entries and cells of the wanted tables in one file."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._tables = {table: [0, 0, 0, 0] for table in tables}

    def add(self, batch: EntryBatch) -> np.ndarray:
        """Count a batch. Returns a mask of the entries of wanted tables."""
        selected = batch.of_tables(self._tables)
        for table, mine in batch.each_table(self._tables):
            times = batch.write_time[mine]
            row = self._tables[table]
            row[2] = min(row[2], int(times.min())) if row[0] else int(times.min())
            row[3] = max(row[3], int(batch.write_time[mine & batch.holds_data].max(initial=0)))
            row[0] += int(mine.sum())
            row[1] += int(batch.cell_count[mine & batch.edits].sum())
        return selected

    def rows(self) -> tuple[TableTally, ...]:
        """One row per wanted table, even without entries."""
        return tuple(TableTally(table, *row) for table, row in self._tables.items())


def unreadable_markers(batch: EntryBatch, file: str, tables: Iterable[str]) -> list[Refusal]:
    """Markers of data that the log does not hold, or of an unknown kind."""
    found = []
    for i in np.flatnonzero(batch.data_elsewhere & batch.of_tables(set(tables))).tolist():
        kind = Marker(int(batch.marker[i]))
        what = "a bulk load, whose cells" if kind is Marker.BULK_LOAD else "an unknown kind of marker, whose data"
        reason = f"{what} the log does not hold"
        found.append(
            Refusal(
                file,
                int(batch.offset[i]),
                int(batch.offset_end[i]),
                *batch.table_and_region(i),
                int(batch.sequence_number[i]),
                reason,
                batch.buffer[batch.start[i] : batch.end[i]].tobytes(),
                RefusalKind.NOT_IN_LOG,
                int(batch.write_time[i]),
            )
        )
    return found


def damage(error: DamagedInputError) -> Refusal:
    """The refusal for the place in a file from which nothing can be read."""
    file, offset = str(error.facts["file"]), int(error.facts["offset"])
    return Refusal(file, offset, -1, ANY_TABLE, ANY_REGION, 0, str(error), b"", RefusalKind.DAMAGE)


def refuse(file: str, batch: EntryBatch, entry: int, reason: str) -> Refusal:
    """The refusal of one entry, with its bytes."""
    return Refusal(
        file,
        int(batch.offset[entry]),
        int(batch.offset_end[entry]),
        *batch.table_and_region(entry),
        int(batch.sequence_number[entry]),
        reason,
        batch.buffer[batch.start[entry] : batch.end[entry]].tobytes(),
        write_time=int(batch.write_time[entry]),
    )

"""Read sealed WAL files in the executors, and say what is in them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from walferry.errors import DamagedInputError, GapError, TransientError, UnfinishedInputError
from walferry.formats.cells import entry_cells
from walferry.formats.wal import Ending, EntryBatch, Marker, WalReader
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, find_wal

CLOSE_SECONDS = 20.0
NOT_IN_THE_LOG = "not in the log: "
"""how the reason begins for which a marker edit is refused"""


class SealedWal:
    """The entries of a file that its server has left, wherever it moved meanwhile, to its true end.

    Iterating raises TransientError when a live file's writer does not close it within `CLOSE_SECONDS`, GapError
    when the file is nowhere any more, DamagedInputError behind what precedes damage. An archived file without a
    trailer is a killed server's: its end is final. So is that of a live file without one whose length the NameNode
    knows by then: its writer broke (a DataNode failed), and the server writes what it had not acknowledged to the next.
    """

    def __init__(self, file_system: FileSystem, root: str, file: WalFile) -> None:
        self._file_system = file_system
        self._root = root
        self._file = file
        self.length = 0
        """bytes in the file, known behind the last entry"""

    def __iter__(self) -> Iterator[EntryBatch]:
        name = self._file.name
        deadline = time.monotonic() + CLOSE_SECONDS
        offset = 0
        while True:
            now = find_wal(self._file_system, self._root, self._file)
            if now is None:
                raise GapError(
                    f"WAL file {name} is gone from WALs, -splitting and oldWALs; last seen at {self._file.path}. "
                    "The log has a gap: abort this run and begin anew with a fresh snapshot",
                    file=name,
                    start=offset,
                    end=None,
                )
            ended = False
            try:
                chunks = self._file_system.read(now.path, offset)
                reader = WalReader.resume(chunks, name, offset) if offset else WalReader(chunks, name)
                yield from reader
                self.length, offset = reader.length, reader.end
                ended = reader.ending is Ending.WHOLE
            except FileNotFoundError:
                continue  # moved between the look and the read
            except UnfinishedInputError:
                pass  # no complete header yet: a server that died at once leaves such files
            if ended or now.place is Place.ARCHIVED:
                return
            if time.monotonic() > deadline:
                if 0 < now.length == self.length:
                    return
                raise TransientError(
                    f"WAL file {name} is not closed yet ({now.place.value}); it is tried again in the next round",
                    file=name,
                )
            time.sleep(0.5)


def table_cells(file_system: FileSystem, root: str, file: WalFile, table: str) -> Iterator[pa.RecordBatch]:
    """The cells of one table in a sealed file, markers left out (WAL_CELL_SCHEMA); what precedes damage."""
    with suppress(DamagedInputError):
        yield from cells_of(SealedWal(file_system, root, file), file.name, table)


def entry_at(wal: Iterable[EntryBatch], offset: int) -> bytes:
    """The bytes of the entry that begins at an offset of its file; ValueError when none does."""
    for batch in wal:
        for entry in np.flatnonzero(batch.base + batch.start == offset):
            return bytes(batch.buffer[batch.start[entry] : batch.end[entry]])
    raise ValueError(f"no entry begins at byte {offset}")


def cells_of(batches: Iterable[EntryBatch], file: str, table: str) -> Iterator[pa.RecordBatch]:
    """The cells of one table in a file's entries, markers left out (WAL_CELL_SCHEMA)."""
    for batch in batches:
        wanted = np.array([name == table.encode() for name in batch.tables] or [False])
        yield entry_cells(batch, file, wanted[batch.table] & (batch.marker == Marker.NONE))


@dataclass(frozen=True)
class TableTally:
    """What one file holds of one table: whole entries, their cells, first and last write time (ms)."""

    table: str
    entries: int
    cells: int
    first_write_ms: int
    last_write_ms: int


@dataclass(frozen=True)
class Refusal:
    """Bytes that could not be applied: region None means any region the file may hold."""

    file: str
    start: int
    end: int
    table: str
    region: str | None
    sequence_number: int
    reason: str
    data: bytes
    write_time: int = 0
    """ms; 0 for damage, which has none"""


@dataclass(frozen=True)
class Withheld:
    """Entries of a held region in one file, from an offset on."""

    file: str
    table: str
    region: str
    from_offset: int


@dataclass(frozen=True)
class FileReport:
    """What became of one file. `complete`: read and applied to its end, but for what is refused and withheld."""

    file: str
    length: int
    complete: bool
    tallies: tuple[TableTally, ...]
    refusals: tuple[Refusal, ...]
    withheld: tuple[Withheld, ...]


@dataclass(frozen=True)
class RegionEvent:
    """A region was opened or closed."""

    kind: Marker
    file: str
    offset: int
    table: str
    region: str
    sequence_number: int
    write_time: int


@dataclass(frozen=True)
class FileIndex:
    """What one file holds of the wanted tables: which regions, and what happened to them."""

    group: str
    report: FileReport
    regions: frozenset[tuple[str, str]]
    """(table, region) with edits"""
    events: tuple[RegionEvent, ...]


def index_file(wal: SealedWal, file: WalFile, tables: Collection[str]) -> FileIndex:
    """Read one sealed file: tallies, regions, region events and unreadable markers of the wanted tables."""
    tally = Tally(tables)
    regions: set[tuple[str, str]] = set()
    events: list[RegionEvent] = []
    refusals: list[Refusal] = []
    complete = True
    try:
        for batch in wal:
            selected = tally.add(batch)
            refusals += unreadable_markers(batch, file.name, tables)
            edits = selected & (batch.marker == Marker.NONE)
            pairs = np.unique(np.stack([batch.table[edits], batch.region[edits]]), axis=1)
            regions |= {(batch.tables[t].decode(), batch.regions[r].decode()) for t, r in pairs.T}
            opened = (batch.marker == Marker.REGION_OPEN) | (batch.marker == Marker.REGION_CLOSE)
            events += [_event(file, batch, int(i)) for i in np.flatnonzero(selected & opened)]
    except DamagedInputError as error:
        refusals.append(Refusal(file.name, int(error.facts["offset"]), -1, "*", None, 0, str(error), b""))
        complete = False
    report = FileReport(file.name, wal.length if complete else file.length, complete, tally.rows(), tuple(refusals), ())
    return FileIndex(file.group, report, frozenset(regions), tuple(events))


def _event(file: WalFile, batch: EntryBatch, entry: int) -> RegionEvent:
    return RegionEvent(
        Marker(int(batch.marker[entry])),
        file.name,
        batch.base + int(batch.start[entry]),
        batch.tables[batch.table[entry]].decode(),
        batch.regions[batch.region[entry]].decode(),
        int(batch.sequence_number[entry]),
        int(batch.write_time[entry]),
    )


class Tally:
    """Counts the entries and cells of the wanted tables in one file."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._tables = {table.encode(): [0, 0, 0, 0] for table in tables}

    def add(self, batch: EntryBatch) -> np.ndarray:
        """Count a batch; a mask of the entries that belong to a wanted table."""
        wanted = np.array([name in self._tables for name in batch.tables] or [False])
        selected = wanted[batch.table] if len(batch) else np.zeros(0, bool)
        for code in np.unique(batch.table[selected]):
            mine = batch.table == code
            times = batch.write_time[mine]
            row = self._tables[batch.tables[code]]
            row[2] = min(row[2], int(times.min())) if row[0] else int(times.min())
            row[3] = max(row[3], int(times.max()))
            row[0] += int(mine.sum())
            row[1] += int(batch.cell_count[mine & (batch.marker == Marker.NONE)].sum())
        return selected

    def rows(self) -> tuple[TableTally, ...]:
        """One row for each wanted table, those without entries too."""
        return tuple(TableTally(table.decode(), *row) for table, row in self._tables.items())


def unreadable_markers(batch: EntryBatch, file: str, tables: Iterable[str]) -> list[Refusal]:
    """Marker edits that stand for data which the log does not hold, or whose meaning is not known."""
    wanted = set(tables)
    found = []
    for i in np.flatnonzero((batch.marker == Marker.BULK_LOAD) | (batch.marker == Marker.UNKNOWN)):
        table = batch.tables[batch.table[i]].decode()
        if table not in wanted:
            continue
        kind = Marker(int(batch.marker[i]))
        what = "a bulk load, whose cells" if kind is Marker.BULK_LOAD else "an unknown kind of marker, whose data"
        reason = f"{NOT_IN_THE_LOG}{what} the log does not hold"
        found.append(
            Refusal(
                file,
                batch.base + int(batch.start[i]),
                batch.base + int(batch.end[i]),
                table,
                batch.regions[batch.region[i]].decode(),
                int(batch.sequence_number[i]),
                reason,
                batch.buffer[batch.start[i] : batch.end[i]].tobytes(),
                int(batch.write_time[i]),
            )
        )
    return found


def refuse(file: str, batch: EntryBatch, entry: int, reason: str) -> Refusal:
    """Describe one entry that is not applied, with its bytes."""
    return Refusal(
        file,
        batch.base + int(batch.start[entry]),
        batch.base + int(batch.end[entry]),
        batch.tables[batch.table[entry]].decode(),
        batch.regions[batch.region[entry]].decode(),
        int(batch.sequence_number[entry]),
        reason,
        batch.buffer[batch.start[entry] : batch.end[entry]].tobytes(),
        int(batch.write_time[entry]),
    )

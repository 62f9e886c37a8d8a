"""Find what was written to a cluster since a place in its log: rows, and events of regions.

No peer keeps the log for a pair, so parts of the log after a place may be missing. The missing parts are reported by
server, because a region has nothing in the files of servers that it was never on. Nothing is changed on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walferry.errors import DamagedInputError, GapError, WalKeyError
from walferry.formats.cells import CellIndex, CellType, binary_column, gather, index_cells
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.hbase.address import ClusterAddress
from walferry.spark.clients import shared_log_files
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, if_sealed, parse_wal_name
from walferry.wal.live_tail import list_certain
from walferry.wal.offsets import CertainListing
from walferry.wal.open import Until, open_wal

ROWS_PER_REGION = 50_000
"""the most written rows of a region that are named; if there are more, the whole region is read"""
MARGIN_MS = 60_000
"""the most by which the clocks of NameNode, master and this process may differ"""
COMPACTED = "compacted since it was last read, with markers of single versions or cells with tags"
LOADED = "a bulk load, or a marker of an unknown kind, whose rows the log does not name"
MANY = f"more than {ROWS_PER_REGION} of its rows were written since it was last read"


@dataclass(frozen=True)
class ReadGroup:
    """How far one WAL group was read: all files up to `newest` to their ends, except the open ones."""

    newest: int
    open: Mapping[int, int]
    """for each file that was not sealed: its number, and the offset up to which it was read"""


@dataclass(frozen=True)
class PlaceInLog:
    """A moment in the log of a cluster: all earlier edits are in what was read."""

    at_ms: int
    """a moment before the files were listed"""
    groups: Mapping[str, ReadGroup] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The groups as plain values."""
        return {
            name: {"newest": group.newest, "open": {str(number): end for number, end in group.open.items()}}
            for name, group in self.groups.items()
        }

    @classmethod
    def from_json(cls, at_ms: int, value: Mapping[str, Any]) -> PlaceInLog:
        """The inverse of `as_json`."""
        groups = {
            name: ReadGroup(found["newest"], {int(number): end for number, end in found["open"].items()})
            for name, found in value.items()
        }
        return cls(at_ms, groups)


@dataclass(frozen=True)
class UnreadFile:
    """A file to read from an offset on, for its rows or only to find its end."""

    file: WalFile
    start: int
    for_rows: bool

    @property
    def bytes(self) -> int:
        """The least number of bytes to read: the NameNode lists an open file with length 0."""
        return max(0, self.file.length - self.start) if self.for_rows else 0


def gaps_since(place: PlaceInLog, listing: CertainListing, now_ms: int, ttl_ms: float) -> dict[str, str]:
    """Servers whose log since `place` is or may be incomplete, each with the reason. `ttl_ms`: the log cleaner's time
    to live.

    Any file started later was closed after the file that was open at `place`. So if that file cannot have been deleted
    yet, neither can any later file.
    """
    found: dict[str, str] = {}
    for name, group in place.groups.items():
        parsed = parse_wal_name(f"{name}.{group.newest}")
        files = {file.number: file for file in listing.groups.get(name, ())}
        if parsed is None or (name not in listing.groups and not group.open):
            continue  # the group had ended, and all of it was read
        for number, end in group.open.items():
            if number not in files:
                found[parsed.server] = f"WAL file {name}.{number} no longer exists, and was read only up to byte {end}"
        rolled = bool(files) and max(files) > group.newest
        closed = [files[number].modified_ms for number in group.open if number in files]
        if parsed.server not in found and rolled and min(closed, default=place.at_ms) < now_ms - ttl_ms + MARGIN_MS:
            since = datetime.fromtimestamp(min(closed, default=place.at_ms) / 1000, UTC)
            found[parsed.server] = (
                f"WAL files of {parsed.server} that were closed since {since:%Y-%m-%d %H:%M:%S} UTC may have been "
                f"deleted: the cleaner keeps them for {ttl_ms / 1000:.0f} s"
            )
    return found


def spans_since(
    listing: CertainListing,
    places: Sequence[PlaceInLog],
    without: Iterable[str],
    is_sealed: Callable[[WalFile], bool],
) -> list[UnreadFile]:
    """For each file, the part to read since the earliest of the places. Files of the servers `without` are read only to
    find their ends, not for rows."""
    left_out, spans = set(without), []
    for name, files in listing.groups.items():
        newest = files[-1].number
        for file in files:
            starts = [start for place in places if (start := _start(place.groups.get(name), file)) is not None]
            if places and file.server not in left_out:
                if starts:
                    spans.append(UnreadFile(file, min(starts), True))
            elif file.place is not Place.ARCHIVED and (file.number == newest or not is_sealed(file)):
                spans.append(UnreadFile(file, min(starts, default=0), False))
    return spans


def _start(group: ReadGroup | None, file: WalFile) -> int | None:
    """The offset from which to read a file; None if all of it was read."""
    if group is None or file.number > group.newest:
        return 0
    return group.open.get(file.number)


def listing_since(files: FileSystem, root: str, places: Sequence[PlaceInLog]) -> CertainListing:
    """List the log's files as they are now."""
    known: dict[str, int] = {}
    for place in places:
        for name, group in place.groups.items():
            known[name] = max(known.get(name, -1), group.newest)
    return list_certain(files, root, known)


def sealed_by(files: FileSystem, root: str) -> Callable[[WalFile], bool]:
    """A function that returns whether a file is sealed, according to its own trailer."""
    return lambda file: if_sealed(files, root, file) is not None


# ------------------------------------------------------------------ reading, in the executors


@dataclass(frozen=True)
class LogTask:
    """A span of a cluster's log to read, and the tables whose rows to collect."""

    address: ClusterAddress
    span: UnreadFile
    tables: tuple[str, ...]


@dataclass(frozen=True)
class FileNews:
    """The content of a span."""

    file: WalFile
    end: int
    sealed: bool
    size: int
    """bytes that were read"""
    rows: Mapping[str, list[bytes]]
    """rows of each table"""
    marks: Mapping[tuple[str, str], str]
    """by table and region: why rows other than those in `rows` may have changed"""
    compacted: frozenset[tuple[str, str]]
    fragile: frozenset[tuple[str, str]]
    """regions that written cells make fragile (`is_fragile`)"""
    error: str = ""
    """why the span could not be read"""


def is_fragile(cells: CellIndex) -> bool:
    """Whether a compaction of the rows of these cells may drop cells that would have become visible later.

    A compaction drops versions beyond VERSIONS. An older version would have become visible if a marker in another file
    deletes exactly a newer one, or if a newer one has its own TTL (a tag).
    """
    exact = np.isin(cells.type, (CellType.DELETE, CellType.DELETE_FAMILY_VERSION))
    return bool(exact.any() or (cells.tags_length > 0).any())


@dataclass
class _Found:
    """The content of a span as read so far, by table and region."""

    rows: dict[tuple[str, str], pa.Array] = field(default_factory=dict)
    marks: dict[tuple[str, str], str] = field(default_factory=dict)
    compacted: set[tuple[str, str]] = field(default_factory=set)
    fragile: set[tuple[str, str]] = field(default_factory=set)


def read_span(task: LogTask) -> Iterator[FileNews]:
    """Read the rows of a span and its markers, in an executor. Raises TransientError."""
    span, found = task.span, _Found()
    end, error = span.start, ""
    wal = open_wal(shared_log_files(task.address), task.address.wal_path, span.file, Until.NOW, start=span.start)
    try:
        for batch in wal:
            end = int(batch.offset_end[-1])
            if span.for_rows:
                _take(batch, task.tables, found)
    except (DamagedInputError, GapError, WalKeyError) as failed:
        error = str(failed)
    sealed = not error and (span.file.place is Place.ARCHIVED or wal.unfinished is None)
    rows: dict[str, list[bytes]] = {}
    for (table, _), keys in found.rows.items():
        rows.setdefault(table, []).extend(keys.to_pylist())
    yield FileNews(
        span.file, end, sealed, end - span.start, rows, found.marks, frozenset(found.compacted),
        frozenset(found.fragile), error,
    )  # fmt: skip


def _take(batch: EntryBatch, tables: Sequence[str], found: _Found) -> None:
    """Add the content of a batch."""
    mine = batch.of_tables(tables)
    for entry in np.flatnonzero(mine & (batch.marker == Marker.COMPACTION)).tolist():
        found.compacted.add(batch.table_and_region(entry))
    for entry in np.flatnonzero(mine & batch.data_elsewhere).tolist():
        _leave_to_whole(found, batch.table_and_region(entry), LOADED)
    edits = mine & batch.edits
    for region in np.unique(batch.region[edits]).tolist():
        entries = np.flatnonzero(edits & (batch.region == region))
        if (name := batch.table_and_region(int(entries[0]))) in found.marks:
            continue
        part = batch.take(entries)
        cells = index_cells(gather(part.buffer, part.cells_start, part.end))
        if is_fragile(cells):
            found.fragile.add(name)
        rows = pc.unique(binary_column(cells.buffer, cells.row_start, cells.row_length))
        known = found.rows.get(name)
        found.rows[name] = rows if known is None else pc.unique(pa.concat_arrays([known, rows]))
        if len(found.rows[name]) > ROWS_PER_REGION:
            _leave_to_whole(found, name, MANY)


def _leave_to_whole(found: _Found, name: tuple[str, str], why: str) -> None:
    """Mark a region to be read whole; its rows need no names then."""
    found.marks.setdefault(name, why)
    found.rows.pop(name, None)


def place_after(at_ms: int, listing: CertainListing, read: Iterable[FileNews]) -> PlaceInLog:
    """The place in the log after the parts that were read."""
    open_files: dict[str, dict[int, int]] = {}
    for news in read:
        if not news.sealed:
            open_files.setdefault(news.file.group, {})[news.file.number] = news.end
    groups = {name: ReadGroup(files[-1].number, open_files.get(name, {})) for name, files in listing.groups.items()}
    return PlaceInLog(at_ms, groups)

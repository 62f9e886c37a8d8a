"""What a sealed WAL file holds, read without applying anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from walferry.apply.outcomes import FileReport, Refusal, Tally, damage, unreadable_markers
from walferry.errors import DamagedInputError
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch
from walferry.spark.byte_counts import count_bytes
from walferry.wal.files import WalFile
from walferry.wal.open import Wal

_EVENTS = (Marker.REGION_OPEN, Marker.REGION_CLOSE, Marker.FLUSH, Marker.COMPACTION)


@dataclass(frozen=True)
class RegionEvent:
    """A region was opened, closed, flushed or compacted."""

    kind: Marker
    file: str
    offset: int
    table: str
    region: str
    sequence_number: int
    write_time: int
    files: frozenset[str] = frozenset()
    """store files, by name: of an opening all of the region's, of a flush or compaction those that it made"""
    replaced: frozenset[str] = frozenset()
    """store files that a compaction took out"""


@dataclass(frozen=True)
class FileIndex:
    """What one file holds of the wanted tables: which regions, and what happened to them."""

    group: str
    report: FileReport
    regions: frozenset[tuple[str, str]]
    """(table, region) with edits"""
    events: tuple[RegionEvent, ...]


def index_file(wal: Wal, file: WalFile, tables: Collection[str]) -> FileIndex:
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
            if len(batch):
                count_bytes(int(batch.end[-1] - batch.start[0]))
            told = np.isin(batch.marker, [int(kind) for kind in _EVENTS])
            events += [_event(file, batch, int(i)) for i in np.flatnonzero(selected & told)]
    except DamagedInputError as error:
        refusals.append(damage(error))
        complete = False
    report = FileReport(file.name, wal.length if complete else file.length, complete, tally.rows(), tuple(refusals), ())
    return FileIndex(file.group, report, frozenset(regions), tuple(events))


def _event(file: WalFile, batch: EntryBatch, entry: int) -> RegionEvent:
    kind = Marker(int(batch.marker[entry]))
    offset = batch.base + int(batch.start[entry])
    try:
        files, replaced = _store_files(kind, batch.buffer[batch.cells_start[entry] : batch.end[entry]])
    except DecodeError as error:
        raise DamagedInputError(
            f"{file.name} is damaged at byte {offset}: the marker of a {kind.name.lower()} cannot be read: {error}",
            file=file.name, offset=offset,
        ) from error  # fmt: skip
    return RegionEvent(
        kind,
        file.name,
        offset,
        batch.tables[batch.table[entry]].decode(),
        batch.regions[batch.region[entry]].decode(),
        int(batch.sequence_number[entry]),
        int(batch.write_time[entry]),
        files,
        replaced,
    )


def _store_files(kind: Marker, cell: np.ndarray) -> tuple[frozenset[str], frozenset[str]]:
    """What a marker's cell tells of store files: those that are there or were made, those that were taken out.

    Of a closing nothing: HBase has let go of the files when it writes that marker (HRegion.doClose).
    """
    if kind is Marker.REGION_CLOSE:
        return frozenset(), frozenset()
    (value,) = cells_to_arrow(index_cells(cell))["value"].to_pylist()
    if kind is Marker.REGION_OPEN:
        opened = pb.RegionEventDescriptor.FromString(value)
        return frozenset(name for store in opened.stores for name in store.store_file), frozenset()
    if kind is Marker.FLUSH:
        flushed = pb.FlushDescriptor.FromString(value)
        if flushed.action == pb.FlushDescriptor.COMMIT_FLUSH:
            return frozenset(name for store in flushed.store_flushes for name in store.flush_output), frozenset()
    if kind is Marker.COMPACTION:
        compacted = pb.CompactionDescriptor.FromString(value)
        return frozenset(compacted.compaction_output), frozenset(compacted.compaction_input)
    return frozenset(), frozenset()

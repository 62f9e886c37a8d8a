"""What the log says about regions and their store files: markers that HBase writes between the edits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from walferry.errors import DamagedInputError
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch

_KINDS = (Marker.REGION_OPEN, Marker.REGION_CLOSE, Marker.FLUSH, Marker.COMPACTION, Marker.BULK_LOAD)


@dataclass(frozen=True)
class RegionEvent:
    """A region was opened, closed, flushed or compacted, or files were loaded into it."""

    kind: Marker
    file: str
    offset: int
    table: str
    region: str
    sequence_number: int
    write_time: int
    files: frozenset[str] = frozenset()
    """names of store files: for an opening all of the region's, otherwise those added"""
    replaced: frozenset[str] = frozenset()
    """names of store files that a compaction removed"""


def region_events(batch: EntryBatch, file: str, selected: np.ndarray) -> Iterator[RegionEvent]:
    """The events among the selected entries. Raises DamagedInputError for a marker that cannot be read."""
    kinds = np.isin(batch.marker, [int(kind) for kind in _KINDS])
    for entry in np.flatnonzero(selected & kinds).tolist():
        kind = Marker(int(batch.marker[entry]))
        offset = batch.base + int(batch.start[entry])
        try:
            files, replaced = _store_files(kind, batch.buffer[batch.cells_start[entry] : batch.end[entry]])
        except DecodeError as error:
            raise DamagedInputError(
                f"{file} is damaged at byte {offset}: the marker of a {kind.name.lower()} cannot be read: {error}",
                file=file, offset=offset,
            ) from error  # fmt: skip
        yield RegionEvent(
            kind,
            file,
            offset,
            batch.tables[batch.table[entry]].decode(),
            batch.regions[batch.region[entry]].decode(),
            int(batch.sequence_number[entry]),
            int(batch.write_time[entry]),
            files,
            replaced,
        )


def _store_files(kind: Marker, cell: np.ndarray) -> tuple[frozenset[str], frozenset[str]]:
    """The store files in a marker's cell: those that the region has or gained, and those that it lost.

    None for a closing: HBase has released the files when it writes that marker (HRegion.doClose).
    """
    if kind is Marker.REGION_CLOSE:
        return frozenset(), frozenset()
    (value,) = cells_to_arrow(index_cells(cell))["value"].to_pylist()
    if kind is Marker.REGION_OPEN:
        opened = pb.RegionEventDescriptor.FromString(value)
        return frozenset(name for store in opened.stores for name in store.store_file), frozenset()
    if kind is Marker.BULK_LOAD:
        loaded = pb.BulkLoadDescriptor.FromString(value)
        return frozenset(name for store in loaded.stores for name in store.store_file), frozenset()
    if kind is Marker.COMPACTION:
        compacted = pb.CompactionDescriptor.FromString(value)
        return frozenset(compacted.compaction_output), frozenset(compacted.compaction_input)
    flushed = pb.FlushDescriptor.FromString(value)
    if flushed.action == pb.FlushDescriptor.COMMIT_FLUSH:
        return frozenset(name for store in flushed.store_flushes for name in store.flush_output), frozenset()
    return frozenset(), frozenset()

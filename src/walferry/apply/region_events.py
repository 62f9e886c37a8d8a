"""What the log says about regions and their store files: markers that HBase writes between the edits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from walferry.errors import DamagedInputError
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.formats.markers import REGION_EVENTS, Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch


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
    """store files (`store_file`): for an opening, all files of the region; otherwise the files that were added"""
    replaced: frozenset[str] = frozenset()
    """store files that a compaction removed"""
    row: bytes = b""
    """the region's first row; a zero byte for the table's first region (WALEdit.getRowForRegion)"""


def store_file(family: bytes, name: str) -> str:
    """The id of a store file: "family/name". The family is quoted, because its name may have blanks."""
    return f"{quote(family)}/{name}"


def family_of(file: str) -> str:
    """The column family of a `store_file`."""
    return unquote(file.partition("/")[0])


def region_events(batch: EntryBatch, file: str, selected: np.ndarray) -> Iterator[RegionEvent]:
    """The events among the selected entries. Raises DamagedInputError for a marker that cannot be read."""
    for entry in np.flatnonzero(selected & batch.of_kinds(REGION_EVENTS)).tolist():
        kind = Marker(int(batch.marker[entry]))
        offset = int(batch.offset[entry])
        try:
            cell = cells_to_arrow(index_cells(batch.buffer[batch.cells_start[entry] : batch.end[entry]]))
            files, replaced = _store_files(kind, cell["value"][0].as_py())
        except DecodeError as error:
            raise DamagedInputError(
                f"{file} is damaged at byte {offset}: the marker of a {kind.name.lower()} cannot be read: {error}",
                file=file, offset=offset,
            ) from error  # fmt: skip
        yield RegionEvent(
            kind,
            file,
            offset,
            *batch.table_and_region(entry),
            int(batch.sequence_number[entry]),
            int(batch.write_time[entry]),
            files,
            replaced,
            cell["row"][0].as_py(),
        )


def _store_files(kind: Marker, value: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """The store files in a marker: files that the region has or gained, and files that it lost.

    A closing names no files: HBase has already released them when it writes the marker (HRegion.doClose).
    """
    added: Iterable[tuple[bytes, Iterable[str]]] = ()
    removed: Iterable[str] = ()
    if kind is Marker.REGION_OPEN:
        opened = pb.RegionEventDescriptor.FromString(value)
        added = ((store.family_name, store.store_file) for store in opened.stores)
    elif kind is Marker.BULK_LOAD:
        loaded = pb.BulkLoadDescriptor.FromString(value)
        added = ((store.family_name, store.store_file) for store in loaded.stores)
    elif kind is Marker.COMPACTION:
        compacted = pb.CompactionDescriptor.FromString(value)
        added = [(compacted.family_name, compacted.compaction_output)]
        removed = (store_file(compacted.family_name, name) for name in compacted.compaction_input)
    elif kind is Marker.FLUSH:
        flushed = pb.FlushDescriptor.FromString(value)
        if flushed.action == pb.FlushDescriptor.COMMIT_FLUSH:
            added = ((store.family_name, store.flush_output) for store in flushed.store_flushes)
    return frozenset(store_file(family, name) for family, names in added for name in names), frozenset(removed)


class Origin(NamedTuple):
    """What a region's name says."""

    start: bytes
    """its first row"""
    region_id: int
    """RegionInfo.region_id: when it was made, in ms; greater than those of the regions that had its rows before"""


def origins(batch: EntryBatch, picked: npt.NDArray[np.intp]) -> dict[str, Origin]:
    """The origins of the regions whose openings are among these entries, by encoded name."""
    found = {}
    for entry in picked[batch.marker[picked] == Marker.REGION_OPEN].tolist():
        cell = cells_to_arrow(index_cells(batch.buffer[batch.cells_start[entry] : batch.end[entry]]))
        with suppress(DecodeError, ValueError):
            opened = pb.RegionEventDescriptor.FromString(cell["value"][0].as_py())
            table, region = batch.table_and_region(entry)
            start, _, rest = opened.region_name.removeprefix(f"{table},".encode()).rpartition(b",")
            found[region] = Origin(start, int(rest.partition(b".")[0]))
    return found

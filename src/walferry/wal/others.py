"""Finds rows and cells of a cluster's tables that came from elsewhere than one known cluster, such as from the
cluster's own clients. The log shows this, since each edit names the clusters that it came from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from walferry.errors import WalferryError
from walferry.formats.cells import binary_column, cells_to_arrow, index_cells
from walferry.formats.entries import index_entry_cells, rows_of
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, parse_wal_name
from walferry.wal.live_tail import LiveTail
from walferry.wal.offsets import FileSpan, Offset
from walferry.wal.open import Until, Wal, open_wal

MOST_ROWS = 300_000
"""how many rows of a table are named"""
MOST_BYTES = 1 << 30
"""how much log is read for cells"""


@dataclass
class WrittenByOthers:
    """What others wrote between two positions of a log."""

    end: Offset
    """where to continue reading"""
    rows: dict[str, set[bytes]] = field(default_factory=dict)
    """by table"""
    unnamed: dict[str, str] = field(default_factory=dict)
    """tables whose rows are not all known, and why"""
    read_bytes: int = 0


def log_end(files: FileSystem, root: str) -> Offset:
    """The position at which a log ends now."""
    return LiveTail(files, root).at_end()


def written_by_others(
    files: FileSystem, root: str, start: Offset, tables: Collection[str], known: UUID
) -> WrittenByOthers:
    """What clusters and clients other than the cluster `known` wrote to the tables since a position of the log below
    `root`, as far as sealed and open files show it now.

    Raises GapError for a log that was deleted before it was read, and the errors of reading logs.
    """
    end = LiveTail(files, root).next(start)
    found = WrittenByOthers(Offset(end.batch, end.groups))
    for span in end.spans if end is not start else ():
        for batch in _entries(files, root, span):
            _add(found, batch, tables, known, span.file)
        found.read_bytes += span.stop - span.start
    return found


def cells_by_others(
    files: FileSystem,
    root: str,
    start: Offset,
    table: str,
    rows: Collection[bytes],
    known: UUID,
    most_bytes: int = MOST_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The cells, as CELL_SCHEMA, that others than the cluster `known` wrote to rows of a table since a position.

    Raises LongLogError if there is more log than `most_bytes`, and the errors of `written_by_others`. The log does not
    have bulk-loaded cells.
    """
    end = LiveTail(files, root).next(start)
    spans = end.spans if end is not start else ()
    size = sum(span.stop - span.start for span in spans)
    if size > most_bytes:
        raise LongLogError(f"{size / 1e6:.0f} MB of log were written since then", size=size)
    wanted = pa.array(sorted(rows), pa.binary())
    for span in spans:
        for batch in _entries(files, root, span):
            theirs = batch.edits & batch.of_tables({table}) & _by_others(batch, known)
            entries = batch.take(np.flatnonzero(theirs))
            cells, _, _ = index_entry_cells(entries)
            found = pc.is_in(binary_column(cells.buffer, cells.row_start, cells.row_length), wanted)
            yield cells_to_arrow(cells.pick(np.flatnonzero(found.to_numpy(zero_copy_only=False))))


class LongLogError(WalferryError):
    """There is more log than may be read; fact `size`, in bytes."""


def _by_others(batch: EntryBatch, known: UUID) -> npt.NDArray[np.bool_]:
    """Which entries do not name the cluster."""
    theirs = ~np.array([names(raw, known) for raw in batch.cluster_lists] or [False])
    return theirs[batch.clusters]


def _entries(files: FileSystem, root: str, span: FileSpan) -> Wal:
    name = parse_wal_name(span.file)
    assert name is not None  # it was listed
    file = WalFile(span.file, *name, path=span.file, place=Place.LIVE, length=0)
    stop = None if span.sealed else span.stop
    return open_wal(files, root, file, Until.NOW, start=span.start, stop=stop)


def _add(found: WrittenByOthers, batch: EntryBatch, asked: Collection[str], known: UUID, file: str) -> None:
    theirs = _by_others(batch, known)
    for table, mine in batch.each_table(asked):
        rows = found.rows.setdefault(table, set())
        rows.update(rows_of(batch, np.flatnonzero(mine & theirs & batch.edits)).to_pylist())
        if len(rows) > MOST_ROWS:
            rows.clear()
            found.unnamed[table] = f"others wrote more than {MOST_ROWS} of its rows at the target"
        loads = np.flatnonzero(mine & batch.data_elsewhere)
        if any(not _is_load_of(batch, entry, known) for entry in loads.tolist()):
            found.unnamed[table] = f"others loaded files into it at the target, according to log {file}"


def names(clusters: bytes, known: UUID) -> bool:
    """Whether the raw `cluster_ids` fields of an entry name a cluster."""
    bits = known.int
    field_ = pb.UUID(least_sig_bits=bits & (1 << 64) - 1, most_sig_bits=bits >> 64).SerializeToString()
    return bytes([_CLUSTER_IDS, len(field_)]) + field_ in clusters


def _is_load_of(batch: EntryBatch, entry: int, known: UUID) -> bool:
    """Whether the entry is the marker of a bulk load that names the cluster. Before HBASE-22380 markers name none."""
    if batch.marker[entry] != Marker.BULK_LOAD:
        return False
    cell = cells_to_arrow(index_cells(batch.buffer[batch.cells_start[entry] : batch.end[entry]]))
    try:
        return str(known) in pb.BulkLoadDescriptor.FromString(cell["value"][0].as_py()).cluster_ids
    except DecodeError:
        return False


_CLUSTER_IDS = 8 << 3 | 2
"""WALKey.cluster_ids: number 8, with a length"""

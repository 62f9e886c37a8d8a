"""The rows of a snapshot as entries, one for each row, so that they become messages as those of the log do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from walferry.formats.cells import Bytes, CellIndex, Int64s, as_run, row_at, row_starts
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.snapshots.manifest import SnapshotRegion, cells_of
from walferry.storage import FileSystem

CHUNK_CELLS = 20_000
"""cells of a batch at most, but for a larger row"""


@dataclass(frozen=True)
class Rows:
    """Whole rows of a region, one entry each."""

    batch: EntryBatch
    next: bytes
    """the first row that may follow"""


def rows_of(
    files: FileSystem, table: str, region: SnapshotRegion, start: bytes, number: int, taken_ms: int
) -> Iterator[Rows]:
    """The rows of a region from `start` on, in order, with all that its store files have of them: versions and markers,
    too, whether a read would show them or not. Of cells with equal keys only the newest is there.

    Entries have the sequence number `number` and the write time `taken_ms`. Raises UnreadableInputError and
    DamagedInputError for a store file. Memory: as `merge.merged`, and twice a batch.
    """
    wanted = replace(region, start=max(start, region.start))
    for cells in cells_of(files, wanted, None):
        yield from _cut(cells, table, region.name, number, taken_ms)


def _cut(cells: CellIndex, table: str, region: str, number: int, taken_ms: int) -> Iterator[Rows]:
    run, starts = as_run(cells)
    rows = row_starts(run, starts)
    first = 0
    while first < len(rows):
        stop = max(first + 1, int(np.searchsorted(rows, rows[first] + CHUNK_CELLS)))
        begins = rows[first:stop]
        ends = np.append(rows[first + 1 : stop], rows[stop] if stop < len(rows) else len(starts))
        last = row_at(run, int(starts[begins[-1]]))
        yield Rows(
            _batch(run, np.append(starts, len(run)), begins, ends, (table, region), number, taken_ms), last + b"\0"
        )
        first = stop


def _batch(
    run: Bytes, starts: Int64s, begins: Int64s, ends: Int64s, names: tuple[str, str], number: int, taken_ms: int
) -> EntryBatch:
    count = len(begins)
    zeros, ones, offsets = np.zeros(count, np.int32), np.ones(count, np.int32), np.zeros(count, np.int64)
    begin, end = starts[begins], starts[ends]
    table, region = names
    return EntryBatch(
        buffer=run,
        offset=offsets,
        offset_end=offsets,
        start=begin,
        end=end,
        key_start=begin,
        key_end=begin,
        cell_count=(ends - begins).astype(np.int32),
        mutation_count=ones,
        sequence_number=np.full(count, number, np.int64),
        write_time=np.full(count, taken_ms, np.int64),
        region=zeros,
        regions=[region.encode()],
        table=zeros,
        tables=[table.encode()],
        clusters=zeros,
        cluster_lists=[b""],
        marker=np.full(count, int(Marker.NONE), np.int8),
    )

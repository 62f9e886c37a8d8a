"""A call of HBase's replication as a batch of entries (AdminService.ReplicateWALEntry, 1.x to 3.x).

    parameter = ReplicateWALEntryRequest: for each entry its WALKey, and how many cells it has
    cells = the cells of all entries, one after the other: (int32 length + KeyValue with tags)*

A key is the one of the source's log, never compressed. Its `following_kv_count` says nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walferry.errors import WalferryError
from walferry.formats import _call_kernels as kernels
from walferry.formats import _wal_kernels as columns
from walferry.formats._cell_kernels import OK
from walferry.formats.cells import Bytes, Int64s, gather
from walferry.formats.names import Names
from walferry.formats.wal import EntryBatch


class BadCallError(WalferryError):
    """A call that no HBase sends: facts `entry` (its number in the call), `place` (`request` or `cell block`), `offset`
    in it, `reason`."""


@dataclass(frozen=True)
class ReceivedEntries:
    """The entries of a call. What it says of its source's name and folders is not read.

    In the batch, `offset` is an entry's number in the call and `offset_end` the next one. Its keys are not in `buffer`,
    which is the cell block: `start`, `key_start` and `key_end` are where an entry's cells begin.
    """

    batch: EntryBatch
    request: Bytes
    messages: Int64s
    """[2, n]: where each entry begins and ends in `request`"""

    def call_of(self, picked: npt.NDArray[np.intp]) -> tuple[bytes, bytes]:
        """Parameter and cell block of a call with some of the entries."""
        parts = ((self.request, *self.messages), (self.batch.buffer, self.batch.cells_start, self.batch.end))
        parameter, cells = (gather(buffer, start[picked], end[picked]).tobytes() for buffer, start, end in parts)
        return parameter, cells


def entries_of(parameter: memoryview, cells: memoryview) -> ReceivedEntries:
    """Read a call from its parameter, without the length before it, and its cell block; neither is copied.

    Takes memory of a bytearray: kernels are compiled once more for memory that cannot be written. Raises BadCallError
    for a call whose structure is broken anywhere.
    """
    request, buffer = np.frombuffer(parameter, np.uint8), np.frombuffer(cells, np.uint8)
    status, count, wrong = kernels.count_entries(request)
    if status != OK:
        raise _bad(count, "request", wrong, kernels.REASONS[status])
    fields, messages = np.empty((columns.ENTRY_FIELDS, count), np.int64), np.empty((2, count), np.int64)
    status, whole, wrong, in_cells = kernels.scan_call(request, buffer, fields, messages)
    if status != OK:
        raise _bad(whole, "cell block" if in_cells else "request", wrong, kernels.REASONS[status])
    return ReceivedEntries(_batch(request, buffer, fields), request, messages)


def _batch(request: Bytes, buffer: Bytes, fields: Int64s) -> EntryBatch:
    regions, tables, clusters = Names(text=True), Names(text=True), Names()
    region = regions.codes(request, fields[columns.REGION_START], fields[columns.REGION_LENGTH])
    table = tables.codes(request, fields[columns.TABLE_START], fields[columns.TABLE_LENGTH])
    for codes, start in ((region, columns.REGION_START), (table, columns.TABLE_START)):
        if len(wrong := np.flatnonzero(codes < 0)):
            entry = int(wrong[0])
            raise _bad(entry, "request", int(fields[start, entry]), kernels.REASONS[columns.NAME_NOT_TEXT])
    numbers = np.arange(fields.shape[1], dtype=np.int64)
    return EntryBatch(
        buffer=buffer,
        offset=numbers,
        offset_end=numbers + 1,
        start=fields[columns.START],
        end=fields[columns.END],
        key_start=fields[columns.KEY_START],
        key_end=fields[columns.KEY_END],
        cell_count=fields[columns.CELL_COUNT].astype(np.int32),
        mutation_count=fields[columns.MUTATION_COUNT].astype(np.int32),
        sequence_number=fields[columns.SEQUENCE_NUMBER],
        write_time=fields[columns.WRITE_TIME],
        region=region,
        regions=regions.names,
        table=table,
        tables=tables.names,
        clusters=clusters.codes(request, fields[columns.CLUSTERS_START], fields[columns.CLUSTERS_LENGTH]),
        cluster_lists=clusters.names,
        marker=fields[columns.MARKER].astype(np.int8),
    )


def _bad(entry: int, place: str, offset: int, reason: str) -> BadCallError:
    return BadCallError(
        f"a call of replication cannot be read from its entry {entry} on (byte {offset} of its {place}): {reason}. "
        "Its sender repeats it; if that does not help, look for damage in the sender's log",
        entry=entry,
        place=place,
        offset=offset,
        reason=reason,
    )

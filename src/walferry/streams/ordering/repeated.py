"""Entries that come with a number that was passed on already.

Within a stay a region's numbers only rise. So such an entry is one that its server has written again: if a log's data
nodes fail, the server writes what it has no acknowledgement for to its next log. The earlier log may have been sealed
without such an entry, although it had shown it, and the region's read point, which the entry has reached by its second
copy, may have let the first one pass.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from walferry.errors import WalferryError
from walferry.formats.wal import EntryBatch
from walferry.storage import FileSystem
from walferry.streams.ordering.stays import Taken
from walferry.wal.files import WalFile
from walferry.wal.open import Until, open_wal

log = logging.getLogger(__name__)

LOOK_BACK_FILES = 3
"""in so many earlier files of its group the first copy of an entry is looked for"""
BATCH_BYTES = 4 << 20


class OldNumberError(WalferryError):
    """A region's log has an old number that no writing again explains; facts `table`, `region`, `number`."""


def require_written_again(files: FileSystem, root: str, before: Sequence[WalFile], one: Taken) -> None:
    """Raise OldNumberError unless each of these entries is in an earlier file of its group, by region, number, write
    time and cells, or the file before was not closed by its server. `before`: the group's earlier files, in order."""
    batch = one.batch
    wanted = {_identity(batch, entry): entry for entry in one.picked.tolist()}
    is_broken = False
    for file in before[-LOOK_BACK_FILES:]:
        wal = open_wal(files, root, file, Until.SEALED, batch_bytes=BATCH_BYTES)
        for other in wal:
            for entry in _numbered(other, batch, one):
                wanted.pop(_identity(other, entry), None)
        is_broken = wal.unfinished is not None
    if wanted and not is_broken:
        entry = next(iter(wanted.values()))
        table, region = batch.table_and_region(entry)
        number = int(batch.sequence_number[entry])
        raise OldNumberError(
            f"region {region} of {table} has an entry {number} in {one.file} at byte "
            f"{int(batch.offset[entry])}, although a later one was sent, and no earlier file has it: the table was "
            "restored or cloned from a snapshot. Begin a new epoch of the stream",
            table=table, region=region, number=number,
        )  # fmt: skip
    log.warning(
        "%d entries of %s were written again, and were sent before: they are left out", len(one.picked), one.file
    )


def _numbered(other: EntryBatch, batch: EntryBatch, one: Taken) -> list[int]:
    """The entries whose numbers may be those of the entries that are looked for."""
    numbers = batch.sequence_number[one.picked]
    near = (other.sequence_number >= numbers.min()) & (other.sequence_number <= numbers.max())
    found: list[int] = near.nonzero()[0].tolist()
    return found


def _identity(batch: EntryBatch, entry: int) -> tuple[tuple[str, str], int, int, bytes]:
    cells = batch.buffer[batch.cells_start[entry] : batch.end[entry]].tobytes()
    return batch.table_and_region(entry), int(batch.sequence_number[entry]), int(batch.write_time[entry]), cells

"""Open WAL files, wherever they are in their life."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from walferry.errors import DamagedInputError, GapError, TransientError, UnfinishedInputError
from walferry.formats.entries import entry_cells
from walferry.formats.markers import Marker
from walferry.formats.wal import Ending, EntryBatch, WalReader
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, find_wal

CLOSE_SECONDS = 20.0


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

"""The rows that WAL files write, collected while the files are applied: a comparison reads these rows again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walferry.formats.entries import rows_of
from walferry.formats.wal import EntryBatch

MOST_ROWS = 100_000
"""most rows of a table in one file; if there are more, none are named"""
MOST_BYTES = 8 << 20
"""most bytes of the rows' keys"""


@dataclass(frozen=True)
class WrittenRows:
    """All rows of a table for which one file holds edits, each row once."""

    table: str
    packed: bytes
    """as an Arrow IPC stream of one column, compressed"""

    @classmethod
    def of(cls, table: str, rows: pa.Array) -> WrittenRows:
        """These rows."""
        batch = pa.record_batch([rows], ["row"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_batch(batch)
        return cls(table, sink.getvalue().to_pybytes())

    @property
    def rows(self) -> pa.Array:
        """The rows, as an Arrow binary array."""
        with pa.ipc.open_stream(self.packed) as stream:
            return stream.read_all()["row"].combine_chunks()


class RowCollector:
    """Collects the rows of some tables from one file, batch by batch.

    Nothing is collected for a table with too many rows, or with a bulk load, whose rows the log does not name. If the
    table's rows are needed, the file is read again.
    """

    def __init__(self, tables: Collection[str], *, limited: bool = True) -> None:
        """With `limited` False, rows are collected however many there are."""
        self._limited = limited
        self._found: dict[str, list[pa.Array]] = {table: [] for table in tables}

    def add(self, batch: EntryBatch) -> None:
        """Take a batch into account."""
        for table, mine in batch.each_table(self._found):
            found = [*self._found[table], rows_of(batch, np.flatnonzero(mine & batch.edits))]
            if _many(found):
                found = [pc.unique(pa.concat_arrays(found))]
            if (mine & batch.data_elsewhere).any() or (self._limited and _many(found)):
                del self._found[table]
            else:
                self._found[table] = found

    def rows(self) -> tuple[WrittenRows, ...]:
        """What was collected of each table, also of those without an edit."""
        return tuple(
            WrittenRows.of(table, pc.unique(pa.concat_arrays([pa.array([], pa.binary()), *found])))
            for table, found in self._found.items()
        )


def _many(found: Sequence[pa.Array]) -> bool:
    return sum(map(len, found)) > MOST_ROWS or sum(rows.nbytes for rows in found) > MOST_BYTES

"""The cells of WAL entries, each with the entry it belongs to: as an index, and as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walferry.formats import _cell_kernels as kernels
from walferry.formats.cells import (
    CELL_SCHEMA,
    CellIndex,
    Int32s,
    Int64s,
    cells_to_arrow,
    find_cells,
    row_column,
    row_starts,
)
from walferry.formats.wal import EntryBatch, WalReader
from walferry.formats.wal_key import MasterKeys

WAL_CELL_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("region", pa.string()),
        ("sequence_number", pa.int64()),
        ("index", pa.int32()),  # of the cell in its entry
        ("write_time", pa.int64()),  # milliseconds, the region server's clock
        *CELL_SCHEMA,
        ("file", pa.string()),
        ("offset", pa.int64()),  # of the entry in the file
    ]
)


def index_entry_cells(batch: EntryBatch) -> tuple[CellIndex, Int64s, Int32s]:
    """All cells of a batch's entries; for each cell, the number of its entry in the batch and its index in that
    entry."""
    fields, entry, index = kernels.locate_entry_cells(batch.buffer, batch.cells_start, batch.cell_count)
    return CellIndex.of(batch.buffer, fields), entry, index


def entry_cells(batch: EntryBatch, file: str, select: npt.NDArray[np.bool_] | None = None) -> pa.RecordBatch:
    """The cells of a batch's entries, or of those that `select` (one bool per entry) marks, as WAL_CELL_SCHEMA."""
    chosen = batch if select is None else batch.take(np.flatnonzero(select))
    cells, entry, index = index_entry_cells(chosen)
    columns = [
        names_column(chosen.tables, chosen.table).take(pa.array(entry)),
        names_column(chosen.regions, chosen.region).take(pa.array(entry)),
        pa.array(chosen.sequence_number[entry]),
        pa.array(index),
        pa.array(chosen.write_time[entry]),
        *cells_to_arrow(cells).columns,
        pa.repeat(pa.scalar(file), len(cells)),
        pa.array(chosen.offset[entry]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WAL_CELL_SCHEMA)


def wal_cells(data: bytes, file: str = "WAL", *, keys: MasterKeys | None = None) -> Iterator[pa.RecordBatch]:
    """The cells of a WAL that is in memory, markers included, in its order, as WAL_CELL_SCHEMA.

    `file` names the WAL in the column `file` and in messages; `keys` are for an encrypted one. Of a WAL that is still
    being written, this yields what there is: `WalReader` also says how the WAL ends. Raises what `WalReader` raises.
    """
    for batch in WalReader([data], file, keys=keys):
        yield entry_cells(batch, file)


def names_column(names: Sequence[bytes], codes: Int32s) -> pa.Array:
    """Dictionary codes of a batch (`table`, `region`) as an Arrow string array."""
    return pa.array([name.decode() for name in names], pa.string()).take(pa.array(codes))


def rows_of(batch: EntryBatch, entries: npt.NDArray[np.intp]) -> pa.Array:
    """The distinct rows of the cells of some of a batch's entries."""
    if not len(entries):
        return pa.array([], pa.binary())
    cells, *_ = find_cells(batch.buffer, batch.cells_start[entries], batch.cell_count[entries])
    return pc.unique(row_column(batch.buffer, cells[row_starts(batch.buffer, cells)]))

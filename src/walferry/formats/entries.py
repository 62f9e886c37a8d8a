"""The cells of WAL entries, each with the entry it belongs to: as an index, and as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walferry.formats import _cell_kernels as kernels
from walferry.formats import _wal_kernels
from walferry.formats.cells import (
    CELL_SCHEMA,
    CellIndex,
    Int32s,
    Int64s,
    binary_column,
    cells_to_arrow,
    find_cells,
    row_column,
    row_starts,
)
from walferry.formats.proto import hbase_pb2 as pb
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


def entry_scopes(batch: EntryBatch) -> tuple[npt.NDArray[np.intp], list[frozenset[bytes]]]:
    """The families whose cells in an entry may leave the cluster, from the `scopes` of its key: for each entry a number
    in the list of those that occur. Keys without scopes, and equal ones, cost next to nothing."""
    start, length = np.empty(len(batch), np.int64), np.empty(len(batch), np.int64)
    _wal_kernels.locate_scopes(batch.buffer, batch.key_start, batch.key_end, start, length)
    column = binary_column(batch.buffer, start, length).dictionary_encode()
    return column.indices.to_numpy().astype(np.intp), [_scoped(raw) for raw in column.dictionary.to_pylist()]


def _scoped(raw: bytes) -> frozenset[bytes]:
    key = pb.WALKey()
    key.MergeFromString(raw)
    return frozenset(one.family for one in key.scopes if one.scope_type != pb.REPLICATION_SCOPE_LOCAL)


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

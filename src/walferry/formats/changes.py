"""The cells of WAL entries as changes, with the column names of Spark's change feeds.

A change is a cell that a client wrote. The consecutive cells of one row in an entry are a run: what one Put, Delete,
Increment, Append or RowMutations wrote. A run's place in its table's history is one integer, its version: incarnation,
sequence number, and number of the run in its entry, from high to low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.errors import WalferryError
from walferry.formats.cells import CellIndex, CellType, Int32s, Int64s, binary_column, number_column, row_starts
from walferry.formats.entries import index_entry_cells, names_column
from walferry.formats.wal import EntryBatch, cluster_ids

INCARNATION_BITS, SEQUENCE_NUMBER_BITS, INDEX_BITS = 7, 40, 16
"""of a version, from high to low"""
FIRST_SNAPSHOT_INDEX = (1 << INDEX_BITS) - 256
"""of the rows of snapshots; runs of the log have lower ones"""

CHANGE_TYPES = {
    CellType.PUT: "put",
    CellType.DELETE: "delete_version",
    CellType.DELETE_FAMILY_VERSION: "delete_family_version",
    CellType.DELETE_COLUMN: "delete_column",
    CellType.DELETE_FAMILY: "delete_family",
}

CHANGE_SCHEMA = pa.schema(
    [
        ("_change_type", pa.string()),  # of CHANGE_TYPES
        ("_commit_timestamp", pa.timestamp("us", "UTC")),  # of the entry: whole milliseconds, the region server's clock
        ("_commit_version", pa.int64()),  # rises within a row; the incarnation in it is 0
        ("table", pa.string()),
        ("row", pa.binary()),
        ("family", pa.string()),  # bytes that are not UTF-8 as \xNN
        ("qualifier", pa.binary()),
        ("timestamp", pa.int64()),
        ("value", pa.binary()),  # null for deletes
        ("tags", pa.binary()),  # raw; null if there are none
        ("region", pa.string()),
        ("sequence_number", pa.int64()),
        ("index", pa.int32()),  # of the run in its entry
        ("cell", pa.int32()),  # its number in the run
        ("cluster_ids", pa.list_(pa.string())),  # the clusters that the edit was on before
    ]
)


def version_of(incarnation: int, sequence_number: int, index: int) -> int:
    """The version of a run of cells, an integer below 2^63. The parts must fit into their bits."""
    return (incarnation << SEQUENCE_NUMBER_BITS | sequence_number) << INDEX_BITS | index


def entry_changes(
    batch: EntryBatch,
    file: str,
    select: npt.NDArray[np.bool_] | None = None,
    fields: Sequence[str] = tuple(CHANGE_SCHEMA.names),
) -> pa.RecordBatch:
    """The cells of a batch's edits, or of those that `select` (one bool per entry) marks, as these columns of
    CHANGE_SCHEMA.

    Markers give no row. `file` names the WAL in errors. Raises WalferryError (facts `file`, `offset`) if
    `_commit_version` is among the fields and a sequence number or a run's number does not fit into it.
    """
    chosen = batch.take(np.flatnonzero(batch.edits if select is None else batch.edits & select))
    changes = _Changes(chosen, file, *index_entry_cells(chosen))
    columns = [_COLUMNS[name](changes) for name in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([CHANGE_SCHEMA.field(name) for name in fields]))


def number_runs(cells: CellIndex, index: Int32s) -> tuple[Int64s, Int64s]:
    """For each cell the number of its run in its entry, and its own number in that run.

    `index` is each cell's number in its entry; the cells are all of their entries, in order.
    """
    number = np.arange(len(cells))
    starts = index == 0
    starts[row_starts(cells.buffer, cells.position)] = True
    run = np.cumsum(starts) - 1
    return run - run[number - index], number - np.flatnonzero(starts)[run]


@dataclass(frozen=True)
class _Changes:
    """All cells of a batch of edits."""

    batch: EntryBatch
    file: str
    cells: CellIndex
    entry: Int64s  # of each cell, its number in the batch
    index: Int32s  # of each cell in its entry

    @cached_property
    def runs(self) -> tuple[Int64s, Int64s]:
        return number_runs(self.cells, self.index)

    def of_entry(self, values: pa.Array) -> pa.Array:
        """What each entry has, for each cell."""
        return values.take(number_column(self.entry))


def _types(changes: _Changes) -> pa.Array:
    names = pa.array(list(CHANGE_TYPES.values()))
    return names.take(number_column(np.searchsorted(np.array(list(CHANGE_TYPES)), changes.cells.type)))


def _versions(changes: _Changes) -> pa.Array:
    number, index = changes.batch.sequence_number[changes.entry], changes.runs[0]
    wide = np.flatnonzero((number >= 1 << SEQUENCE_NUMBER_BITS) | (index >= FIRST_SNAPSHOT_INDEX))
    if len(wide):
        first = wide[0]
        offset = int(changes.batch.offset[changes.entry[first]])
        raise WalferryError(
            f"{changes.file}: the entry at byte {offset}, with sequence number {number[first]}, has a row, number "
            f"{index[first]} in it, whose version does not fit into _commit_version. Leave out this column, and order "
            "by sequence_number, index and cell",
            file=changes.file,
            offset=offset,
        )
    return number_column(number << INDEX_BITS | index)


def _families(changes: _Changes) -> pa.Array:
    cells = changes.cells
    families = binary_column(cells.buffer, cells.family_start, cells.family_length).dictionary_encode()
    names = [name.decode(errors="backslashreplace") for name in families.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(families.indices)


def _values(changes: _Changes) -> pa.Array:
    cells = changes.cells
    values = binary_column(cells.buffer, cells.value_start, cells.value_length)
    return _only(values, cells.type == CellType.PUT)


def _tags(changes: _Changes) -> pa.Array:
    cells = changes.cells
    return _only(binary_column(cells.buffer, cells.tags_start, cells.tags_length), cells.tags_length > 0)


def _only(column: pa.Array, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """A binary column, null where it is not valid. Copies no values."""
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(column), [bits, *column.buffers()[1:]])


def _clusters(changes: _Changes) -> pa.Array:
    used, of_entry = np.unique(changes.batch.clusters, return_inverse=True)
    lists = [[str(known) for known in cluster_ids(changes.batch.cluster_lists[code])] for code in used.tolist()]
    return changes.of_entry(pa.array(lists, pa.list_(pa.string())).take(number_column(of_entry)))


_COLUMNS: dict[str, Callable[[_Changes], pa.Array]] = {
    "_change_type": _types,
    "_commit_timestamp": lambda changes: changes.of_entry(
        number_column(changes.batch.write_time * 1000).view(pa.timestamp("us", "UTC"))
    ),
    "_commit_version": _versions,
    "table": lambda changes: changes.of_entry(names_column(changes.batch.tables, changes.batch.table)),
    "row": lambda changes: binary_column(changes.cells.buffer, changes.cells.row_start, changes.cells.row_length),
    "family": _families,
    "qualifier": lambda changes: binary_column(
        changes.cells.buffer, changes.cells.qualifier_start, changes.cells.qualifier_length
    ),
    "timestamp": lambda changes: number_column(changes.cells.timestamp),
    "value": _values,
    "tags": _tags,
    "region": lambda changes: changes.of_entry(names_column(changes.batch.regions, changes.batch.region)),
    "sequence_number": lambda changes: changes.of_entry(number_column(changes.batch.sequence_number)),
    "index": lambda changes: number_column(changes.runs[0].astype(np.int32)),
    "cell": lambda changes: number_column(changes.runs[1].astype(np.int32)),
    "cluster_ids": _clusters,
}

"""The cells of WAL entries as changes, with the column names of Spark's change feeds.

A change is a cell that a client wrote. The consecutive cells of one row in an entry are a run: what one Put, Delete,
Increment, Append or RowMutations wrote. A run's place in its table's history is one integer, its version: incarnation,
sequence number, and number of the run in its entry, from high to low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.errors import WalferryError
from walferry.formats.cells import CellIndex, CellType, Int32s, Int64s, binary_column, number_column, row_starts
from walferry.formats.entries import index_entry_cells
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


_N = TypeVar("_N", int, Int64s)


def version_of(incarnation: _N | int, sequence_number: _N, index: _N) -> _N:
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
    cells, entry, index = index_entry_cells(chosen)
    placed, of_runs = PlacedCells(chosen, cells, entry), dict[str, pa.Array]()
    if not {"_commit_version", "index", "cell"}.isdisjoint(fields):
        run, cell = number_runs(cells, index)
        of_runs = {"index": number_column(run.astype(np.int32)), "cell": number_column(cell.astype(np.int32))}
        if "_commit_version" in fields:
            of_runs["_commit_version"] = _versions(placed, run, file)
    schema = pa.schema([CHANGE_SCHEMA.field(name) for name in fields])
    columns = [
        of_runs[one.name] if one.name in of_runs else placed.column(one.name).cast(one.type) for one in schema
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
class PlacedCells:
    """Cells of a batch's edits, and where each is in the batch."""

    batch: EntryBatch
    cells: CellIndex
    entry: Int64s
    """of each cell, its entry's number in the batch"""

    def column(self, name: str) -> pa.Array:
        """A column of CHANGE_SCHEMA, though not of those that tell of runs: `_commit_version`, `index`, `cell`. Names
        (`_change_type`, `table`, `family`, `region`) are dictionaries of strings."""
        return _COLUMNS[name](self)

    def of_entry(self, values: pa.Array) -> pa.Array:
        """What each entry has, for each cell."""
        return values.take(number_column(self.entry))


def _versions(placed: PlacedCells, index: Int64s, file: str) -> pa.Array:
    number = placed.batch.sequence_number[placed.entry]
    wide = np.flatnonzero((number >= 1 << SEQUENCE_NUMBER_BITS) | (index >= FIRST_SNAPSHOT_INDEX))
    if len(wide):
        first = wide[0]
        offset = int(placed.batch.offset[placed.entry[first]])
        raise WalferryError(
            f"{file}: the entry at byte {offset}, with sequence number {number[first]}, has a row, number "
            f"{index[first]} in it, whose version does not fit into _commit_version. Leave out this column, and order "
            "by sequence_number, index and cell",
            file=file,
            offset=offset,
        )
    return number_column(version_of(0, number, index))


def _types(placed: PlacedCells) -> pa.Array:
    return _names(np.searchsorted(np.array(list(CHANGE_TYPES)), placed.cells.type), list(CHANGE_TYPES.values()))


def _families(placed: PlacedCells) -> pa.Array:
    cells = placed.cells
    families = binary_column(cells.buffer, cells.family_start, cells.family_length).dictionary_encode()
    names = [name.decode(errors="backslashreplace") for name in families.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(families.indices, pa.array(names, pa.string()))


def _entry_names(placed: PlacedCells, codes: Int32s, names: Sequence[bytes]) -> pa.Array:
    """A name that each entry has, for each cell. The dictionary has only names that occur."""
    used, found = np.unique(codes, return_inverse=True)
    return _names(found[placed.entry], [names[code].decode() for code in used.tolist()])


def _names(codes: npt.NDArray[np.integer], names: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(number_column(codes.astype(np.int32)), pa.array(names, pa.string()))


def _values(placed: PlacedCells) -> pa.Array:
    cells = placed.cells
    values = binary_column(cells.buffer, cells.value_start, cells.value_length)
    return _only(values, cells.type == CellType.PUT)


def _tags(placed: PlacedCells) -> pa.Array:
    cells = placed.cells
    return _only(binary_column(cells.buffer, cells.tags_start, cells.tags_length), cells.tags_length > 0)


def _only(column: pa.Array, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """A binary column, null where it is not valid. Copies no values."""
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(column), [bits, *column.buffers()[1:]])


def _clusters(placed: PlacedCells) -> pa.Array:
    used, of_entry = np.unique(placed.batch.clusters, return_inverse=True)
    lists = [[str(known) for known in cluster_ids(placed.batch.cluster_lists[code])] for code in used.tolist()]
    return placed.of_entry(pa.array(lists, pa.list_(pa.string())).take(number_column(of_entry)))


_COLUMNS: dict[str, Callable[[PlacedCells], pa.Array]] = {
    "_change_type": _types,
    "_commit_timestamp": lambda placed: placed.of_entry(
        number_column(placed.batch.write_time * 1000).view(pa.timestamp("us", "UTC"))
    ),
    "table": lambda placed: _entry_names(placed, placed.batch.table, placed.batch.tables),
    "row": lambda placed: binary_column(placed.cells.buffer, placed.cells.row_start, placed.cells.row_length),
    "family": _families,
    "qualifier": lambda placed: binary_column(
        placed.cells.buffer, placed.cells.qualifier_start, placed.cells.qualifier_length
    ),
    "timestamp": lambda placed: number_column(placed.cells.timestamp),
    "value": _values,
    "tags": _tags,
    "region": lambda placed: _entry_names(placed, placed.batch.region, placed.batch.regions),
    "sequence_number": lambda placed: placed.of_entry(number_column(placed.batch.sequence_number)),
    "cluster_ids": _clusters,
}

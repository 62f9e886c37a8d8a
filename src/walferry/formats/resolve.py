"""Which cells of a table are visible at one fixed moment, and a digest of them that ignores block and region borders.

Raw scans of two equal tables differ, because flushes and compactions drop masked, expired and surplus cells at
different times. Resolved by the same rules at the same moment, the two scans are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walferry.errors import UsageError
from walferry.formats import _resolve_kernels as kernels
from walferry.formats.cells import CellIndex, CellType, Int64s, binary_column, number_column

ROW_SCHEMA = pa.schema([("row", pa.binary()), ("cells", pa.int64()), ("oldest", pa.int64()), ("newest", pa.int64())])
"""`oldest` and `newest` are timestamps (ms since 1970) of a row's cells."""
ROW_DIGEST_SCHEMA = pa.schema([("row", pa.binary()), ("cells", pa.int32()), ("low", pa.int64()), ("high", pa.int64())])


@dataclass(frozen=True)
class FamilyRules:
    """A column family's VERSIONS, MIN_VERSIONS and TTL (milliseconds; None means forever)."""

    max_versions: int
    min_versions: int
    ttl_ms: int | None


class Fate(IntEnum):
    """Whether a cell of a raw scan is visible, and if not, why."""

    VISIBLE = kernels.VISIBLE
    MARKER = kernels.MARKER  # a delete marker itself
    MASKED = kernels.MASKED  # by a delete marker
    EXPIRED = kernels.EXPIRED  # by the family's TTL or the cell's own
    SURPLUS = kernels.SURPLUS  # more versions than VERSIONS
    DUPLICATE = kernels.DUPLICATE  # same column and timestamp as a newer put


@dataclass(frozen=True)
class Digest:
    """The number of rows and cells, and the sum of the cells' hashes modulo 2**128, whatever the order of the cells.

    Digests can be added as long as no row is divided between them.
    """

    rows: int
    cells: int
    total: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.cells + other.cells, (self.total + other.total) % 2**128)


def resolve(cells: CellIndex, rules: Mapping[bytes, FamilyRules], now_ms: int) -> npt.NDArray[np.uint8]:
    """The Fate of each cell at `now_ms` (milliseconds since the epoch).

    `cells` are whole rows in HBase's order, as a raw scan of all versions returns them: row, family, qualifier,
    timestamp descending, type descending. A marker masks puts of its timestamp, whichever was written first. Families
    with NEW_VERSION_BEHAVIOR differ: do not pass them. A TTL tag can shorten a cell's life but never lengthen it.
    Raises UsageError (fact `family`) for a cell of a family without rules.
    """
    families = sorted(rules)
    fates, stranger = kernels.resolve(
        cells.buffer,
        cells.row_start,
        cells.row_length,
        cells.family_start,
        cells.family_length,
        cells.qualifier_start,
        cells.qualifier_length,
        cells.timestamp,
        cells.type,
        cells.tags_start,
        cells.tags_length,
        np.frombuffer(b"".join(families), np.uint8),
        np.cumsum([0, *(len(family) for family in families)]),
        np.array([rules[family].max_versions for family in families], np.int64),
        np.array([rules[family].min_versions for family in families], np.int64),
        np.array([_ttl(rules[family]) for family in families], np.int64),
        now_ms,
    )
    if stranger >= 0:
        start = cells.family_start[stranger]
        family = cells.buffer[start : start + cells.family_length[stranger]].tobytes()
        raise UsageError(f"no rules for column family {family!r}: describe the table again", family=family)
    result: npt.NDArray[np.uint8] = fates
    return result


def outlived(cells: CellIndex, now_ms: int) -> npt.NDArray[np.bool_]:
    """Which cells have passed their own TTL (tag 8): no region server returns them, not even to a raw scan."""
    found: npt.NDArray[np.bool_] = kernels.outlived(
        cells.buffer, cells.timestamp, cells.tags_start, cells.tags_length, now_ms
    )
    return found


def marker_numbers(cells: CellIndex, *, by_version: bool) -> npt.NDArray[np.intp]:
    """The numbers of the delete markers: with `by_version` those that hide a single version (Delete,
    DeleteFamilyVersion), otherwise the others."""
    single = np.isin(cells.type, (CellType.DELETE, CellType.DELETE_FAMILY_VERSION))
    return np.flatnonzero(single if by_version else (cells.type != kernels.PUT) & ~single)


def expiring_after(cells: CellIndex, moment_ms: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """The numbers of the cells whose own TTL (tag 8) expires after a moment, and when each expires (ms since 1970)."""
    if not cells.tags_length.any():
        return np.empty(0, np.intp), np.empty(0, np.int64)
    ends = kernels.expiries(cells.buffer, cells.timestamp, cells.tags_start, cells.tags_length)
    numbers = np.flatnonzero((ends > moment_ms) & (ends != kernels.FOREVER))
    return numbers, ends[numbers]


def digest_of(rows: pa.RecordBatch) -> Digest:
    """The digest of all cells of these rows, from the digest of each row."""
    counts, low, high = (rows[name].to_numpy() for name in ("cells", "low", "high"))
    total_low, total_high = kernels.sum_128(low.view(np.uint64), high.view(np.uint64))
    return Digest(len(counts), int(counts.sum(dtype=np.int64)), int(total_high) << 64 | int(total_low))


def held_by(
    mine: CellIndex, chosen: npt.NDArray[np.bool_], theirs: CellIndex, among: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which of the cells of `mine` in `chosen` have the same key (all but value and tags) as a cell of `theirs` in
    `among`."""
    held = chosen.copy()
    held[chosen] = pc.is_in(_keys(mine, chosen), _keys(theirs, among)).to_numpy(zero_copy_only=False)
    return held


def _keys(cells: CellIndex, chosen: npt.NDArray[np.bool_]) -> pa.Array:
    hashes = kernels.hash_keys(cells.buffer, cells.position, cells.value_start, np.flatnonzero(chosen))
    return pa.Array.from_buffers(pa.binary(16), len(hashes), [None, pa.py_buffer(hashes)])


def row_sums(cells: CellIndex, keep: npt.NDArray[np.bool_]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """For each row with a kept cell: the first one, how many there are, and their least and greatest timestamp."""
    sums: tuple[Int64s, Int64s, Int64s, Int64s]
    sums = kernels.sum_rows(cells.buffer, cells.row_start, cells.row_length, cells.timestamp, keep)
    return sums


def rows_to_arrow(cells: CellIndex, keep: npt.NDArray[np.bool_], names: Sequence[str]) -> pa.RecordBatch:
    """The named columns of ROW_SCHEMA, for each row with a kept cell, in the rows' order."""
    first, *numbers = row_sums(cells, keep)
    columns = dict(zip(ROW_SCHEMA.names[1:], map(number_column, numbers), strict=True))
    if "row" in names:
        columns["row"] = binary_column(cells.buffer, cells.row_start[first], cells.row_length[first])
    schema = pa.schema([ROW_SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)


def row_digests(cells: CellIndex, keep: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The digest of each row with a cell that `keep` (one bool per cell) marks, as ROW_DIGEST_SCHEMA; `low` and `high`
    are its halves' bits as int64.

    A cell's hash is MurmurHash3_x64_128 (seed 0) of its KeyValue: row, family, qualifier, timestamp, type, value and
    tags, each after its length or of fixed size.
    """
    first, counts, low, high = kernels.digest_rows(
        cells.buffer,
        cells.position,
        cells.row_start,
        cells.row_length,
        cells.value_start,
        cells.value_length,
        cells.tags_length,
        keep,
    )
    columns = [
        binary_column(cells.buffer, cells.row_start[first], cells.row_length[first]),
        number_column(counts),
        number_column(low.view(np.int64)),
        number_column(high.view(np.int64)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_DIGEST_SCHEMA)


def _ttl(rules: FamilyRules) -> int:
    return int(kernels.FOREVER) if rules.ttl_ms is None else rules.ttl_ms

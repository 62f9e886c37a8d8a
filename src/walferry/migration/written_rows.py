"""Compare what was written since the last whole comparison: what that costs does not depend on the size of the tables.

A table's rows are equal on both sides where a whole comparison found them so and no log that was applied since touches
them. The rows of those logs are read from both sides, by scans that go from one to the next.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walferry.clock import now_ms
from walferry.formats.cells import binary_column, gather, index_cells
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.hbase.descriptors import Region
from walferry.ledger import ComparedTable
from walferry.migration.digest import CLOCKS_APART_MS, RangePair, compare_pair, scans
from walferry.migration.known_differences import known_rows
from walferry.migration.row_sides import Bounds, differing_cells, row_sides
from walferry.migration.stored_sides import rules_of
from walferry.replay.cut import as_listed
from walferry.run.run import Run
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""of log to be read for the rows; of more, a whole comparison takes less time"""
MOST_ROWS = 300_000
ROWS_AT_ONCE = 2_000
"""in one scan"""
READERS = 8
LOOKED_AT_AGAIN = 1_000
"""rows that differ, one by one; if more do, something is wrong, or much is under way"""


@dataclass(frozen=True)
class Written:
    """The rows of a table that were written since its last clean comparison."""

    files: frozenset[str]
    """the logs that hold them"""
    rows: int = 0
    differing: Mapping[bytes, str] = field(default_factory=dict)
    """with the digest of the cells that differ, as from `differing`"""
    why: str = ""
    """why they could not be compared; the others say nothing then"""


def compare_written(run: Run, table: str, since: ComparedTable) -> Written:
    """Compare those rows of a table, and the ones that differed in the comparison `since` or for a known reason.

    Raises the errors of reading the log and both sides.
    """
    ledger = run.ledger.log
    names = ledger.applied_for(table) - ledger.applied_for(table, verified=True) - ledger.without_cells(table)
    files = [as_listed(file) for file in ledger.known(names).values()]
    size = sum(file.length for file in files)
    if size > MOST_BYTES:
        return Written(frozenset(names), why=f"{size / 1e6:.0f} MB of log were written since {table} was compared")
    more = [item.row for item in run.ledger.comparisons.differences([since])] + known_rows(run, table)
    rows = _rows(run, table, files, more)
    if isinstance(rows, str):
        return Written(frozenset(names), why=rows)
    return Written(frozenset(names), len(rows), differing(run, table, rows))


def differing(run: Run, table: str, rows: Sequence[bytes]) -> dict[bytes, str]:
    """Those of the rows, which are in order, that differ, each with a digest of exactly the cells that differ.

    What expires now counts as expired. Of more than LOOKED_AT_AGAIN rows there is no digest: "".
    """
    pair = run.pair(table)
    source, target = run.source_address(), run.spec.target.address()
    rules = rules_of(run.source.describe(table))
    asked = [
        RangePair(
            source, target, pair.source, pair.target, "", some[0], some[-1] + b"\0", rules, len(some), some,
            names_expiring=True,
        )
        for some in _in_parts(rows, run.source.regions(table))
    ]  # fmt: skip

    def again(row: bytes) -> str | None:
        here = b"".join(bytes(block) for block in run.source.scan_raw(pair.source, row, row + b"\0"))
        there = b"".join(bytes(block) for block in run.target.scan_raw(pair.target, row, row + b"\0"))
        sides = row_sides(here, there, rules, now_ms() + CLOCKS_APART_MS, Bounds.of_each(LOOKED_AT_AGAIN))
        return None if sides is None else differing_cells(sides)

    with ThreadPoolExecutor(READERS, thread_name_prefix="both sides") as readers:
        found = [row for rows in readers.map(lambda part: compare_pair(part, *scans(part)).rows, asked) for row in rows]
        if len(found) > LOOKED_AT_AGAIN:
            return dict.fromkeys(found, "")
        return {row: cells for row, cells in zip(found, readers.map(again, found), strict=True) if cells is not None}


def _rows(run: Run, table: str, files: Sequence[WalFile], more: Sequence[bytes]) -> list[bytes] | str:
    """The rows, in order, of which the files hold edits, and some more; or why they are not known."""
    name = table.encode()

    def of_file(file: WalFile) -> pa.Array | str:
        found = [pa.array([], pa.binary())]
        for batch in open_wal(run.source_files, run.wal_root, file):
            mine = np.array([known == name for known in batch.tables] or [False])[batch.table]
            if (mine & batch.holds_data & (batch.marker != Marker.NONE)).any():
                return f"{file.name} has a bulk load into {table}, whose rows the log does not name"
            found.append(_rows_of(batch, np.flatnonzero(mine & (batch.marker == Marker.NONE))))
        return pc.unique(pa.concat_arrays(found))

    with ThreadPoolExecutor(READERS, thread_name_prefix="rows") as readers:
        parts = list(readers.map(of_file, files))
    for part in parts:
        if isinstance(part, str):
            return part
    every = pc.unique(pa.concat_arrays([pa.array(more, pa.binary()), *parts]))
    if len(every) > MOST_ROWS:
        return f"{len(every)} rows of {table} were written since it was compared"
    return sorted(every.to_pylist())


def _rows_of(batch: EntryBatch, entries: np.ndarray) -> pa.Array:
    """The distinct rows of some entries' cells."""
    if not len(entries):
        return pa.array([], pa.binary())
    part = batch.take(entries)
    cells = index_cells(gather(part.buffer, part.cells_start, part.end))
    return pc.unique(binary_column(cells.buffer, cells.row_start, cells.row_length))


def _in_parts(rows: Sequence[bytes], regions: Sequence[Region]) -> Iterator[tuple[bytes, ...]]:
    """The rows in parts of one region each."""
    starts = sorted(region.start for region in regions)[1:]
    borders = [0, *(bisect_left(rows, start) for start in starts), len(rows)]
    for first, end in pairwise(borders):
        for begin in range(first, end, ROWS_AT_ONCE):
            yield tuple(rows[begin : min(begin + ROWS_AT_ONCE, end)])

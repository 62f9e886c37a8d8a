"""Compares a restored table with its base and the log as their files show them.

The region servers' answers are one side. The other one is made without HBase: the cells of the base's store files and
those of the log, merged in the order of a store, and resolved by the same rules at the same moment. Of the work that
made the table, it shares only the parts of the log and the readers of files.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from walferry.amounts import amount
from walferry.apply.bulk_merge import Spool, sorted_cells, taken
from walferry.apply.window_rows import WindowRows
from walferry.clock import now_ms
from walferry.errors import SidesDifferError
from walferry.formats.cells import Bytes, CellIndex, Int64s, cell_starts, find_cells, gather, index_cells
from walferry.formats.hfile import StoredCells
from walferry.formats.order import count_below
from walferry.formats.wal import EntryBatch
from walferry.migration.sides.digest import NOTHING, Outcome, RangePair, compare_pair, scans
from walferry.migration.sides.stored_sides import RANGE_BYTES, rules_of
from walferry.moments.restoring.base import StoredBase
from walferry.moments.restoring.restore_run import RestoreRun
from walferry.snapshots.manifest import SnapshotRegion, cells_of, rows_inside
from walferry.spark.clients import shared_files
from walferry.spark.fan_out import fan_out
from walferry.storage import FileSystem
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

log = logging.getLogger(__name__)

NAMED_ROWS = 20


@dataclass(frozen=True)
class _Range:
    """Rows of one region of the base, from its start to before its end."""

    region: SnapshotRegion
    log: _LogCells
    """the cells of the log in these rows"""


def check(run: RestoreRun, base: StoredBase, files: Sequence[WalFile], wanted: WindowRows) -> dict[str, Any]:
    """Compare the whole new table. Facts: rows, cells, digest, differing, named.

    Raises SidesDifferError if a row differs.
    """
    ranges = [
        replace(region, start=start, end=stop)
        for region in base.regions
        for start, stop in pairwise([region.start, *rows_inside(run.source_files, region, RANGE_BYTES), region.end])
    ]
    address, root, table = run.source_address(1), run.wal_root, run.table
    starts = [one.start for one in ranges]
    with closing(_Spooled(starts)) as spooled:

        def read(file: WalFile) -> list[None]:
            for batch in open_wal(shared_files(address), root, file):
                spooled.add(batch, table, wanted)
            return []

        fan_out(None, read, files, what="read WALs", sizes=[file.length for file in files])
        pair = RangePair(
            address, run.target_address(), table, run.new_table, "", b"", b"",
            rules_of(run.target.describe(run.new_table)), NAMED_ROWS,
        )  # fmt: skip
        items = [_Range(region, spooled.of(number)) for number, region in enumerate(ranges)]
        found = fan_out(
            None, lambda item: [_compare(pair, shared_files(address), item)], items, what="compare the new table"
        )
    total = sum(found, NOTHING)
    if total.differing:
        rows = total.rows[:NAMED_ROWS]
        raise SidesDifferError(
            f"{amount(total.differing, 'row')} of {run.new_table} are not as base and log say, the first: {rows[0]!r}. "
            "Has somebody written to it? If not, please report this. The table stays: drop it, or choose another name",
            table=run.new_table, differing=total.differing, rows=[row.hex() for row in rows],
        )  # fmt: skip
    digest = total.target
    return {"rows": digest.rows, "cells": digest.cells, "digest": f"{digest.total:032x}", "differing": 0}


def _compare(pair: RangePair, files: FileSystem, item: _Range) -> Outcome:
    region = item.region
    pair = replace(pair, region=region.name, start=region.start, stop=region.end)
    return compare_pair(pair, partial(_expected, files, item), scans(pair)[1])


def _expected(files: FileSystem, item: _Range, start: bytes, stop: bytes) -> Iterator[CellIndex]:
    """The cells of base and log in some of a range's rows, from `start` to before `stop`."""
    region = replace(item.region, start=start, end=stop)
    yield from cells_of(files, region, now_ms(), newest=item.log.within(start, stop))


class _Spooled:
    """The log's cells, which wait in a local file until their range of rows is compared."""

    def __init__(self, starts: Sequence[bytes]) -> None:
        self._starts = starts
        self._spool = Spool()
        self._places: dict[int, list[tuple[tuple[int, int], tuple[int, int]]]] = defaultdict(list)
        self._adding = threading.Lock()
        self.close = self._spool.close

    def add(self, batch: EntryBatch, table: str, wanted: WindowRows) -> None:
        """Take the edits of a batch that belong to the table's parts of the log."""
        picked = np.flatnonzero(batch.edits & batch.of_tables({table}) & wanted.applied(batch))
        if not len(picked):
            return
        start, length, entry, _ = find_cells(batch.buffer, batch.cells_start[picked], batch.cell_count[picked])
        cells = gather(batch.buffer, start, start + length)
        order = batch.sequence_number[picked][entry]
        buffer, positions, order = sorted_cells([(cells, np.cumsum(length) - length, order)])
        borders = [count_below(buffer, positions, row) for row in self._starts]
        for number, (begin, end) in enumerate(pairwise([*borders, len(positions)])):
            if begin < end:
                self._keep(number, taken(buffer, positions[begin:end])[0], order[begin:end])

    def _keep(self, number: int, cells: Bytes, order: Int64s) -> None:
        with self._adding:
            place = self._spool.add(cells.data), self._spool.add(np.ascontiguousarray(order).data.cast("B"))
            self._places[number].append(place)

    def of(self, number: int) -> _LogCells:
        """The cells in a range of rows."""
        return _LogCells(self._spool, tuple(self._places[number]))


@dataclass(frozen=True)
class _LogCells:
    """The log's cells in a range of rows."""

    spool: Spool
    places: tuple[tuple[tuple[int, int], tuple[int, int]], ...]

    def within(self, start: bytes, stop: bytes) -> Iterator[StoredCells]:
        """Those in the rows from `start` to before `stop` (b"": no end), in the order of a store."""
        if not self.places:
            return
        parts = []
        for cells, order in self.places:
            buffer = np.frombuffer(self.spool.read(*cells), np.uint8)
            parts.append((buffer, cell_starts(buffer), np.frombuffer(self.spool.read(*order), np.int64)))
        buffer, positions, numbers = sorted_cells(parts)
        begin = count_below(buffer, positions, start)
        end = count_below(buffer, positions, stop) if stop else len(positions)
        if begin < end:
            yield StoredCells(index_cells(taken(buffer, positions[begin:end])[0]), numbers[begin:end])

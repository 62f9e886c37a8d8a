"""Compares a restored table with its base and the log as their files show them.

The region servers' answers are one side. The other one is made without HBase: the cells of the base's store files and
those of the log, merged in the order of a store, and resolved by the same rules at the same moment. Of the work that
made the table, it shares only the parts of the log and the readers of files.

Executors compare a large table. Each takes shares of neighbouring rows, and reads the whole log for each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

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
from walferry.spark.clients import shared_files, shared_log_files, workers
from walferry.spark.fan_out import fan_out, shares
from walferry.spark.session import session_for
from walferry.storage import FileSystem
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

NAMED_ROWS = 20
SHARES_A_WORKER = 2


@dataclass(frozen=True)
class _Task:
    """What a process needs to compare rows."""

    pair: RangePair
    """the whole tables"""
    root: str
    """of the log"""
    files: tuple[WalFile, ...]
    wanted: WindowRows


def check(
    run: RestoreRun, spark: Callable[[], SparkSession], base: StoredBase, files: Sequence[WalFile], wanted: WindowRows
) -> dict[str, Any]:
    """Compare the whole new table, in executors if base and log are large. Facts: rows, cells, digest, differing.

    Raises SidesDifferError if a row differs.
    """
    size = sum(file.length for file in files) + run.kept.base.bytes
    session = session_for(spark, size, run.writing.here_bytes)
    pair = RangePair(
        run.source_address(workers(session)), run.target_address(), run.table, run.new_table, "", b"", b"",
        rules_of(run.target.describe(run.new_table)), NAMED_ROWS,
    )  # fmt: skip
    task = _Task(pair, run.wal_root, tuple(files), wanted)
    ranges = [
        replace(region, start=start, end=stop)
        for region in base.regions
        for start, stop in pairwise([region.start, *rows_inside(run.source_files, region, RANGE_BYTES), region.end])
    ]
    # Each share reads the whole log: few shares cost less, more of them keep all workers at work until the end.
    parts = shares(ranges, 1 if session is None else SHARES_A_WORKER * workers(session))
    found = fan_out(session, lambda share: [_compare_share(task, share)], parts, what="compare the new table")
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


def _compare_share(task: _Task, share: Sequence[SnapshotRegion]) -> Outcome:
    """Compare neighbouring ranges of rows, each of them within a region of the base."""
    files, of_log = shared_files(task.pair.source), shared_log_files(task.pair.source)
    with closing(_Spooled(share)) as spooled:
        for file in task.files:
            for batch in open_wal(of_log, task.root, file):
                spooled.add(batch, task.pair.source_table, task.wanted)
        return sum((_compare(task.pair, files, one, spooled.of(number)) for number, one in enumerate(share)), NOTHING)


def _compare(pair: RangePair, files: FileSystem, one: SnapshotRegion, log: _LogCells) -> Outcome:
    pair = replace(pair, region=one.name, start=one.start, stop=one.end)
    return compare_pair(pair, partial(_expected, files, one, log), scans(pair)[1])


def _expected(files: FileSystem, one: SnapshotRegion, log: _LogCells, start: bytes, stop: bytes) -> Iterator[CellIndex]:
    """The cells of base and log in some of a range's rows, from `start` to before `stop`."""
    yield from cells_of(files, replace(one, start=start, end=stop), now_ms(), newest=log.within(start, stop))


class _Spooled:
    """The log's cells in neighbouring ranges of rows, which wait in a local file until their range is compared."""

    def __init__(self, ranges: Sequence[SnapshotRegion]) -> None:
        self._ranges = ranges
        self._spool = Spool()
        self._places: dict[int, list[tuple[tuple[int, int], tuple[int, int]]]] = defaultdict(list)
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
        borders = [count_below(buffer, positions, one.start) for one in self._ranges]
        last = self._ranges[-1].end
        borders.append(count_below(buffer, positions, last) if last else len(positions))
        for number, (begin, end) in enumerate(pairwise(borders)):
            if begin < end:
                self._keep(number, taken(buffer, positions[begin:end])[0], order[begin:end])

    def _keep(self, number: int, cells: Bytes, order: Int64s) -> None:
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

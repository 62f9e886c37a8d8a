"""Compare row ranges: executors read both sides in parallel and compare them piece by piece.

A task reads one row range on both sides at once and compares it in pieces of whole rows, about a block at a time. Each
piece has two moments: `first_ms`, before the earlier of its two blocks was requested, and `last_ms`, after the later
one arrived, plus the allowed clock skew. So a cell is either

- beyond its TTL at `first_ms`: no reader sees it, so it is left out on both sides;
- within its TTL until `last_ms`: every correct copy holds it, and it is compared;
- expiring in between: a server may have dropped it before it was read. If both sides hold it, it is compared as well.
  If only one does, the piece is read again, and a cell that still only one side holds counts as *uncompared*.

When both sides are read from snapshots (`stored_sides`), all pieces share two moments: before the first snapshot
started, and after the last one was complete. A piece that must be read again is read from the region servers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from walferry.clock import CLOCKS_APART_MS, now_ms
from walferry.formats.cells import CellIndex, index_cells
from walferry.formats.resolve import Digest, FamilyRules, Fate, digest_of, held_by, resolve, row_digests
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Range
from walferry.migration.sides.fragile_rows import NONE, RowSpans, fragile_in
from walferry.spark.clients import shared_client
from walferry.spark.fan_out import fan_out

READS = 3
"""the most times to read a piece in which only one side holds expiring cells"""
SHOWN_ROWS = 200
"""how many of a range's differing rows are named by default, from the first on"""

Scan = Callable[[bytes, bytes], Iterator[bytes | CellIndex]]
"""Raw cells of whole rows, as blocks or indexed, from a start row to before a stop row."""
AHEAD_BYTES = 8 << 20
"""the next block is read while a block of at most this size is compared"""
Clock = Callable[[], int]
"""Milliseconds since the epoch."""


@dataclass(frozen=True)
class RangePair:
    """A row range of a table and of its copy."""

    source: ClusterAddress
    target: ClusterAddress
    source_table: str
    target_table: str
    region: str
    """the source region that gives the range its name"""
    start: bytes
    stop: bytes
    rules: Mapping[bytes, FamilyRules]
    named: int = SHOWN_ROWS
    """the most differing rows that are named"""
    rows: tuple[bytes | Range, ...] = ()
    """only these rows, and ranges of rows, in order; (): all"""
    sampled: int = 0
    """how many cells to sample; the outcome has their rows"""
    clients_from: int | None = None
    """cells and markers at the target with this timestamp or a later one are left out if the source does not hold them:
    only clients can have written them (`run.notes.newest`); None: nothing is left out"""
    names_expiring: bool = False
    """True: if only one side holds a cell that expires now, the row counts as differing and is to be read again, since
    the cell may be under way to the other side; False: such cells are not compared"""


@dataclass(frozen=True)
class Taken:
    """When the snapshots of both sides were taken, and how to read rows live if that is needed."""

    first_ms: int
    """before the first snapshot started"""
    last_ms: int
    """after the last snapshot was complete: a cell that expires later is in the files"""
    live: tuple[Scan, Scan]
    """scans of source and target"""


@dataclass(frozen=True)
class Outcome:
    """The result of comparing a row range. Outcomes of adjacent ranges can be added."""

    source: Digest
    target: Digest
    dropped: npt.NDArray[np.int64]
    """number of cells by side (source, target) and Fate"""
    expiring: int
    """cells whose TTL ended during the read, compared because both sides held them"""
    uncompared: int
    """cells whose TTL ended during the read, not compared because only one side held them"""
    first_ms: int | None
    last_ms: int | None
    differing: int
    rows: tuple[bytes, ...]
    """the first rows that differ"""
    fragile: RowSpans = NONE
    """rows of either side that may change without an edit"""
    newest: int = -1
    """the newest timestamp of any cell or marker that either side holds; -1: they hold none"""
    sample: tuple[tuple[float, bytes], ...] = ()
    """rows of randomly drawn cells: those that drew the lowest numbers, with these numbers"""

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.source + other.source,
            self.target + other.target,
            self.dropped + other.dropped,
            self.expiring + other.expiring,
            self.uncompared + other.uncompared,
            min((at for at in (self.first_ms, other.first_ms) if at is not None), default=None),
            max((at for at in (self.last_ms, other.last_ms) if at is not None), default=None),
            self.differing + other.differing,
            self.rows + other.rows,
            self.fragile + other.fragile,
            max(self.newest, other.newest),
            self.sample + other.sample,
        )


NOTHING = Outcome(
    Digest(0, 0, 0), Digest(0, 0, 0), np.zeros((2, len(Fate)), np.int64), 0, 0, None, None, 0, ()
)  # fmt: skip


def compare_pairs(spark: SparkSession | None, pairs: Sequence[RangePair]) -> list[Outcome]:
    """Compare each range in its own task. `spark`: as in `fan_out`."""
    return fan_out(spark, lambda pair: [compare_pair(pair, *scans(pair))], pairs, what="compare both sides")


def scans(pair: RangePair) -> tuple[Scan, Scan]:
    """Scans of both sides, as their region servers show them."""
    source, target = shared_client(pair.source), shared_client(pair.target)
    return (
        lambda start, stop: source.scan_raw(pair.source_table, start, stop, rows=pair.rows),
        lambda start, stop: target.scan_raw(pair.target_table, start, stop, rows=pair.rows),
    )


def compare_pair(
    pair: RangePair, source: Scan, target: Scan, clock: Clock = now_ms, read: int = 1, taken: Taken | None = None
) -> Outcome:
    """Read a range on both sides and compare it. Memory: two blocks of each side; for rows above AHEAD_BYTES, one block
    of each side, plus an eighth while it arrives, and 104 bytes for each of its cells.

    `read` counts the reads of these rows, from 1. `taken`: both scans show snapshots, in which nothing expires any
    more.
    """
    total = NOTHING
    start = pair.start
    for here, there in _pieces(pair.start, pair.stop, source, target, clock, taken):
        stop = max(piece.last_row for piece in (here, there) if len(piece.cells)) + b"\0"
        if pair.clients_from is not None:
            there = _without_clients(here, there, pair.clients_from)
        outcome = _compare(here, there, pair.rules, pair.names_expiring)
        if outcome.uncompared and read < READS:
            again = replace(pair, start=start, stop=stop)
            outcome = compare_pair(again, *(taken.live if taken else (source, target)), clock, read + 1)
        below = total.sample[-1][0] if len(total.sample) == pair.sampled > 0 else 1.0
        total += replace(outcome, sample=_drawn(max(here.cells, there.cells, key=len), pair.sampled, below))
        total = replace(total, rows=total.rows[: pair.named], sample=tuple(sorted(total.sample)[: pair.sampled]))
        start = stop
        del here, there  # so that no large row stays in memory while the next ones are read
    return total


def unlike_rows(start: bytes, stop: bytes, source: Scan, target: Scan) -> Iterator[list[bytes]]:
    """The rows of a range whose cells and markers are not exactly the same on both sides, whether readers see the
    difference or not. Yields the rows of one piece at a time, in order."""
    for here, there in _pieces(start, stop, source, target, now_ms, None):
        mine, theirs = (row_digests(side.cells, np.ones(len(side.cells), np.bool_)) for side in (here, there))
        yield _differing(mine, theirs)


# ------------------------------------------------------------------ reading both sides


@dataclass(frozen=True)
class _Piece:
    """Whole rows of one side, requested after `first_ms` and received before `last_ms`."""

    cells: CellIndex
    first_ms: int
    last_ms: int

    @property
    def last_row(self) -> bytes:
        return self.cells.row(len(self.cells) - 1)


class _Side:
    """One side's scan. It reads the next block while the previous one is compared, unless the previous one is large."""

    def __init__(
        self,
        blocks: Iterator[bytes | CellIndex],
        readers: ThreadPoolExecutor,
        clock: Clock,
        taken: Taken | None,
    ) -> None:
        self._blocks = blocks
        self._readers = readers
        self._clock = clock
        self._taken = taken
        self._ended = False
        self._next: Future[_Piece] | None = None
        self._piece = _Piece(_no_cells(), 0, 0)

    def _read(self) -> _Piece:
        first_ms = self._clock()
        cells = _no_cells()
        for block in self._blocks:
            cells = block if isinstance(block, CellIndex) else index_cells(np.frombuffer(block, np.uint8))
            if len(cells):
                break
        if self._taken is not None:
            return _Piece(cells, self._taken.first_ms, self._taken.last_ms)
        return _Piece(cells, first_ms, self._clock())

    def read_on(self) -> None:
        """Start to read the next block if it is needed now."""
        if self._next is None and not len(self._piece.cells) and not self._ended:
            self._next = self._readers.submit(self._read)

    def last_row(self) -> bytes | None:
        """The last row that has been read; None at the end."""
        if not len(self._piece.cells) and self._next is not None:
            self._piece, self._next = self._next.result(), None
            self._ended = not len(self._piece.cells)
            if not self._ended and self._piece.cells.buffer.nbytes <= AHEAD_BYTES:
                self._next = self._readers.submit(self._read)
        return None if self._ended else self._piece.last_row

    def take(self, border: bytes) -> _Piece:
        """The part already read of the rows up to and including `border`."""
        cells = self._piece.cells
        count = bisect_right(range(len(cells)), border, key=cells.row)
        taken = replace(self._piece, cells=cells.part(0, count))
        rest = cells.part(count, len(cells)) if count < len(cells) else _no_cells()
        self._piece = replace(self._piece, cells=rest)
        return taken


@cache
def _no_cells() -> CellIndex:
    return index_cells(np.empty(0, np.uint8))


def _pieces(
    start: bytes, stop: bytes, source: Scan, target: Scan, clock: Clock, taken: Taken | None
) -> Iterator[tuple[_Piece, _Piece]]:
    """Both sides of the same rows, piece by piece; either side may have no cells."""
    with ThreadPoolExecutor(2) as readers:
        here = _Side(source(start, stop), readers, clock, taken)
        there = _Side(target(start, stop), readers, clock, taken)
        while True:
            here.read_on()
            there.read_on()
            ends = [row for row in (here.last_row(), there.last_row()) if row is not None]
            if not ends:
                return
            yield here.take(min(ends)), there.take(min(ends))


# ------------------------------------------------------------------ comparing them


def _without_clients(here: _Piece, there: _Piece, clients_from: int) -> _Piece:
    """The target's cells, except those that only clients can have written."""
    cells, later = there.cells, there.cells.timestamp >= clients_from
    if not later.any():
        return there
    copied = held_by(cells, later, here.cells, here.cells.timestamp >= clients_from)
    return replace(there, cells=cells.pick(np.flatnonzero(~later | copied)))


def _compare(here: _Piece, there: _Piece, rules: Mapping[bytes, FamilyRules], names_expiring: bool) -> Outcome:
    read = [piece for piece in (here, there) if len(piece.cells)]
    if not read:
        return NOTHING
    first_ms = min(piece.first_ms for piece in read)
    last_ms = max(piece.last_ms for piece in read) + CLOCKS_APART_MS
    sides = (here.cells, there.cells)
    fates = [resolve(cells, rules, last_ms) for cells in sides]
    expiring = [
        _expiring(cells, fate, resolve(cells, rules, first_ms) if (fate == Fate.EXPIRED).any() else fate)
        for cells, fate in zip(sides, fates, strict=True)
    ]
    held = [
        held_by(cells, mine, others, theirs) if mine.any() else mine
        for cells, mine, others, theirs in zip(sides, expiring, sides[::-1], expiring[::-1], strict=True)
    ]
    keep = [(fate == Fate.VISIBLE) | mine for fate, mine in zip(fates, held, strict=True)]
    by_row = [row_digests(cells, mine) for cells, mine in zip(sides, keep, strict=True)]
    source, target = map(digest_of, by_row)
    rows = _differing(*by_row) if source != target else []
    uncompared = int(sum(all_.sum() - both.sum() for all_, both in zip(expiring, held, strict=True)))
    if uncompared and names_expiring:
        alone = [
            cells.row(number)
            for cells, all_, both in zip(sides, expiring, held, strict=True)
            for number in np.flatnonzero(all_ & ~both).tolist()
        ]
        rows, uncompared = sorted({*rows, *alone}), 0
    return Outcome(
        source,
        target,
        np.array([np.bincount(fate[~mine], minlength=len(Fate)) for fate, mine in zip(fates, held, strict=True)]),
        int(held[0].sum()),
        uncompared,
        first_ms,
        last_ms,
        len(rows),
        tuple(rows),
        fragile_in(sides[0], first_ms, CLOCKS_APART_MS) + fragile_in(sides[1], first_ms, CLOCKS_APART_MS),
        int(max(piece.cells.timestamp.max() for piece in read)),
    )


def _drawn(cells: CellIndex, most: int, below: float) -> tuple[tuple[float, bytes], ...]:
    """The rows of the cells that draw the lowest numbers, with these numbers: at most `most`, and only numbers below
    `below`."""
    if not most:
        return ()
    drawn = np.random.default_rng().random(len(cells))
    lowest = np.argpartition(drawn, most - 1)[:most] if len(cells) > most else np.arange(len(cells))
    return tuple((float(drawn[number]), cells.row(number)) for number in lowest[drawn[lowest] < below].tolist())


def _expiring(
    cells: CellIndex, at_last: npt.NDArray[np.uint8], at_first: npt.NDArray[np.uint8]
) -> npt.NDArray[np.bool_]:
    """Cells that were visible at the first moment and beyond their TTL at the last one."""
    expiring: npt.NDArray[np.bool_] = (at_first == Fate.VISIBLE) & (at_last == Fate.EXPIRED)
    return expiring


def _differing(source: pa.RecordBatch, target: pa.RecordBatch) -> list[bytes]:
    """Rows whose digests differ, in order."""
    names = ("cells", "low", "high")
    left = pa.Table.from_batches([source])
    right = pa.Table.from_batches([target]).rename_columns(["row", *(f"target_{name}" for name in names)])
    if left["row"].equals(right["row"]):  # as in most pieces: then no join is needed
        both = pa.table(dict(zip(right.column_names, right.columns, strict=True)) | {n: left[n] for n in names})
    else:
        both = left.join(right, "row", join_type="full outer")
    alike = pa.chunked_array([pa.array(np.ones(both.num_rows, np.bool_))])
    for name in names:
        alike = pc.and_(alike, pc.fill_null(pc.equal(both[name], both[f"target_{name}"]), False))
    return sorted(both.filter(pc.invert(alike))["row"].to_pylist())

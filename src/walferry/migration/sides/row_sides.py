"""Both sides of a row that differs: which of its cells differ, and which raw cells may explain it.

A row may have millions of cells, and thousands of rows may differ. So only a bounded number of each row's cells is
kept, and a row that would need more says so.
"""

from __future__ import annotations

import hashlib
import heapq
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.formats.cells import CellIndex, CellType, cells_to_arrow, cut_cells, index_cells
from walferry.formats.resolve import FamilyRules, Fate, resolve

ROW_CELLS = 1_000
ROW_BYTES = 256 << 10
"""the most that is kept of one row, for each of these: cells that differ, raw cells of either side, edits of the log"""
TABLE_CELLS = 2_000_000
TABLE_BYTES = 128 << 20
"""the most that is kept of all rows of a table together; each row has an equal share"""

_SHORT_VALUE = 32
_CELL_OVERHEAD = 16  # timestamp, type and lengths
_CELLS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 1 << 20
"""the most that is turned into objects at a time"""
FAMILY_MARKERS = (CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION)

Cell = tuple[bytes, bytes, int, int, bytes, bytes]
"""family, qualifier, timestamp, type, value (or its SHA-256 if that is shorter), tags"""

Value = TypeVar("Value")


class Compressed(Generic[Value]):
    """A value as compressed bytes: the cells of all rows would need ten times the memory as objects."""

    def __init__(self, value: Value) -> None:
        self._data = zlib.compress(pickle.dumps(value), 1)

    def value(self) -> Value:
        """The value, as a new object."""
        value: Value = pickle.loads(zlib.decompress(self._data))
        return value


@dataclass(frozen=True)
class Bounds:
    """How much is kept of a row."""

    cells: int
    size: int
    """bytes"""

    @classmethod
    def of_each(cls, rows: int) -> Bounds:
        """The bounds of each row if `rows` rows of a table are kept."""
        return cls(min(ROW_CELLS, TABLE_CELLS // rows), min(ROW_BYTES, TABLE_BYTES // rows))

    def room(self) -> Room:
        """Room of this size, all of it free."""
        return Room(self.cells, self.size)

    def all_of(self, cells: Iterable[Cell]) -> frozenset[Cell] | None:
        """The cells; None if they exceed the bounds."""
        room = self.room()
        kept = frozenset(takewhile(room.takes, cells))
        return None if room.exhausted else kept


@dataclass
class Room:
    """The part of a row's bounds that is still free."""

    cells: int
    size: int

    def takes(self, cell: Cell) -> bool:
        """Whether the cell may be kept; after a cell that may not, no later one may."""
        family, qualifier, _, _, value, tags = cell
        self.cells -= 1
        self.size -= len(family) + len(qualifier) + len(value) + len(tags) + _CELL_OVERHEAD
        return not self.exhausted

    @property
    def exhausted(self) -> bool:
        """Whether a cell found no room."""
        return self.cells < 0 or self.size < 0


@dataclass(frozen=True)
class Question:
    """The cells in which a row differs, to look for an explanation elsewhere.

    Whatever explains a cell (a marker, a newer version or another put) is in the cell's column or family and not older.
    """

    columns: Mapping[tuple[bytes, bytes], int]
    """the oldest timestamp that differs, for each family and qualifier"""
    families: Mapping[bytes, int]
    """the same for each family"""

    def concerns(self, cell: Cell) -> bool:
        """Whether a cell of the row may explain anything."""
        family, qualifier, timestamp, *_ = cell
        if is_family_marker(cell):
            return timestamp >= self.families.get(family, timestamp + 1)
        return timestamp >= self.columns.get((family, qualifier), timestamp + 1)


@dataclass(frozen=True)
class RowSides:
    """A row that differs: the cells that only one side shows, and the cells of both sides that may explain the
    difference."""

    source: frozenset[Cell]
    """the raw cells that the question concerns"""
    target: frozenset[Cell]
    only_source: tuple[Cell, ...]
    only_target: tuple[Cell, ...]
    differing: int
    """how many cells only one side shows; if the two sets above hold fewer, they hold the row's first ones"""
    too_many: bool
    """whether more raw cells may explain the difference than are kept: then nothing is explained"""
    at_ms: int
    """the moment at which both sides were resolved"""

    @property
    def question(self) -> Question:
        """The cells to look for in the log."""
        return question((*self.only_source, *self.only_target))


def differing_cells(sides: RowSides) -> str:
    """A digest of exactly the cells that differ; "" if not all of them are kept."""
    if sides.too_many or sides.differing > len(sides.only_source) + len(sides.only_target):
        return ""
    cells = [(True, *cell) for cell in sides.only_source] + [(False, *cell) for cell in sides.only_target]
    return hashlib.sha256(repr(sorted(cells)).encode()).hexdigest()


def row_sides(
    source: bytes, target: bytes, rules: Mapping[bytes, FamilyRules], at_ms: int, bounds: Bounds
) -> RowSides | None:
    """Both sides of one row, from its raw cells as cell blocks; None if the visible cells are equal.

    Reads any number of cells; keeps at most `bounds` of the differing cells and of each side's raw cells. Memory: a
    small multiple of both blocks.
    """
    here, there = (index_cells(np.frombuffer(block, np.uint8)) for block in (source, target))
    visible = (_cells(cells, resolve(cells, rules, at_ms) == Fate.VISIBLE) for cells in (here, there))
    only_source: list[Cell] = []
    only_target: list[Cell] = []
    room = bounds.room()
    differing = 0
    for cell, at_source in _differing(*visible):
        differing += 1
        if not room.exhausted and room.takes(cell):
            (only_source if at_source else only_target).append(cell)
    if not differing:
        return None
    asked = question((*only_source, *only_target))
    raw = [bounds.all_of(filter(asked.concerns, _cells(cells))) for cells in (here, there)]
    return RowSides(
        raw[0] or frozenset(),
        raw[1] or frozenset(),
        tuple(sorted(only_source)),
        tuple(sorted(only_target)),
        differing,
        None in raw,
        at_ms,
    )


def question(cells: Iterable[Cell]) -> Question:
    """What to look for to explain that these cells differ."""
    columns: dict[tuple[bytes, bytes], int] = {}
    families: dict[bytes, int] = {}
    for family, qualifier, timestamp, *_ in cells:
        columns[family, qualifier] = min(timestamp, columns.get((family, qualifier), timestamp))
        families[family] = min(timestamp, families.get(family, timestamp))
    return Question(columns, families)


def cells_of(batch: pa.RecordBatch) -> Iterator[Cell]:
    """The cells of a batch with CELL_SCHEMA's columns."""
    names = ("family", "qualifier", "timestamp", "type", "value", "tags")
    for family, qualifier, timestamp, kind, value, tags in zip(
        *(batch[name].to_pylist() for name in names), strict=True
    ):
        yield cell_as_compared(family, qualifier, timestamp, kind, value, tags)


def cell_as_compared(family: bytes, qualifier: bytes, timestamp: int, kind: int, value: bytes, tags: bytes) -> Cell:
    """A cell as the sides of a row have it."""
    return family, qualifier, timestamp, kind, _short(value), tags


def is_family_marker(cell: Cell) -> bool:
    """Whether the cell is a marker of a whole family."""
    return cell[3] in FAMILY_MARKERS


def _differing(source: Iterator[Cell], target: Iterator[Cell]) -> Iterator[tuple[Cell, bool]]:
    """The visible cells that only one side has, in the row's order, each with whether that side is the source."""
    both = heapq.merge(((cell, True) for cell in source), ((cell, False) for cell in target), key=_place)
    for _, found in groupby(both, _place):
        cells = list(found)  # at most one of each side: a column shows one cell at a timestamp
        if len({cell for cell, _ in cells}) == len(cells):
            yield from cells


def _place(item: tuple[Cell, bool]) -> tuple[bytes, bytes, int]:
    """The key by which HBase sorts a row's visible cells."""
    (family, qualifier, timestamp, *_), _ = item
    return family, qualifier, -timestamp


def _cells(index: CellIndex, chosen: npt.NDArray[np.bool_] | None = None) -> Iterator[Cell]:
    """The (chosen) cells in order, a few at a time."""
    borders = np.append(index.position, len(index.buffer))
    for start, stop in cut_cells(borders, 0, len(index), _CELLS_AT_ONCE, _BYTES_AT_ONCE):
        batch = cells_to_arrow(index.part(start, stop))
        yield from cells_of(batch if chosen is None else batch.filter(pa.array(chosen[start:stop])))


def _short(value: bytes) -> bytes:
    return value if len(value) <= _SHORT_VALUE else hashlib.sha256(value).digest()

"""Which cells of a row differ, and how much of it is kept."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from walferry.formats.cells import CellType, encode_cell
from walferry.formats.resolve import FamilyRules
from walferry.migration.sides.row_sides import (
    ROW_BYTES,
    ROW_CELLS,
    TABLE_BYTES,
    TABLE_CELLS,
    Bounds,
    Cell,
    Compressed,
    RowSides,
    row_sides,
)

RULES = {b"f": FamilyRules(9, 0, None), b"g": FamilyRules(9, 0, None)}
WIDE = Bounds(10_000, 10_000_000)


def cell(qualifier: int, timestamp: int = 5, value: bytes = b"v", family: bytes = b"f") -> Cell:
    return (family, b"%06d" % qualifier, timestamp, CellType.PUT, value, b"")


def sides(source: list[Cell], target: list[Cell], bounds: Bounds = WIDE) -> RowSides | None:
    return row_sides(block(source), block(target), RULES, 1_000_000, bounds)


def block(cells: list[Cell]) -> bytes:
    ordered = sorted(cells, key=lambda cell: (cell[0], cell[1], -cell[2], -cell[3]))
    return b"".join(encode_cell(b"row", *cell[:5]) for cell in ordered)


@pytest.mark.parametrize("seed", range(5))
def test_exactly_the_cells_that_one_side_lacks_differ(seed: int) -> None:
    random = Random(seed)
    keys = [(q, t, f) for q in range(700) for t in (5, 6, 7) for f in (b"f", b"g")]  # several chunks
    source = {cell(q, t, random.choice([b"a", b"b"]), f) for q, t, f in keys if random.random() < 0.9}
    target = {one if random.random() < 0.99 else cell(int(one[1]), one[2], b"c", one[0]) for one in source}
    target = {one for one in target if random.random() < 0.99} | {cell(9_999)}
    found = sides(list(source), list(target))
    assert found
    assert set(found.only_source) == source - target
    assert set(found.only_target) == target - source
    assert found.differing == len(source ^ target)
    assert {cell(9_999)} < found.target < target


def test_of_a_row_that_differs_everywhere_the_first_cells_are_kept() -> None:
    found = sides([cell(n) for n in range(3_000)], [cell(n, value=b"w") for n in range(3_000)], Bounds(100, 1 << 20))
    assert found
    assert (found.differing, found.too_many) == (6_000, False)
    assert found.only_source == tuple(cell(n) for n in range(50))
    assert (len(found.only_target), len(found.source), len(found.target)) == (50, 50, 50)


def test_a_row_of_any_width_needs_little_memory_beside_its_bytes() -> None:
    """Hole: each cell of a wide row became an object."""
    block_of_cells = block([cell(n, value=b"v" * 8) for n in range(60_000)])
    sides([cell(1)], [])  # compiles the kernels
    tracemalloc.start()
    try:
        found = row_sides(block_of_cells, b"", RULES, 1_000_000, Bounds(100, 1 << 20))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found
    assert found.differing == 60_000
    assert peak < 6 * len(block_of_cells)


@pytest.mark.parametrize("rows", [1, 150, 3_000, 20_000])
def test_all_rows_of_a_table_share_the_room(rows: int) -> None:
    bounds = Bounds.of_each(rows)
    assert rows * bounds.cells <= TABLE_CELLS
    assert rows * bounds.size <= TABLE_BYTES
    assert (bounds.cells, bounds.size) == (ROW_CELLS, ROW_BYTES) or rows > TABLE_BYTES // ROW_BYTES
    assert bounds.cells >= 100


def test_a_packed_value_comes_back_and_needs_a_fraction_of_the_memory() -> None:
    found = sides([cell(n) for n in range(1_000)], [])
    assert found
    packed = Compressed(found)
    assert packed.value() == found
    assert len(packed._data) < 20 * 1_000

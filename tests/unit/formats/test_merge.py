from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from walferry.formats.cells import CellType, cells_to_arrow, encode_cell, index_cells
from walferry.formats.hfile import StoredCells
from walferry.formats.merge import merged

SHORT = st.sampled_from([b"", b"a", b"ab", b"b", b"\xff"])
CELLS = st.tuples(
    st.sampled_from([b"a", b"ab", b"b", b"\xff", b"a long row that shares its beginning 1", b"a long row that shares"]),
    st.sampled_from([b"f", b"g"]),
    SHORT,
    st.integers(1, 3),
    st.sampled_from(list(CellType)),
    st.binary(max_size=3),
    st.integers(0, 3),  # the sequence number
)
FILES = st.lists(st.tuples(st.lists(CELLS, max_size=12), st.integers(1, 5)), max_size=4)


def key_of(cell: Any) -> Any:
    return *cell[:3], -cell[3], -cell[4]


def stored(cells: list[Any]) -> StoredCells:
    run = b"".join(encode_cell(*cell[:6]) for cell in cells)
    found = index_cells(np.frombuffer(run, np.uint8))
    return StoredCells(found, np.array([cell[6] for cell in cells], np.int64))


@given(FILES)
def test_files_are_merged_as_a_sort_of_all_their_cells_would(files: list[tuple[list[Any], int]]) -> None:
    """A file has batches of so many cells; among equal keys the highest sequence wins, then the newest file."""
    everything, batches = [], []
    for age, (cells, size) in enumerate(files):
        ordered = list({key_of(cell): cell for cell in sorted(cells, key=key_of)}.values())
        everything += [(key_of(cell), -cell[6], -age, cell) for cell in ordered]
        batches.append([stored(ordered[at : at + size]) for at in range(0, len(ordered), size)])
    expected, seen = [], set()
    for key, _, _, cell in sorted(everything, key=lambda item: item[:3]):
        if key not in seen:
            expected.append(tuple(cell[:6]))
        seen.add(key)
    found = [cells_to_arrow(cells).to_pylist() for cells in merged(batches)]
    assert [tuple(cell.values())[:6] for cells in found for cell in cells] == expected
    for before, after in pairwise(found):
        assert before[-1]["row"] < after[0]["row"]

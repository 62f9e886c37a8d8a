"""KeyValues and tags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.errors import DamagedInputError
from walferry.formats.cells import CellType, cells_to_arrow, decode_tags, encode_cell, index_cells

TAGS = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=20)), max_size=4)
CELLS = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=40),
        st.binary(min_size=1, max_size=127),
        st.binary(max_size=40),
        st.integers(0, 2**63 - 1),
        st.sampled_from([int(kind) for kind in CellType]),
        st.binary(max_size=200),
        TAGS,
    ),
    max_size=8,
)


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_a_cell_is_laid_out_as_hbase_lays_it_out() -> None:
    ttl = [(8, (86_400_000).to_bytes(8, "big"))]
    bare = "0000001000000002000272310166710000018bcfe56800047631"
    assert encode_cell(b"r1", b"f", b"q", 1700000000000, 4, b"v1").hex() == "0000001a" + bare
    tagged = encode_cell(b"r1", b"f", b"q", 1700000000000, 4, b"v1", ttl).hex()
    assert tagged == "00000027" + bare + "000b0009080000000005265c00"


@given(CELLS, st.binary(max_size=5))
def test_indexed_cells_are_those_that_were_encoded(cells: list[tuple[Any, ...]], before: bytes) -> None:
    run = b"".join(encode_cell(*cell) for cell in cells)
    index = index_cells(array(before + run), len(before))
    rows = cells_to_arrow(index).to_pylist()
    assert [tuple(row.values())[:6] for row in rows] == [cell[:6] for cell in cells]
    assert [decode_tags(row["tags"]) for row in rows] == [cell[6] for cell in cells]


@given(CELLS.filter(bool), st.data())
def test_a_cut_or_changed_run_of_cells_is_damage_or_reads_within_its_bounds(
    cells: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    run = bytearray(b"".join(encode_cell(*cell) for cell in cells))
    run[data.draw(st.integers(0, len(run) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(run)))
    try:
        index = index_cells(array(bytes(run)), 0, end)
    except DamagedInputError:
        return
    assert sum(len(encode) for encode in cells_to_arrow(index)["value"].to_pylist()) <= end
    assert ((index.value_start + index.value_length) <= end).all()
    assert ((index.tags_start + index.tags_length) <= end).all()


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [
        (3, 0x1B, "lengths"),  # total
        (0, 0x70, "lengths"),
        (7, 0x0B, "lengths"),  # klen
        (7, 0x0F, "type"),  # what is taken for tags then has a length that fits: the type does not
        (8, 0xFF, "lengths"),  # vlen
        (12, 0x80, "row or family"),
        (13, 0x09, "row or family"),
        (16, 0x80, "row or family"),
        (19, 0x80, "timestamp"),
        (27, 5, "type"),
        (27, 255, "type"),
        (31, 0x0C, "tags"),
        (33, 0x0A, "tags"),
        (33, 0x00, "tags"),
    ],
)
def test_an_impossible_cell_is_refused_with_its_reason(at: int, byte: int, reason: str) -> None:
    cell = bytearray(encode_cell(b"r1", b"f", b"q", 1700000000000, 4, b"v1", [(8, bytes(8))]))
    cell[at] = byte
    with pytest.raises(DamagedInputError, match=reason) as raised:
        index_cells(array(b"!" + bytes(cell)), 1)
    assert raised.value.offset == 1


def test_a_cell_that_the_run_ends_within_is_refused() -> None:
    cell = encode_cell(b"r1", b"f", b"q", 1, 4, b"v1")
    assert len(index_cells(array(cell + cell), 0, len(cell))) == 1
    for end in range(len(cell) + 1, len(cell) * 2):
        with pytest.raises(DamagedInputError, match="end inside a cell"):
            index_cells(array(cell + cell), 0, end)


def test_tags_that_do_not_fill_their_bytes_are_refused() -> None:
    for raw in (b"\0", b"\0\x01", b"\0\x03\x08", b"\0\0\x08"):
        with pytest.raises(DamagedInputError):
            decode_tags(raw)

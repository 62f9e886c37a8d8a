"""Borders inside a scan's cell blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.errors import DamagedInputError
from walferry.formats.cells import encode_cell
from walferry.hbase.scan import _cell_border, last_row

ROWS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20)


def cell(row: bytes) -> bytes:
    return encode_cell(row, b"f", b"q", 1, 4, b"v" * (len(row) % 7), [(8, b"12345678")] if len(row) % 2 else ())


@given(ROWS)
def test_thelast_row_of_a_block_is_found(rows: list[bytes]) -> None:
    assert last_row(b"".join(map(cell, rows))) == rows[-1]


@given(ROWS, st.data())
def test_the_border_behind_n_cells_is_their_length(rows: list[bytes], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(rows)))
    block = b"".join(map(cell, rows))
    assert _cell_border(block, count) == len(b"".join(map(cell, rows[:count])))


@given(ROWS, st.data())
def test_a_block_that_ends_inside_a_cell_is_damaged(rows: list[bytes], data: st.DataObject) -> None:
    block = b"".join(map(cell, rows))
    last = len(cell(rows[-1]))
    cut = block[: len(block) - data.draw(st.integers(1, last - 1))]
    with pytest.raises(DamagedInputError):
        last_row(cut)
    with pytest.raises(DamagedInputError):
        _cell_border(cut, len(rows))


def test_a_block_with_fewer_cells_than_the_server_said_is_damaged() -> None:
    with pytest.raises(DamagedInputError):
        _cell_border(cell(b"r"), 2)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_an_impossible_length_is_damaged_and_not_followed(length: bytes) -> None:
    block = length + cell(b"row")[4:]
    with pytest.raises(DamagedInputError):
        last_row(block)

"""What Thrift can say goes in order; what it cannot is refused, never turned into something similar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.apply.thrift_writer import MAX_CELLS, calls
from walferry.apply.writer_protocol import RefusedError
from walferry.formats.cells import CellIndex, CellType, encode_cell, index_cells

Edit = tuple[bytes, bytes, int, CellType, bytes]
"""row, qualifier, timestamp, type, value; all in family f"""


def index_of(edits: Sequence[Edit]) -> CellIndex:
    block = b"".join(encode_cell(row, b"f", qualifier, at, kind, value) for row, qualifier, at, kind, value in edits)
    return index_cells(np.frombuffer(block, np.uint8))


def test_a_family_is_deleted_by_its_bare_name_and_an_empty_qualifier_keeps_its_colon() -> None:
    edits = [
        (b"r", b"", 7, CellType.DELETE_FAMILY, b""),
        (b"r", b"", 7, CellType.DELETE_COLUMN, b""),
        (b"r", b"", 7, CellType.PUT, b"v"),
    ]
    assert [(call.is_put, call.cells) for call in calls(index_of(edits))] == [
        (False, ((b"r", b"f", b""), (b"r", b"f:", b""))),
        (True, ((b"r", b"f:", b"v"),)),
    ]


@pytest.mark.parametrize("kind", [CellType.DELETE, CellType.DELETE_FAMILY_VERSION])
def test_deletes_of_one_version_are_refused_by_name(kind: CellType) -> None:
    with pytest.raises(RefusedError, match=kind.name):
        list(calls(index_of([(b"r", b"", 7, kind, b"")])))


def test_tags_are_refused() -> None:
    block = encode_cell(b"r", b"f", b"q", 7, CellType.PUT, b"v", [(8, b"ttl")])
    with pytest.raises(RefusedError, match="tags"):
        list(calls(index_cells(np.frombuffer(block, np.uint8))))


edits_of = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b"]), st.sampled_from([b"", b"x"]), st.integers(1, 3),
        st.sampled_from([CellType.PUT, CellType.DELETE_COLUMN]), st.binary(max_size=2),
    ),
    max_size=40,
)  # fmt: skip


@given(edits_of)
def test_calls_hold_every_edit_once_in_order_and_never_mix_what_one_call_cannot_order(edits: list[Edit]) -> None:
    made = list(calls(index_of(edits)))
    flat = [(row, column, call.timestamp, call.is_put, value) for call in made for row, column, value in call.cells]
    assert flat == [
        (row, b"f:" + qualifier, at, kind == CellType.PUT, value) for row, qualifier, at, kind, value in edits
    ]
    for call in made:
        columns = [(row, column) for row, column, _ in call.cells]
        assert len(columns) == len(set(columns)) <= MAX_CELLS

"""Cells are put into the order of a store, and what later edits replace or delete is found, as HBase's rules say."""

from __future__ import annotations

from functools import cmp_to_key
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from walferry.formats.cells import Bytes, CellType, Int64s, as_run, cell_lengths, cell_starts, encode_cell, index_cells
from walferry.formats.order import (
    NUMBER_BITS,
    count_below,
    families_of,
    outranked,
    stepped_over,
    store_order,
    winners,
)


class Edit(NamedTuple):
    """A cell, when it came, and whether the target already has it."""

    row: bytes
    family: bytes
    qualifier: bytes
    timestamp: int
    type: CellType
    sequence: int
    settled: bool

    @property
    def key(self) -> tuple[object, ...]:
        return self.row, self.family, self.qualifier, -self.timestamp, -self.type

    @property
    def number(self) -> int:
        return self.sequence << NUMBER_BITS | self.settled


# Few values of each, so that keys are equal and markers cover; rows with a common beginning and of other lengths.
ROWS = st.sampled_from([b"", b"a", b"user1", b"user10", b"user1\0", b"user2", b"user\xff" * 5, b"user\xff" * 5 + b"0"])
COLUMNS = st.sampled_from([b"", b"q", b"q1", b"\xff"])
OF_FAMILY = (CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION)
EDITS = st.builds(
    Edit, ROWS, st.sampled_from([b"f", b"g"]), COLUMNS, st.integers(1, 4), st.sampled_from(CellType),
    st.integers(1, 30), st.booleans(),
).map(lambda edit: edit._replace(qualifier=b"") if edit.type in OF_FAMILY else edit)  # fmt: skip


def run_of(edits: list[Edit]) -> tuple[Bytes, Int64s, Int64s]:
    """The cells one after the other, where each begins, and their numbers."""
    cells = [encode_cell(*edit[:5], value=b"%d" % number) for number, edit in enumerate(edits)]
    buffer = np.frombuffer(b"".join(cells), np.uint8)
    return buffer, cell_starts(buffer), np.array([edit.number for edit in edits], np.int64)


def in_order(edits: list[Edit]) -> list[int]:
    """By key; of equal keys the highest number first, and of equal numbers the last one."""

    def before(a: int, b: int) -> int:
        one, other = edits[a], edits[b]
        if one.key != other.key:
            return -1 if one.key < other.key else 1
        return -1 if (one.number, a) > (other.number, b) else 1

    return sorted(range(len(edits)), key=cmp_to_key(before))


@given(st.lists(EDITS, max_size=150))
def test_cells_come_in_the_order_of_a_store_and_of_equal_ones_the_last_first(edits: list[Edit]) -> None:
    buffer, positions, numbers = run_of(edits)
    order = store_order(buffer, positions, numbers)
    assert order.tolist() == in_order(edits)
    keys = [edits[cell].key for cell in order]
    first = [at == 0 or key != keys[at - 1] for at, key in enumerate(keys)]
    assert winners(buffer, positions[order]).tolist() == first


def test_long_runs_of_equal_rows_are_sorted_too() -> None:
    chance = np.random.default_rng(1)
    edits = [
        Edit(b"row", b"f", b"q%d" % column, int(at), CellType.PUT, 1, False)
        for column, at in chance.integers(1, 60, (5000, 2)).tolist()
    ]
    buffer, positions, numbers = run_of(edits)
    assert store_order(buffer, positions, numbers).tolist() == in_order(edits)


@given(st.lists(EDITS, max_size=60), ROWS)
def test_rows_below_a_border_are_counted(edits: list[Edit], row: bytes) -> None:
    ordered = [edits[cell] for cell in in_order(edits)]
    buffer, positions, _ = run_of(ordered)
    assert count_below(buffer, positions, row) == sum(edit.row < row for edit in ordered)


@given(st.lists(EDITS, max_size=60))
def test_families_are_told_by_their_number_and_others_are_none(edits: list[Edit]) -> None:
    buffer, positions, _ = run_of(edits)
    found = families_of(buffer, positions, [b"g", b"ff"])
    assert found.tolist() == [0 if edit.family == b"g" else -1 for edit in edits]


def covers(marker: Edit, put: Edit) -> bool:
    """Whether a marker deletes a put, whichever came first."""
    if put.type != CellType.PUT or marker[:2] != put[:2]:
        return False
    same_column = marker.qualifier == put.qualifier
    if marker.type == CellType.DELETE_FAMILY:
        return marker.timestamp >= put.timestamp
    if marker.type == CellType.DELETE_FAMILY_VERSION:
        return marker.timestamp == put.timestamp
    if marker.type == CellType.DELETE_COLUMN:
        return same_column and marker.timestamp >= put.timestamp
    return marker.type == CellType.DELETE and same_column and marker.timestamp == put.timestamp


@given(st.lists(EDITS, max_size=60, unique_by=lambda edit: edit.sequence))
def test_what_a_later_settled_edit_replaces_or_deletes_is_outranked(edits: list[Edit]) -> None:
    ordered = [edits[cell] for cell in in_order(edits)]
    settled = [edit for edit in ordered if edit.settled]
    expected = [
        not edit.settled
        and any(later.sequence > edit.sequence and (later.key == edit.key or covers(later, edit)) for later in settled)
        for edit in ordered
    ]
    assert outranked(*run_of(ordered)).tolist() == expected


@given(st.lists(EDITS, max_size=60, unique_by=lambda edit: edit.key))
def test_a_put_beside_one_without_a_qualifier_leaves_the_file_of_the_marker_that_covers_it(edits: list[Edit]) -> None:
    ordered = [edits[cell] for cell in in_order(edits)]
    nameless = {edit[:2] for edit in ordered if edit.type == CellType.PUT and not edit.qualifier}
    markers = [edit for edit in ordered if edit.type in OF_FAMILY]
    expected = [edit[:2] in nameless and any(covers(marker, edit) for marker in markers) for edit in ordered]
    buffer, positions, _ = run_of(ordered)
    assert stepped_over(buffer, positions).tolist() == expected


@given(st.lists(EDITS, max_size=20), st.binary(max_size=9))
def test_a_run_made_of_an_index_has_the_same_cells(edits: list[Edit], tag: bytes) -> None:
    cells = [encode_cell(*edit[:5], value=b"v", tags=[(1, tag)] if edit.settled else []) for edit in edits]
    buffer = np.frombuffer(b"".join(cells), np.uint8)
    run, starts = as_run(index_cells(buffer))
    assert run.tobytes() == buffer.tobytes()
    assert starts.tolist() == cell_starts(buffer).tolist()
    assert cell_lengths(buffer, starts).tolist() == [len(cell) for cell in cells]

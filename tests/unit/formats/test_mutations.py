"""Runs of cells as mutations: one for each change of row or type, each with the region that holds its row."""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from walferry.formats.cells import CellType, encode_cell
from walferry.formats.mutations import RowBorders, cut_mutations
from walferry.formats.proto import hbase_pb2 as pb

ROWS = st.sampled_from([b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff\xff", b"\xff\xff\x00"])
REGION = pb.RegionAction(region=pb.RegionSpecifier(type=pb.RegionSpecifier.REGION_NAME, value=b"r")).SerializeToString()
KEYS = st.lists(st.tuples(ROWS, st.sampled_from(CellType)), min_size=1, max_size=300)


def run_of(keys: list[tuple[bytes, CellType]]) -> np.ndarray:
    cells = b"".join(encode_cell(row, b"f", b"q", 7, kind, b"v" * (i % 5)) for i, (row, kind) in enumerate(keys))
    return np.frombuffer(cells, np.uint8)


@given(KEYS, st.binary(max_size=200))
def test_each_change_of_row_or_type_begins_a_mutation_and_the_message_says_what_it_is(
    keys: list[tuple[bytes, CellType]], name: bytes
) -> None:
    found = cut_mutations(run_of(keys), 0, len(keys))
    attribute = pb.NameBytesPair(name="x", value=name)
    encoded = pb.MutationProto(attribute=[attribute]).SerializeToString()
    picked = np.arange(0, len(found), 2)
    actions = pb.RegionAction.FromString(REGION + found.actions(picked, encoded)).action
    runs = [(kind, len(list(same))) for (_, kind), same in groupby(keys)]
    assert len(found) == len(runs)
    assert [(action.mutation.mutate_type, action.mutation.associated_cell_count) for action in actions] == [
        (pb.MutationProto.PUT if kind is CellType.PUT else pb.MutationProto.DELETE, count) for kind, count in runs[::2]
    ]
    assert all(list(action.mutation.attribute) == [attribute] for action in actions)


def test_a_mutation_of_many_cells_has_its_whole_number() -> None:
    keys = [(b"r", CellType.PUT)] * 70_000
    found = cut_mutations(run_of(keys), 0, len(keys))
    action = pb.RegionAction.FromString(REGION + found.actions(np.arange(1), b"")).action[0]
    assert action.mutation.associated_cell_count == 70_000


def test_only_the_cells_asked_for_are_cut_and_the_next_ones_go_on_where_they_end() -> None:
    keys = [(b"a", CellType.PUT)] * 4
    buffer = run_of(keys)
    first = cut_mutations(buffer, 0, 3)
    rest = cut_mutations(buffer, int(first.end[-1]), 1)
    assert (first.cells.tolist(), rest.cells.tolist(), int(rest.end[-1])) == ([3], [1], len(buffer))


@given(KEYS, st.sets(ROWS))
def test_a_row_is_in_the_last_range_that_does_not_begin_after_it(
    keys: list[tuple[bytes, CellType]], borders: set[bytes]
) -> None:
    starts = [b"", *sorted(borders)]
    buffer = run_of(keys)
    found = cut_mutations(buffer, 0, len(keys))
    rows = [row for (row, _), _ in groupby(keys)]
    assert RowBorders.of(starts).ranges_of(buffer, found.start).tolist() == [
        bisect_right(starts, row) - 1 for row in rows
    ]

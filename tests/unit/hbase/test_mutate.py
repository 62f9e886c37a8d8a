"""Mutations as messages, and how many of them make a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate
from walferry.hbase.mutate import Cell, _chunks


def test_a_put_keeps_order_families_and_timestamps() -> None:
    cells = [Cell(b"r", b"f", b"b", b"1", 5), Cell(b"r", b"f", b"a", b"2"), Cell(b"r", b"g", b"", b"3", 0)]
    made = mutate.put(b"r", cells, ttl_ms=1)
    assert made.mutate_type == pb.MutationProto.PUT
    assert [
        (column.family, value.qualifier, value.value, value.timestamp if value.HasField("timestamp") else None)
        for column in made.column_value
        for value in column.qualifier_value
    ] == [(b"f", b"b", b"1", 5), (b"f", b"a", b"2", None), (b"g", b"", b"3", 0)]
    assert [(one.name, one.value) for one in made.attribute] == [("_ttl", b"\0\0\0\0\0\0\0\x01")]


@given(st.lists(st.integers(0, 60), max_size=50), st.integers(1, 7), st.integers(1, 200))
def test_chunks_keep_every_mutation_in_order_within_both_bounds(sizes: list[int], count: int, size: int) -> None:
    mutations = [mutate.append(b"r", b"f", b"q", b"v" * size) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutate, "MAX_ACTIONS", count)
        patch.setattr(mutate, "MAX_REQUEST_BYTES", size)
        chunks = list(_chunks(mutations, list(range(len(mutations)))))
    assert [index for chunk in chunks for index in chunk] == list(range(len(mutations)))
    assert all(0 < len(chunk) <= count for chunk in chunks)
    assert all(sum(mutations[index].ByteSize() for index in chunk[:-1]) < size for chunk in chunks)

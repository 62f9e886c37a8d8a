"""Numba kernels over runs of checked cells: cutting them into mutations, their regions, their protobuf messages."""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import int16_at, int32_at
from walferry.formats._njit import copy_bytes, kernel
from walferry.formats._protobuf_kernels import put_varint, varint_size
from walferry.formats._wal_kernels import starts_mutation

PUT_TYPE = 4  # CellType.PUT
_PUT, _DELETE = 2, 3  # MutationProto.MutationType
# Fields of protobuf messages: number << 3 | wire type.
_ACTION, _MUTATION, _MUTATE_TYPE, _CELL_COUNT = 0x1A, 0x12, 0x10, 0x40
MOST_FRAMING = 24
"""bytes of an action besides its attributes"""


@kernel()
def cut_mutations(buffer, at, count, start, cells, deletes):  # type: ignore[no-untyped-def]
    """Cut the `count` cells from `at` on; fill in each mutation's start, number of cells and whether it is a delete.

    Returns (number of mutations, position after the last cell).
    """
    found = np.int64(0)
    before = np.int64(-1)
    for _ in range(count):
        if before < 0 or starts_mutation(buffer, before, at):
            start[found] = at
            cells[found] = 0
            deletes[found] = buffer[at + 12 + int32_at(buffer, at + 4) - 1] != PUT_TYPE
            found += 1
        cells[found - 1] += 1
        before = at
        at += 4 + int32_at(buffer, at)
    return found, at


@kernel()
def _row_before(buffer, position, keys, begin, end):  # type: ignore[no-untyped-def]
    """Whether the row of the cell at `position` sorts before keys[begin:end]."""
    size = int16_at(buffer, position + 12)
    for i in range(min(size, end - begin)):
        ours, theirs = buffer[position + 14 + i], keys[begin + i]
        if ours != theirs:
            return ours < theirs
    return size < end - begin


@kernel()
def find_rows(buffer, positions, keys, ends, found):  # type: ignore[no-untyped-def]
    """Fill in, for each cell's row, the number of the last key <= row; key i is keys[ends[i - 1]:ends[i]]."""
    for i in range(len(positions)):
        low, high = np.int64(0), np.int64(len(ends) - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if _row_before(buffer, positions[i], keys, ends[middle - 1], ends[middle]):
                high = middle - 1
            else:
                low = middle
        found[i] = low


@kernel()
def encode_actions(cells, deletes, picked, attributes, out):  # type: ignore[no-untyped-def]
    """Write `RegionAction.action` of each picked mutation, all with the same encoded attributes; return the length."""
    at = np.int64(0)
    for i in picked:
        size = 2 + len(attributes) + 1 + varint_size(cells[i])
        out[at] = _ACTION
        at = put_varint(out, at + 1, 1 + varint_size(size) + size)
        out[at] = _MUTATION
        at = put_varint(out, at + 1, size)
        out[at] = _MUTATE_TYPE
        out[at + 1] = _DELETE if deletes[i] else _PUT
        copy_bytes(out, at + 2, attributes, 0, len(attributes))
        at += 2 + len(attributes)
        out[at] = _CELL_COUNT
        at = put_varint(out, at + 1, cells[i])
    return at

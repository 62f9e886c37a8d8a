"""Numba kernels over runs of KeyValues, each preceded by an int32 length: checks, field positions, gathering.

Layout (HBase's `KeyValue` and `KeyValueUtil.checkKeyValueBytes`), all integers big-endian:
int32 total | int32 klen | int32 vlen | int16 rowlen | row | int8 famlen | family | qualifier | int64 timestamp
| int8 type | value | [uint16 tagslen | tags], where total counts the bytes after itself. Buffers are uint8, positions
int64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from walferry.formats._njit import copy_bytes, kernel

OK = 0
INCOMPLETE = 1  # no error up to the limit, but more bytes follow it

BAD_CELL_LENGTHS = 10
BAD_CELL_ROW_OR_FAMILY = 11
BAD_CELL_TIMESTAMP = 12
BAD_CELL_TYPE = 13
BAD_CELL_TAGS = 14

REASONS = {
    BAD_CELL_LENGTHS: "the lengths of a cell contradict each other",
    BAD_CELL_ROW_OR_FAMILY: "row or family do not fit into a cell's key",
    BAD_CELL_TIMESTAMP: "a cell's timestamp is negative",
    BAD_CELL_TYPE: "a cell has a type that HBase does not write",
    BAD_CELL_TAGS: "a cell's tags do not fill their length",
}

# Servers accept no larger request (hbase.ipc.max.request.size, 256 MiB by default): a larger length is damaged.
MAX_CELL_BYTES = 1 << 30
CELL_FIELDS = 13

(
    POSITION,
    ROW_START,
    ROW_LENGTH,
    FAMILY_START,
    FAMILY_LENGTH,
    QUALIFIER_START,
    QUALIFIER_LENGTH,
    TIMESTAMP,
    TYPE,
    VALUE_START,
    VALUE_LENGTH,
    TAGS_START,
    TAGS_LENGTH,
) = range(CELL_FIELDS)


@kernel()
def int16_at(buffer, at):  # type: ignore[no-untyped-def]
    return np.int64(np.int16((np.uint16(buffer[at]) << np.uint16(8)) | np.uint16(buffer[at + 1])))


@kernel()
def int32_at(buffer, at):  # type: ignore[no-untyped-def]
    value = np.uint32(0)
    for i in range(4):
        value = np.uint32((value << np.uint32(8)) | np.uint32(buffer[at + i]))
    return np.int64(np.int32(value))


@kernel()
def int64_at(buffer, at):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for i in range(8):
        value = (value << np.uint64(8)) | np.uint64(buffer[at + i])
    return np.int64(value)


@kernel()
def same_bytes(buffer, start_a, length_a, start_b, length_b):  # type: ignore[no-untyped-def]
    if length_a != length_b:
        return False
    for i in range(length_a):  # noqa: SIM110 (numba has no all() over generators)
        if buffer[start_a + i] != buffer[start_b + i]:
            return False
    return True


@kernel()
def check_cell(buffer, at, limit):  # type: ignore[no-untyped-def]
    """(status, position after the cell) of the cell whose int32 length is at `at`.

    Checks all bytes before `limit`, so that a false length is found before the reader has read all the bytes that it
    claims.
    """
    if at + 4 > limit:
        return INCOMPLETE, at
    total = int32_at(buffer, at)
    if total < 20 or total > MAX_CELL_BYTES:
        return BAD_CELL_LENGTHS, at
    if at + 12 > limit:
        return INCOMPLETE, at
    key_length = int32_at(buffer, at + 4)
    value_length = int32_at(buffer, at + 8)
    rest = total - 8 - key_length - value_length
    if key_length < 12 or value_length < 0 or rest < 0 or rest == 1 or rest > 2 + 65535:
        return BAD_CELL_LENGTHS, at
    if at + 14 > limit:
        return INCOMPLETE, at
    row_length = int16_at(buffer, at + 12)
    if row_length < 0 or 12 + row_length > key_length:
        return BAD_CELL_ROW_OR_FAMILY, at
    if at + 15 + row_length > limit:
        return INCOMPLETE, at
    family_length = np.int64(buffer[at + 14 + row_length])
    if family_length > 127 or 12 + row_length + family_length > key_length:
        return BAD_CELL_ROW_OR_FAMILY, at
    type_at = at + 12 + key_length - 1
    if type_at + 1 > limit:
        return INCOMPLETE, at
    if buffer[type_at - 8] > 127:
        return BAD_CELL_TIMESTAMP, at
    kind = buffer[type_at]
    if kind != 4 and kind != 8 and kind != 10 and kind != 12 and kind != 14:
        return BAD_CELL_TYPE, at
    end = at + 4 + total
    if rest > 0:
        tag = at + 12 + key_length + value_length
        if tag + 2 > limit:
            return INCOMPLETE, at
        if (np.int64(buffer[tag]) << 8) + np.int64(buffer[tag + 1]) != rest - 2:
            return BAD_CELL_TAGS, at
        if end > limit:
            return INCOMPLETE, at
        tag += 2
        while tag < end:
            if tag + 2 > end:
                return BAD_CELL_TAGS, at
            length = (np.int64(buffer[tag]) << 8) + np.int64(buffer[tag + 1])
            if length < 1 or tag + 2 + length > end:
                return BAD_CELL_TAGS, at
            tag += 2 + length
    if end > limit:
        return INCOMPLETE, at
    return OK, end


@kernel()
def count_cells(buffer, start, end):  # type: ignore[no-untyped-def]
    """(status, number of whole cells, position of the first cell that is not whole)."""
    count = 0
    at = start
    while at < end:
        status, after = check_cell(buffer, at, end)
        if status != OK:
            return status, count, at
        count += 1
        at = after
    return OK, count, at


@kernel()
def locate_key_and_value(buffer, at, fields, i):  # type: ignore[no-untyped-def]
    """Write the fields of a checked cell, except its tags, to column `i`; return where its value ends. Its klen is at
    `at` + 4."""
    key_length = int32_at(buffer, at + 4)
    value_length = int32_at(buffer, at + 8)
    row_length = int16_at(buffer, at + 12)
    family_length = np.int64(buffer[at + 14 + row_length])
    family = at + 15 + row_length
    value = at + 12 + key_length
    fields[POSITION, i] = at
    fields[ROW_START, i] = at + 14
    fields[ROW_LENGTH, i] = row_length
    fields[FAMILY_START, i] = family
    fields[FAMILY_LENGTH, i] = family_length
    fields[QUALIFIER_START, i] = family + family_length
    fields[QUALIFIER_LENGTH, i] = key_length - 12 - row_length - family_length
    fields[TIMESTAMP, i] = int64_at(buffer, value - 9)
    fields[TYPE, i] = buffer[value - 1]
    fields[VALUE_START, i] = value
    fields[VALUE_LENGTH, i] = value_length
    return value + value_length


@kernel()
def locate_cell(buffer, at, fields, i):  # type: ignore[no-untyped-def]
    """Write the fields of a checked cell to column `i` of int64[CELL_FIELDS, n]; return the position after the cell."""
    end = at + 4 + int32_at(buffer, at)
    tags = locate_key_and_value(buffer, at, fields, i) + 2
    fields[TAGS_START, i] = min(tags, end)
    fields[TAGS_LENGTH, i] = max(end - tags, 0)
    return end


@njit(cache=True, nogil=True)
def locate_cells(buffer, start, count):  # type: ignore[no-untyped-def]
    """int64[CELL_FIELDS, count] of `count` checked cells from `start` on."""
    fields = np.empty((CELL_FIELDS, count), np.int64)
    at = start
    for i in range(count):
        at = locate_cell(buffer, at, fields, i)
    return fields


@njit(cache=True, nogil=True)
def locate_entry_cells(buffer, cells_start, cell_count):  # type: ignore[no-untyped-def]
    """Fields of the checked cells of several entries; for each cell also its entry's number and its index in it."""
    n = cell_count.sum()
    fields = np.empty((CELL_FIELDS, n), np.int64)
    entry = np.empty(n, np.int64)
    index = np.empty(n, np.int32)
    i = 0
    for e in range(len(cells_start)):
        at = cells_start[e]
        for c in range(cell_count[e]):
            at = locate_cell(buffer, at, fields, i)
            entry[i] = e
            index[i] = c
            i += 1
    return fields, entry, index


@njit(cache=True, nogil=True)
def find_entry_cells(buffer, cells_start, cell_count):  # type: ignore[no-untyped-def]
    """For each checked cell of several entries: position, length, its entry's number and its index in the entry."""
    n = cell_count.sum()
    start = np.empty(n, np.int64)
    length = np.empty(n, np.int64)
    entry = np.empty(n, np.int32)
    index = np.empty(n, np.int32)
    i = 0
    for e in range(len(cells_start)):
        at = cells_start[e]
        for c in range(cell_count[e]):
            start[i] = at
            length[i] = 4 + int32_at(buffer, at)
            entry[i] = e
            index[i] = c
            at += length[i]
            i += 1
    return start, length, entry, index


@njit(cache=True, nogil=True)
def row_starts(buffer, cell):  # type: ignore[no-untyped-def]
    """The numbers of the checked cells whose row differs from the previous cell's."""
    found = np.empty(len(cell), np.int64)
    count = 0
    for i in range(len(cell)):
        row, length = cell[i] + 14, int16_at(buffer, cell[i] + 12)
        if i == 0 or not same_bytes(buffer, cell[i - 1] + 14, int16_at(buffer, cell[i - 1] + 12), row, length):
            found[count] = i
            count += 1
    return found[:count]


@njit(cache=True, nogil=True)
def gather(buffer, starts, lengths):  # type: ignore[no-untyped-def]
    """Concatenate n slices: (int64[n+1] offsets, the bytes), as Arrow lays out binary columns."""
    n = len(starts)
    offsets = np.empty(n + 1, np.int64)
    offsets[0] = 0
    for i in range(n):
        offsets[i + 1] = offsets[i] + lengths[i]
    data = np.empty(offsets[n], np.uint8)
    for i in range(n):
        copy_bytes(data, offsets[i], buffer, starts[i], lengths[i])
    return offsets, data


@kernel()
def measure_cells(buffer, positions, lengths):  # type: ignore[no-untyped-def]
    """Fill int64[n] with the length of each cell, including its int32 length."""
    for i in range(len(positions)):
        lengths[i] = 4 + int32_at(buffer, positions[i])


@njit(cache=True, nogil=True)
def start_cells(buffer):  # type: ignore[no-untyped-def]
    """The position of each cell of a checked run."""
    count = 0
    at = 0
    while at < len(buffer):
        at += 4 + int32_at(buffer, at)
        count += 1
    starts = np.empty(count, np.int64)
    at = 0
    for i in range(count):
        starts[i] = at
        at += 4 + int32_at(buffer, at)
    return starts


@njit(cache=True, nogil=True)
def lay_run(buffer, positions, tags_start, tags_length):  # type: ignore[no-untyped-def]
    """Copy cells, whose klen is at their positions + 4, into a run: (its bytes, where each cell begins in it)."""
    n = len(positions)
    starts = np.empty(n, np.int64)
    size = 0
    for i in range(n):
        starts[i] = size
        size += 12 + int32_at(buffer, positions[i] + 4) + int32_at(buffer, positions[i] + 8)
        if tags_length[i] > 0:
            size += 2 + tags_length[i]
    run = np.empty(size, np.uint8)
    for i in range(n):
        at = starts[i]
        plain = 8 + int32_at(buffer, positions[i] + 4) + int32_at(buffer, positions[i] + 8)
        total = plain + (2 + tags_length[i] if tags_length[i] > 0 else 0)
        for b in range(4):
            run[at + b] = np.uint8((total >> (24 - 8 * b)) & 0xFF)
        copy_bytes(run, at + 4, buffer, positions[i] + 4, plain)
        if tags_length[i] > 0:
            at += 4 + plain
            run[at] = np.uint8(tags_length[i] >> 8)
            run[at + 1] = np.uint8(tags_length[i] & 0xFF)
            copy_bytes(run, at + 2, buffer, tags_start[i], tags_length[i])
    return run, starts

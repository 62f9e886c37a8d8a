"""Numba kernels over WAL entries: a delimited protobuf WALKey, then `following_kv_count` cells.

Field numbers and wire types are from HBase's WAL.proto; unknown fields are skipped by wire type, as protobuf does. The
kernels check everything before `limit` as early as possible, so that a damaged length seldom makes a reader wait for
bytes that never come.
"""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import (
    INCOMPLETE,
    OK,
    check_cell,
    int16_at,
    int32_at,
    same_bytes,
)
from walferry.formats._cell_kernels import REASONS as CELL_REASONS
from walferry.formats._njit import kernel
from walferry.formats._protobuf_kernels import (
    BAD_KEY_FIELD,
    BAD_VARINT,
    BYTES,
    VARINT,
    field_at,
    holds_one_and_two,
    varint_at,
)
from walferry.formats.markers import marker_of

FULL = 2  # the columns are full; more entries follow

EMPTY_KEY = 21
KEY_TOO_LONG = 22
KEY_FIELD_MISSING = 24
NAME_NOT_TEXT = 25

REASONS = CELL_REASONS | {
    BAD_VARINT: "a number has more than 10 bytes",
    EMPTY_KEY: "an empty WALKey",
    KEY_TOO_LONG: "a WALKey longer than any HBase writes",
    BAD_KEY_FIELD: "a field of the WALKey does not fit into it",
    KEY_FIELD_MISSING: "a required field of the WALKey is missing",
    NAME_NOT_TEXT: "the name of a region or of a table is not UTF-8",
}

# A key holds two names, one scope per family and cluster ids: far less than this.
MAX_KEY_BYTES = 1 << 20

ENTRY_FIELDS = 15
(
    START,
    END,
    KEY_START,
    KEY_END,
    CELL_COUNT,
    MUTATION_COUNT,
    SEQUENCE_NUMBER,
    WRITE_TIME,
    REGION_START,
    REGION_LENGTH,
    TABLE_START,
    TABLE_LENGTH,
    CLUSTERS_START,
    CLUSTERS_LENGTH,
    MARKER,
) = range(ENTRY_FIELDS)


@kernel()
def is_whole(buffer, number, content, end):  # type: ignore[no-untyped-def]
    """Whether a WALKey's field has its message's required fields; cluster ids, scopes and attributes are messages."""
    if number == 5 or number == 8:
        return holds_one_and_two(buffer, content, end, VARINT, VARINT)
    if number == 6:
        return holds_one_and_two(buffer, content, end, BYTES, VARINT)
    return number != 12 or holds_one_and_two(buffer, content, end, BYTES, BYTES)


@kernel()
def scan_key(buffer, at, limit, fields, i):  # type: ignore[no-untyped-def]
    """Read the delimited WALKey at `at` into column `i` of `fields`; return (status, end or position of the error)."""
    status, size, key = varint_at(buffer, at, limit)
    if status != OK:
        return status, at
    if size == 0:
        return EMPTY_KEY, at
    if size < 0 or size > MAX_KEY_BYTES:
        return KEY_TOO_LONG, at
    end = key + size
    fields[START, i] = at
    fields[KEY_START, i] = key
    fields[KEY_END, i] = end
    fields[CLUSTERS_START, i] = key
    fields[CELL_COUNT, i] = fields[CLUSTERS_LENGTH, i] = 0
    visible = min(end, limit)
    required = 0
    position = key
    while position < visible:
        field_start = position
        status, number, wire, value, content, position = field_at(buffer, field_start, visible)
        if status == INCOMPLETE:
            # A field that runs past the key is damaged. If it only runs past the limit, its rest may still arrive.
            if visible == end or (wire == BYTES and content > field_start and value > end - content):
                return BAD_KEY_FIELD, field_start
            return INCOMPLETE, field_start
        if status != OK:
            return status, field_start
        if wire == BYTES:
            if number == 1:
                fields[REGION_START, i] = content
                fields[REGION_LENGTH, i] = value
                required |= 1
            elif number == 2:
                fields[TABLE_START, i] = content
                fields[TABLE_LENGTH, i] = value
                required |= 2
            elif not is_whole(buffer, number, content, position):
                return BAD_KEY_FIELD, field_start
            elif number == 8:
                if fields[CLUSTERS_LENGTH, i] == 0:
                    fields[CLUSTERS_START, i] = field_start
                elif fields[CLUSTERS_START, i] + fields[CLUSTERS_LENGTH, i] != field_start:
                    return BAD_KEY_FIELD, field_start  # protobuf writes repeated fields side by side
                fields[CLUSTERS_LENGTH, i] = position - fields[CLUSTERS_START, i]
        elif wire == VARINT:
            if number == 3:
                fields[SEQUENCE_NUMBER, i] = value
                required |= 4
            elif number == 4:
                fields[WRITE_TIME, i] = value
                required |= 8
            elif number == 7:
                fields[CELL_COUNT, i] = value & 0xFFFFFFFF
    if end > limit:
        return INCOMPLETE, at
    if required != 15:
        return KEY_FIELD_MISSING, at
    return OK, end


@kernel()
def scan_entry(buffer, at, limit, fields, i):  # type: ignore[no-untyped-def]
    """Read the entry at `at` into column `i` of `fields`; return (status, its end or position of the error)."""
    status, cell = scan_key(buffer, at, limit, fields, i)
    if status != OK:
        return status, cell
    return scan_cells(buffer, cell, limit, fields, i)


@kernel()
def scan_cells(buffer, cell, limit, fields, i):  # type: ignore[no-untyped-def]
    """Check the cells from `cell` on of the entry in column `i` of `fields`, whose CELL_COUNT says how many they are;
    return (status, its end or position of the error)."""
    mutations = 0
    marker = 0
    before = np.int64(-1)
    for _ in range(fields[CELL_COUNT, i]):
        status, after = check_cell(buffer, cell, limit)
        if status != OK:
            return status, cell
        if marker == 0:
            marker = marker_of(buffer, cell)
        if before < 0 or starts_mutation(buffer, before, cell):
            mutations += 1
        before = cell
        cell = after
    fields[END, i] = cell
    fields[MUTATION_COUNT, i] = mutations
    fields[MARKER, i] = marker
    return OK, cell


@kernel()
def locate_scopes(buffer, key_start, key_end, start, length):  # type: ignore[no-untyped-def]
    """Where the `scopes` of already checked WALKeys are, from the first one to the last; length 0: there are none."""
    for i in range(len(key_start)):
        at = key_start[i]
        start[i] = at
        length[i] = 0
        while at < key_end[i]:
            field = at
            status, number, _, _, _, at = field_at(buffer, field, key_end[i])
            if status != OK:
                break
            if number == 6:
                if length[i] == 0:
                    start[i] = field
                length[i] = at - start[i]


@kernel()
def starts_mutation(buffer, before, cell):  # type: ignore[no-untyped-def]
    """Whether a new Put or Delete begins at `cell`: its row or type differs from the previous checked cell's."""
    type_before = buffer[before + 12 + int32_at(buffer, before + 4) - 1]
    if type_before != buffer[cell + 12 + int32_at(buffer, cell + 4) - 1]:
        return True
    return not same_bytes(buffer, before + 14, int16_at(buffer, before + 12), cell + 14, int16_at(buffer, cell + 12))


@kernel()
def scan_entries(buffer, start, limit, fields):  # type: ignore[no-untyped-def]
    """Read entries from `start` on into int64[ENTRY_FIELDS, n].

    Returns (status, number of whole entries, position after the last of them, position of the error).
    """
    at = start
    count = 0
    while at < limit:
        if count == fields.shape[1]:
            return FULL, count, at, at
        status, after = scan_entry(buffer, at, limit, fields, count)
        if status != OK:
            return status, count, at, after
        at = after
        count += 1
    return OK, count, at, at

"""Numba kernels that look for an entry anywhere in a WAL's bytes, even in a compressed WAL without its dictionaries.

They only distinguish damage from a truncated file; no cell is read this way.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from walferry.formats import _dictionary_kernels as names
from walferry.formats._cell_kernels import MAX_CELL_BYTES, OK
from walferry.formats._encrypted_kernels import find_cell
from walferry.formats._njit import kernel
from walferry.formats._protobuf_kernels import BYTES, VARINT, field_at, varint_at
from walferry.formats._wal_kernels import (
    CELL_COUNT,
    ENTRY_FIELDS,
    KEY_START,
    MAX_KEY_BYTES,
    is_whole,
    scan_entry,
    scan_key,
)

PLAIN, COMPRESSED, ENCRYPTED = range(3)


@kernel()
def is_encoded_region(raw, start, length, limit):  # type: ignore[no-untyped-def]
    """Whether the bytes look like a region's encoded name: 32 hex digits, or the ten digits of hbase:meta."""
    if not (length == 32 or length == 10) or length > limit - start:
        return False
    for at in range(start, start + length):
        byte = raw[at]
        if not (48 <= byte <= 57 or 97 <= byte <= 102):
            return False
    return True


@kernel()
def is_region_name(raw, content, length):  # type: ignore[no-untyped-def]
    """Whether a NAME can be a region's: a number, or an encoded name."""
    if length == 2:
        return raw[content] < 0x80
    if raw[content] != names.NOT_IN_DICTIONARY or raw[content + 1] != length - 2:
        return False
    return is_encoded_region(raw, content + 2, length - 2, content + length)


@kernel()
def looks_compressed(raw, at, limit):  # type: ignore[no-untyped-def]
    """Whether a compressed WALKey and the fixed part of its first cell seem to be at `at`; the dictionaries are not
    known."""
    status, size, key = varint_at(raw, at, limit)
    if status != OK or size <= 0 or size > MAX_KEY_BYTES or size > limit - key:
        return False
    end = key + size
    required = np.int64(0)
    cells = np.int64(0)
    position = key
    while position < end:
        status, number, wire, value, content, position = field_at(raw, position, end)
        if status != OK or (wire == BYTES and number > 2 and not is_whole(raw, number, content, position)):
            return False
        if wire == BYTES and number == 1 and is_region_name(raw, content, value):
            required |= 1
        elif wire == BYTES and number == 2 and (value == 2 or raw[content] == names.NOT_IN_DICTIONARY):
            required |= 2
        elif wire == VARINT and (number == 3 or number == 4):
            required |= 4 if number == 3 else 8
        elif wire == VARINT and number == 7:
            cells = value
    if required != 15 or cells < 1:
        return False
    at = end
    for _ in range(3):  # klen, vlen, tagslen
        status, value, at = varint_at(raw, at, limit)
        if status != OK or value < 0 or value > MAX_CELL_BYTES:
            return False
    for _ in range(3):  # row, family, qualifier
        if at + 2 > limit:
            return False
        if raw[at] == names.NOT_IN_DICTIONARY:
            status, value, at = varint_at(raw, at + 1, limit)
            if status != OK or value < 0 or value > limit - at:
                return False
            at += value
        elif raw[at] < 0x80:
            at += 2
        else:
            return False
    if at + 9 > limit or raw[at] > 127:
        return False
    kind = raw[at + 8]
    return kind == 4 or kind == 8 or kind == 10 or kind == 12 or kind == 14


@kernel()
def holds_cells(raw, at, limit, fields, kind):  # type: ignore[no-untyped-def]
    """Whether a whole entry with at least one cell is at `at`; writes its key to the column of `fields`."""
    if kind == PLAIN:
        status, _ = scan_entry(raw, at, limit, fields, 0)
        return status == OK and fields[CELL_COUNT, 0] > 0
    status, cell = scan_key(raw, at, limit, fields, 0)
    if status != OK or fields[CELL_COUNT, 0] == 0:
        return False
    for _ in range(fields[CELL_COUNT, 0]):
        status, _, content, length = find_cell(raw, cell, limit)
        if status != OK:
            return False
        cell = content + length
    return True


@njit(cache=True, nogil=True)
def find_entry(raw, start, limit, kind):  # type: ignore[no-untyped-def]
    """Position of the first whole entry in `raw[start:limit]` whose WALKey begins with a region's name, or -1. In a
    compressed file the entry is only very likely whole."""
    fields = np.empty((ENTRY_FIELDS, 1), np.int64)
    for key in range(start + 1, limit - 2):
        length = np.int64(raw[key + 1])
        if raw[key] != 0x0A or not (length == 32 or length == 10 or (kind == COMPRESSED and length in (2, 34, 12))):
            continue
        if kind != COMPRESSED and not is_encoded_region(raw, key + 2, length, limit):
            continue
        for width in range(1, 4):
            at = key - width
            if at < start:
                break
            if kind == COMPRESSED:
                status, _, after = varint_at(raw, at, limit)
                if status == OK and after == key and looks_compressed(raw, at, limit):
                    return at
            elif holds_cells(raw, at, limit, fields, kind) and fields[KEY_START, 0] == key:
                return at
    return -1

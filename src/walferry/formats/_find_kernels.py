"""Numba kernels that look for an entry of a compressed WAL somewhere in its bytes, without knowing the dictionaries.

Only to tell damage from a file that was cut off: no cell is read that way.
"""

from __future__ import annotations

import numpy as np

from walferry.formats import _dictionary_kernels as names
from walferry.formats._cell_kernels import MAX_CELL_BYTES, OK
from walferry.formats._njit import kernel
from walferry.formats._protobuf_kernels import BYTES, VARINT, field_at, varint_at
from walferry.formats._wal_kernels import MAX_KEY_BYTES, is_whole


@kernel()
def is_region_name(raw, content, length):  # type: ignore[no-untyped-def]
    """Whether a NAME can be a region's: a number, or 32 hex digits, or the ten digits of hbase:meta."""
    if length == 2:
        return raw[content] < 0x80
    if not (length == 34 or length == 12) or raw[content] != names.NOT_IN_DICTIONARY:
        return False
    if raw[content + 1] != length - 2:
        return False
    for at in range(content + 2, content + length):
        byte = raw[at]
        if not (48 <= byte <= 57 or 97 <= byte <= 102):
            return False
    return True


@kernel()
def looks_like_entry(raw, at, limit):  # type: ignore[no-untyped-def]
    """Whether a compressed WALKey and the fixed part of a first cell are at `at`, as far as one can tell without the
    dictionaries."""
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
def find_compressed_entry(raw, start, limit):  # type: ignore[no-untyped-def]
    """Position of the first entry in `raw[start:limit]` that is whole beyond reasonable doubt, or -1."""
    for key in range(start + 1, limit - 2):
        if raw[key] != 0x0A or (raw[key + 1] != 2 and raw[key + 1] != 34 and raw[key + 1] != 12):
            continue
        for width in range(1, 4):
            if key - width >= start and looks_like_entry(raw, key - width, limit):
                status, _, after = varint_at(raw, key - width, limit)
                if status == OK and after == key:
                    return key - width
    return -1

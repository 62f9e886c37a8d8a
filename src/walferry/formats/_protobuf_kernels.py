"""Numba kernels over protobuf's wire format, for messages too numerous to parse one by one."""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import INCOMPLETE, OK
from walferry.formats._njit import kernel

BAD_VARINT = 20
BAD_KEY_FIELD = 23

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@kernel()
def varint_at(buffer, at, limit):  # type: ignore[no-untyped-def]
    """(status, value as int64, position after it) of a protobuf varint."""
    value = np.uint64(0)
    for i in range(10):
        if at + i >= limit:
            return INCOMPLETE, np.int64(0), at
        byte = np.uint64(buffer[at + i])
        value |= (byte & np.uint64(0x7F)) << np.uint64(7 * i)
        if byte < np.uint64(0x80):
            return OK, np.int64(value), at + i + 1
    return BAD_VARINT, np.int64(0), at


@kernel()
def varint_size(value):  # type: ignore[no-untyped-def]
    """How many bytes a varint of `value`, which is not negative, has."""
    size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


@kernel()
def put_varint(out, to, value):  # type: ignore[no-untyped-def]
    """Write `value`, which is not negative, to `out[to:]` as a varint; return the position after it."""
    while value > 127:
        out[to] = np.uint8((value & 127) | 128)
        value >>= 7
        to += 1
    out[to] = np.uint8(value)
    return to + 1


@kernel()
def field_at(buffer, at, end):  # type: ignore[no-untyped-def]
    """(status, field number, wire type, value or length, content start, position after) of the field at `at`.

    A number's value is decoded; the content of bytes is `buffer[start:start + length]`. INCOMPLETE if the field runs
    past `end`.
    """
    status, tag, at = varint_at(buffer, at, end)
    number = tag >> 3
    wire = tag & 7
    if status != OK:
        return status, number, wire, np.int64(0), at, at
    if number < 1 or number > 536870911:
        return BAD_KEY_FIELD, number, wire, np.int64(0), at, at
    if wire == VARINT:
        status, value, after = varint_at(buffer, at, end)
        return status, number, wire, value, at, after
    if wire == BYTES:
        status, length, at = varint_at(buffer, at, end)
        if status != OK:
            return status, number, wire, length, at, at
        if length < 0:
            return BAD_KEY_FIELD, number, wire, length, at, at
        if length > end - at:
            return INCOMPLETE, number, wire, length, at, at
        return OK, number, wire, length, at, at + length
    if wire in (FIXED64, FIXED32):
        size = 8 if wire == FIXED64 else 4
        if size > end - at:
            return INCOMPLETE, number, wire, np.int64(0), at, at
        return OK, number, wire, np.int64(0), at, at + size
    return BAD_KEY_FIELD, number, wire, np.int64(0), at, at


@kernel()
def holds_one_and_two(buffer, at, end, wire_of_one, wire_of_two):  # type: ignore[no-untyped-def]
    """Whether a message is whole and has fields 1 and 2, as UUID, FamilyScope and Attribute require."""
    one = False
    two = False
    while at < end:
        status, number, wire, _, _, at = field_at(buffer, at, end)
        if status != OK:
            return False
        one |= number == 1 and wire == wire_of_one
        two |= number == 2 and wire == wire_of_two
    return one and two

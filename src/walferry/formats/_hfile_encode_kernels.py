"""Numba kernels that encode the plain cells of a data block; `_hfile_kernels.unencode` is the inverse.

PrefixKeyDeltaEncoder, DiffKeyDeltaEncoder, FastDiffDeltaEncoder. After each cell come the length of its tags, the
tags unchanged, and its sequence number.
"""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import int16_at, int32_at, int64_at
from walferry.formats._hfile_kernels import DIFF, FAST_DIFF, PREFIX
from walferry.formats._njit import copy_bytes, kernel
from walferry.formats._protobuf_kernels import put_varint

MOST_MORE_BYTES = 20
"""the most by which an encoded cell can exceed a plain one"""


@kernel()
def _common(data, one, other, most):  # type: ignore[no-untyped-def]
    for i in range(most):
        if data[one + i] != data[other + i]:
            return i
    return most


@kernel()
def _put_time(out, to, value):  # type: ignore[no-untyped-def]
    """Write the bytes that a number needs, the lowest first; return the position after them."""
    size = 0
    while size == 0 or value != 0:
        out[to + size] = np.uint8(value & np.uint64(0xFF))
        value >>= np.uint64(8)
        size += 1
    return to + size


@kernel()
def _time_bytes(value):  # type: ignore[no-untyped-def]
    size = 1
    while value > np.uint64(0xFF):
        value >>= np.uint64(8)
        size += 1
    return size


@kernel()
def encode(encoding, data, at, end, out):  # type: ignore[no-untyped-def]
    """Encode the plain cells `data[at:end]`, with tags and one-byte sequence numbers, to `out`; return the length.

    Does not write the head of the block: the encoding's id and the plain length.
    """
    to = np.int64(0)
    first = True
    previous = np.int64(0)  # where the previous cell's key is
    key_before = np.int64(0)
    value_before = np.int64(0)
    if encoding == DIFF:
        family_at = at + 10 + int16_at(data, at + 8)
        family = 1 + np.int64(data[family_at])
        copy_bytes(out, 0, data, family_at, family)
        to = family
    while at < end:
        key_length = int32_at(data, at)
        value_length = int32_at(data, at + 4)
        key = at + 8
        value = key + key_length
        if encoding == PREFIX:
            common = 0 if first else _common(data, key, previous, min(key_length, key_before))
            to = put_varint(out, to, key_length - common)
            to = put_varint(out, to, value_length)
            to = put_varint(out, to, common)
            copy_bytes(out, to, data, key + common, key_length - common)
            to += key_length - common
        else:
            flags_at = to
            flags = 0
            to += 1
            if not first and key_length == key_before:
                flags |= 0x01 if encoding == DIFF else 0x08
            else:
                to = put_varint(out, to, key_length)
            if not first and value_length == value_before:
                flags |= 0x02 if encoding == DIFF else 0x10
            else:
                to = put_varint(out, to, value_length)
            common = 0 if first else _common(data, key, previous, min(key_length, key_before) - 9)
            to = put_varint(out, to, common)
            row = int16_at(data, key)
            family = 1 + np.int64(data[key + 2 + row])
            stamp = value - 9
            if first and encoding == FAST_DIFF:
                copy_bytes(out, to, data, key, key_length)
                to += key_length
            else:
                begin = key + common
                if first or common < 2 + int16_at(data, previous):
                    copy_bytes(out, to, data, begin, 2 + row - common)
                    to += 2 + row - common
                    begin = key + 2 + row + family
                copy_bytes(out, to, data, begin, stamp - begin)
                to += stamp - begin
                stamp_before = previous + key_before - 9
                if encoding == FAST_DIFF:
                    same = _common(data, stamp, stamp_before, 7)
                    flags |= same
                    copy_bytes(out, to, data, stamp + same, 8 - same)
                    to += 8 - same
                else:
                    time = int64_at(data, stamp)
                    size = _time_bytes(np.uint64(time))
                    step = time if first else int64_at(data, stamp_before) - time
                    began = to
                    if not first and _time_bytes(np.uint64(abs(step))) < size:
                        flags |= 0x88 if step < 0 else 0x08
                        to = _put_time(out, to, np.uint64(abs(step)))
                    else:
                        to = _put_time(out, to, np.uint64(time))
                    flags |= (to - began - 1) << 4
                if not first and data[stamp + 8] == data[stamp_before + 8]:
                    flags |= 0x04 if encoding == DIFF else 0x20
                else:
                    out[to] = data[stamp + 8]
                    to += 1
            if (
                encoding == FAST_DIFF
                and flags & 0x10
                and _common(data, value, previous + key_before, value_length) == value_length
            ):
                flags |= 0x40
            out[flags_at] = np.uint8(flags)
        if not (encoding == FAST_DIFF and flags & 0x40):
            copy_bytes(out, to, data, value, value_length)
            to += value_length
        at = value + value_length
        tags = (np.int64(data[at]) << 8) + np.int64(data[at + 1])
        to = put_varint(out, to, tags)
        copy_bytes(out, to, data, at + 2, tags)
        to += tags
        at += 2 + tags
        out[to] = data[at]
        to += 1
        at += 1
        first = False
        previous = key
        key_before = key_length
        value_before = value_length
    return to


@kernel()
def index_rows(data, at, end, rows):  # type: ignore[no-untyped-def]
    """Fill int32[n] with the offset of each row's first cell from the first cell; return the number of rows."""
    begin = at
    count = 0
    previous = np.int64(0)
    while at < end:
        row = 2 + int16_at(data, at + 8)
        before = 2 + int16_at(data, previous + 8)
        if count == 0 or row != before or _common(data, at + 8, previous + 8, row) != row:
            rows[count] = at - begin
            count += 1
        previous = at
        at += 8 + int32_at(data, at) + int32_at(data, at + 4)
        at += 3 + (np.int64(data[at]) << 8) + np.int64(data[at + 1])
    return count

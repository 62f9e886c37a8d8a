"""Numba kernels that write JSON: bytes in three forms, numbers; and the bounds of what they write.

Strings are escaped as Python's `json.dumps` does with ensure_ascii=False. A `put_…` writes to `out[to:]` and returns
the position after it; the caller has provided the room.
"""

from __future__ import annotations

import numpy as np

from walferry.formats.kernels import copy_bytes, kernel

BASE64, HEX, TEXT = range(3)
"""forms of bytes; TEXT gives those that are not UTF-8 as an object with their BASE64"""

_DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_OBJECT = np.frombuffer(b'{"base64":"', np.uint8)
_QUOTE, _BACKSLASH, _PAD = 0x22, 0x5C, 0x3D
_LETTERS = {0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}
_SHORT = np.array([ord(_LETTERS.get(byte, b"\0")) for byte in range(128)], np.uint8)
"""the letter of a short escape, by the escaped byte; 0 for none"""
_BLOCK = 16
"""bytes of a string that are looked at together"""
MOST_DIGITS = 20


@kernel()
def base64_size(length):  # type: ignore[no-untyped-def]
    return 4 * ((length + 2) // 3)


@kernel()
def bytes_bound(form, source, start, length):  # type: ignore[no-untyped-def]
    """At most so many bytes does `put_bytes` write."""
    if form == BASE64:
        return base64_size(length) + 2
    if form == HEX:
        return 2 * length + 2
    extra = np.int64(0)
    for i in range(start, start + length):
        byte = source[i]
        extra += 5 * np.int64(byte < 0x20) + np.int64(byte == _QUOTE) + np.int64(byte == _BACKSLASH)
    return max(length + extra, base64_size(length)) + len(_OBJECT) + 2


@kernel()
def put_bytes(out, to, form, source, start, length):  # type: ignore[no-untyped-def]
    """Bytes as a JSON value in the given form."""
    if form == TEXT:
        after = put_text(out, to, source, start, length)
        if after >= 0:
            return after
        copy_bytes(out, to, _OBJECT, 0, len(_OBJECT))
        to = put_base64(out, to + len(_OBJECT), source, start, length)
        out[to] = _QUOTE
        out[to + 1] = 0x7D
        return to + 2
    out[to] = _QUOTE
    if form == HEX:
        to = put_hex(out, to + 1, source, start, length)
    else:
        to = put_base64(out, to + 1, source, start, length)
    out[to] = _QUOTE
    return to + 1


@kernel()
def put_base64(out, to, source, start, length):  # type: ignore[no-untyped-def]
    """RFC 4648, section 4, with padding."""
    whole = length // 3
    for i in range(whole):
        at = start + 3 * i
        bits = np.uint32(source[at]) << np.uint32(16) | np.uint32(source[at + 1]) << np.uint32(8) | source[at + 2]
        place = to + 4 * i
        out[place] = _DIGITS[bits >> np.uint32(18)]
        out[place + 1] = _DIGITS[(bits >> np.uint32(12)) & np.uint32(63)]
        out[place + 2] = _DIGITS[(bits >> np.uint32(6)) & np.uint32(63)]
        out[place + 3] = _DIGITS[bits & np.uint32(63)]
    to += 4 * whole
    at = start + 3 * whole
    left = length - 3 * whole
    if left == 0:
        return to
    first = np.int64(source[at])
    second = np.int64(source[at + 1]) if left == 2 else np.int64(0)
    out[to] = _DIGITS[first >> 2]
    out[to + 1] = _DIGITS[(first & 3) << 4 | second >> 4]
    out[to + 2] = _DIGITS[(second & 15) << 2] if left == 2 else _PAD
    out[to + 3] = _PAD
    return to + 4


@kernel()
def put_hex(out, to, source, start, length):  # type: ignore[no-untyped-def]
    for i in range(length):
        byte = source[start + i]
        out[to + 2 * i] = _HEX[byte >> 4]
        out[to + 2 * i + 1] = _HEX[byte & 15]
    return to + 2 * length


@kernel()
def put_text(out, to, source, start, length):  # type: ignore[no-untyped-def]
    """UTF-8 as a JSON string; -1 for other bytes, after some were written."""
    out[to] = _QUOTE
    to += 1
    at = start
    end = start + length
    while at < end:
        if at + _BLOCK <= end:
            special = False
            for i in range(_BLOCK):
                byte = source[at + i]
                special |= (byte < 0x20) | (byte > 0x7F) | (byte == _QUOTE) | (byte == _BACKSLASH)
            if not special:
                copy_bytes(out, to, source, at, _BLOCK)
                at += _BLOCK
                to += _BLOCK
                continue
        stop = min(at + _BLOCK, end)
        while at < stop:
            byte = source[at]
            if byte > 0x7F:
                size = sequence_size(source, at, end)
                if size == 0:
                    return np.int64(-1)
                for i in range(size):
                    out[to + i] = source[at + i]
                at += size
                to += size
                continue
            at += 1
            if byte >= 0x20 and byte != _QUOTE and byte != _BACKSLASH:
                out[to] = byte
                to += 1
                continue
            out[to] = _BACKSLASH
            if _SHORT[byte] != 0:
                out[to + 1] = _SHORT[byte]
                to += 2
                continue
            out[to + 1] = 0x75
            out[to + 2] = out[to + 3] = 0x30
            out[to + 4] = _HEX[byte >> 4]
            out[to + 5] = _HEX[byte & 15]
            to += 6
    out[to] = _QUOTE
    return to + 1


@kernel()
def sequence_size(source, at, end):  # type: ignore[no-untyped-def]
    """The length of the UTF-8 sequence of several bytes at `at`; 0 if there is none (RFC 3629, section 4)."""
    first = source[at]
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if first < 0xC2 or first > 0xF4 or at + size > end:
        return 0
    second = source[at + 1]
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return 0
    for i in range(2, size):
        if source[at + i] & 0xC0 != 0x80:
            return 0
    return size


@kernel()
def put_number(out, to, number):  # type: ignore[no-untyped-def]
    """An int64 in decimal."""
    left = np.uint64(number)
    if number < 0:
        out[to] = 0x2D
        to += 1
        left = ~left + np.uint64(1)
    size = 1
    bound = np.uint64(10)
    while size < MOST_DIGITS - 1 and left >= bound:
        bound *= np.uint64(10)
        size += 1
    for i in range(size - 1, -1, -1):
        out[to + i] = np.uint8(0x30) + np.uint8(left % np.uint64(10))
        left //= np.uint64(10)
    return to + size

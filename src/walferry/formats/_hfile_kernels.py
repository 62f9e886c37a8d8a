"""Numba kernels over the cells of an HFile's data blocks: locate their fields, and decode encoded blocks.

Layout of a plain cell (HFileBlockDefaultEncodingContext, NoOpDataBlockEncoder), all integers big-endian:
int32 klen | int32 vlen | key | value | [uint16 tagslen | tags] | [vlong sequence], where key is a KeyValue's key
(`_cell_kernels`). The file info says whether cells have tags and sequence numbers.

An encoded cell refers to the previous cell of its block. These kernels decode PrefixKeyDeltaEncoder,
DiffKeyDeltaEncoder and FastDiffDeltaEncoder (DataBlockEncoding). After each encoded cell come [varint tagslen | tags]
and [vlong sequence]. The tags may be names of a dictionary (TagCompressionContext), which is empty at the start of each
block.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from walferry.formats._cell_kernels import (
    BAD_CELL_LENGTHS,
    BAD_CELL_ROW_OR_FAMILY,
    BAD_CELL_TAGS,
    BAD_CELL_TIMESTAMP,
    BAD_CELL_TYPE,
    CELL_FIELDS,
    OK,
    TAGS_LENGTH,
    TAGS_START,
    int16_at,
    int32_at,
    int64_at,
    locate_key_and_value,
)
from walferry.formats._dictionary_kernels import NEWEST, OLDEST, SIZE, name_at, take
from walferry.formats._njit import copy_bytes, kernel
from walferry.formats._protobuf_kernels import varint_at

BAD_SEQUENCE = 40
BAD_ENCODED_CELL = 41
BAD_ENCODED_SIZE = 42

REASONS = {
    BAD_SEQUENCE: "a cell's sequence number goes past its block",
    BAD_ENCODED_CELL: "an encoded cell refers to more than the cell before it has",
    BAD_ENCODED_SIZE: "the plain length that the block states is not that of its encoded cells",
}

PREFIX, DIFF, FAST_DIFF, ROW_INDEX = 2, 3, 4, 7
"""DataBlockEncoding's ids; `unencode` takes the first three"""
FIELDS = CELL_FIELDS + 1
SEQUENCE = CELL_FIELDS
_TAGS = 0
"""the number of the only dictionary in use"""


@kernel()
def vlong_at(buffer, at, limit):  # type: ignore[no-untyped-def]
    """(status, value, position after it) of a number written by WritableUtils.writeVLong."""
    if at >= limit:
        return BAD_SEQUENCE, np.int64(0), at
    first = np.int64(np.int8(buffer[at]))
    if first >= -112:
        return OK, first, at + 1
    negative = first < -120
    size = -120 - first if negative else -112 - first
    if at + 1 + size > limit:
        return BAD_SEQUENCE, np.int64(0), at
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | np.int64(buffer[at + 1 + i])
    return OK, ~value if negative else value, at + 1 + size


@kernel()
def _check_cell(buffer, at, limit, has_tags, has_sequence):  # type: ignore[no-untyped-def]
    """(status, position after the plain cell at `at`)."""
    if at + 8 > limit:
        return BAD_CELL_LENGTHS, at
    key_length = int32_at(buffer, at)
    value_length = int32_at(buffer, at + 4)
    if key_length < 12 or value_length < 0 or key_length + value_length > limit - at - 8:
        return BAD_CELL_LENGTHS, at
    row_length = int16_at(buffer, at + 8)
    if row_length < 0 or 12 + row_length > key_length:
        return BAD_CELL_ROW_OR_FAMILY, at
    family_length = np.int64(buffer[at + 10 + row_length])
    if family_length > 127 or 12 + row_length + family_length > key_length:
        return BAD_CELL_ROW_OR_FAMILY, at
    value = at + 8 + key_length
    if buffer[value - 9] > 127:
        return BAD_CELL_TIMESTAMP, at
    kind = buffer[value - 1]
    if kind != 4 and kind != 8 and kind != 10 and kind != 12 and kind != 14:
        return BAD_CELL_TYPE, at
    end = value + value_length
    if has_tags:
        if end + 2 > limit:
            return BAD_CELL_TAGS, at
        tag = end + 2
        end = tag + (np.int64(buffer[end]) << 8) + np.int64(buffer[end + 1])
        if end > limit:
            return BAD_CELL_TAGS, at
        while tag < end:
            if tag + 2 > end:
                return BAD_CELL_TAGS, at
            length = (np.int64(buffer[tag]) << 8) + np.int64(buffer[tag + 1])
            if length < 1 or tag + 2 + length > end:
                return BAD_CELL_TAGS, at
            tag += 2 + length
    if has_sequence:
        status, _, end = vlong_at(buffer, end, limit)
        if status != OK:
            return status, at
    return OK, end


@kernel()
def count_cells(buffer, spans, has_tags, has_sequence):  # type: ignore[no-untyped-def]
    """(status, number of plain cells in the spans (int64[n, 2]: start, end), position of the first invalid cell)."""
    count = 0
    for span in range(len(spans)):
        at = spans[span, 0]
        end = spans[span, 1]
        while at < end:
            status, after = _check_cell(buffer, at, end, has_tags, has_sequence)
            if status != OK:
                return status, count, at
            count += 1
            at = after
    return OK, count, np.int64(-1)


@njit(cache=True, nogil=True)
def locate_cells(buffer, spans, count, has_tags, has_sequence):  # type: ignore[no-untyped-def]
    """int64[FIELDS, count] of the checked plain cells in the spans.

    Unlike the cells of a run, these have no int32 length before their klen; POSITION is where the length would be.
    """
    fields = np.empty((FIELDS, count), np.int64)
    i = 0
    for span in range(len(spans)):
        at = spans[span, 0]
        while at < spans[span, 1]:
            end = locate_key_and_value(buffer, at - 4, fields, i)
            tags_length = np.int64(0)
            if has_tags:
                tags_length = (np.int64(buffer[end]) << 8) + np.int64(buffer[end + 1])
                end += 2
            fields[TAGS_START, i] = end
            fields[TAGS_LENGTH, i] = tags_length
            end += tags_length
            fields[SEQUENCE, i] = 0
            if has_sequence:
                _, fields[SEQUENCE, i], end = vlong_at(buffer, end, len(buffer))
            at = end
            i += 1
    return fields


@kernel()
def _put_int32(out, at, value):  # type: ignore[no-untyped-def]
    for i in range(4):
        out[at + i] = np.uint8((value >> np.int64(24 - 8 * i)) & 0xFF)


@kernel()
def _unencode_key(encoding, first, data, at, end, out, to, previous, before, key_length, common, family_at):  # type: ignore[no-untyped-def]
    """Write rowlen | row | famlen | family | qualifier of a DIFF or FAST_DIFF key to `out[to:]`; return the position
    after the bytes read, or -1 if they do not fit the key.

    The previous key is at `previous` in `out`, with `before` bytes besides timestamp and type; `family_at` is where a
    DIFF block has famlen | family in `data`.
    """
    length = key_length - 9
    row_before = np.int64(0) if first else int16_at(out, previous)
    if common > length or common > before or common < 0:
        return np.int64(-1)
    copy_bytes(out, to, out, previous, common)
    done = common
    if first and encoding == FAST_DIFF:
        if length - done > end - at:
            return np.int64(-1)
        copy_bytes(out, to + done, data, at, length - done)
        return at + length - done
    if common < 2 + row_before or first:
        if common < 2:
            if 2 - common > end - at or length < 3:
                return np.int64(-1)
            copy_bytes(out, to + common, data, at, 2 - common)
            at += 2 - common
            done = np.int64(2)
        row_length = int16_at(out, to)
        rest = 2 + row_length - done
        if row_length < 0 or rest < 0 or rest > end - at or 2 + row_length + 1 > length:
            return np.int64(-1)
        copy_bytes(out, to + done, data, at, rest)
        at += rest
        done = 2 + row_length
        if encoding == DIFF:
            family = 1 + np.int64(data[family_at])
            if done + family > length:
                return np.int64(-1)
            copy_bytes(out, to + done, data, family_at, family)
        else:
            family = 1 + np.int64(out[previous + 2 + row_before])
            if done + family > length:
                return np.int64(-1)
            copy_bytes(out, to + done, out, previous + 2 + row_before, family)
        done += family
    rest = length - done
    if rest > end - at:
        return np.int64(-1)
    copy_bytes(out, to + done, data, at, rest)
    return at + rest


@njit(cache=True, nogil=True)
def unencode(encoding, data, at, end, out, to, to_end, has_tags, tags_compressed, has_sequence, slots, uses, arena):  # type: ignore[no-untyped-def]
    """Decode the cells `data[at:end]` to plain ones in `out[to:to_end]`, which they must fill exactly.

    `slots`, `uses`: the dictionary of tags (`_dictionary_kernels`), emptied here; `arena`: room for as many bytes as
    `data` has. Returns (status, position in `data` of the invalid cell).
    """
    uses[_TAGS, SIZE] = 0
    uses[_TAGS, NEWEST] = -1
    uses[_TAGS, OLDEST] = -1
    used = np.int64(0)
    family_at = at
    if encoding == DIFF and at < end:
        at += 1 + np.int64(data[at])
        if at > end or data[family_at] > 127:
            return BAD_ENCODED_CELL, family_at
    first = True
    previous = to  # where the previous cell's key is in `out`
    key_before = np.int64(0)
    value_before = np.int64(0)
    while at < end:
        cell = at
        flags = np.int64(0)
        key_length = np.int64(-1)
        value_length = np.int64(-1)
        if encoding == PREFIX:
            status, rest, at = varint_at(data, at, end)
            if status == OK:
                status, value_length, at = varint_at(data, at, end)
            if status == OK:
                status, common, at = varint_at(data, at, end)
            if status != OK or rest < 0 or common < 0 or common > key_before or rest > end - at:
                return BAD_ENCODED_CELL, cell
            key_length = rest + common
        else:
            flags = np.int64(data[at])
            at += 1
            status = OK
            if flags & (0x01 if encoding == DIFF else 0x08):
                key_length = key_before
            else:
                status, key_length, at = varint_at(data, at, end)
            if flags & (0x02 if encoding == DIFF else 0x10):
                value_length = value_before
            elif status == OK:
                status, value_length, at = varint_at(data, at, end)
            if status == OK:
                status, common, at = varint_at(data, at, end)
            if status != OK or (first and common != 0):
                return BAD_ENCODED_CELL, cell
        room = to_end - to - 8
        if key_length < 12 or value_length < 0 or key_length > room or value_length > room - key_length:
            return BAD_ENCODED_CELL, cell
        _put_int32(out, to, key_length)
        _put_int32(out, to + 4, value_length)
        key = to + 8
        stamp = key + key_length - 9
        stamp_before = previous + key_before - 9
        if encoding == PREFIX:
            copy_bytes(out, key, out, previous, common)
            copy_bytes(out, key + common, data, at, rest)
            at += rest
        else:
            before = np.int64(0) if first else key_before - 9
            at = _unencode_key(
                encoding, first, data, at, end, out, key, previous, before, key_length, common, family_at
            )
            if at < 0:
                return BAD_ENCODED_CELL, cell
            if first and flags & (0x0F if encoding == DIFF else 0x7F) != 0:
                return BAD_ENCODED_CELL, cell
            if encoding == FAST_DIFF:
                same = flags & 0x07
                if 8 - same > end - at:
                    return BAD_ENCODED_CELL, cell
                copy_bytes(out, stamp, out, stamp_before, same)
                copy_bytes(out, stamp + same, data, at, 8 - same)
                at += 8 - same
            else:
                size = ((flags >> 4) & 0x07) + 1
                if size > end - at:
                    return BAD_ENCODED_CELL, cell
                stamp_value = np.uint64(0)
                for i in range(size):
                    stamp_value |= np.uint64(data[at + i]) << np.uint64(8 * i)
                at += size
                if flags & 0x80:
                    stamp_value = ~stamp_value + np.uint64(1)
                if flags & 0x08:
                    stamp_value = np.uint64(int64_at(out, stamp_before)) - stamp_value
                for i in range(8):
                    out[stamp + i] = np.uint8((stamp_value >> np.uint64(56 - 8 * i)) & np.uint64(0xFF))
            if flags & (0x04 if encoding == DIFF else 0x20):
                out[stamp + 8] = out[stamp_before + 8]
            else:
                if at >= end:
                    return BAD_ENCODED_CELL, cell
                out[stamp + 8] = data[at]
                at += 1
        value = key + key_length
        if encoding == FAST_DIFF and flags & 0x40:
            if value_length != value_before:
                return BAD_ENCODED_CELL, cell
            copy_bytes(out, value, out, previous + key_before, value_length)
        else:
            if value_length > end - at:
                return BAD_ENCODED_CELL, cell
            copy_bytes(out, value, data, at, value_length)
            at += value_length
        to = value + value_length
        if has_tags:
            status, length, at = varint_at(data, at, end)
            if status != OK or length < 0 or length > 65535 or length + 2 > to_end - to:
                return BAD_CELL_TAGS, cell
            out[to] = np.uint8(length >> 8)
            out[to + 1] = np.uint8(length & 0xFF)
            to += 2
            tags_end = to + length
            if not tags_compressed:
                if length > end - at:
                    return BAD_CELL_TAGS, cell
                copy_bytes(out, to, data, at, length)
                at += length
                to = tags_end
            while to < tags_end:
                status, slot, start, size, at = name_at(slots, uses, _TAGS, data, at, end, tags_end - to - 2)
                if status != OK or size < 1:
                    return BAD_CELL_TAGS, cell
                out[to] = np.uint8(size >> 8)
                out[to + 1] = np.uint8(size & 0xFF)
                used = take(slots, uses, _TAGS, slot, arena, used, data, start, size, out, to + 2)
                to += 2 + size
        if has_sequence:
            status, _, after = vlong_at(data, at, end)
            if status != OK or after - at > to_end - to:
                return BAD_SEQUENCE, cell
            copy_bytes(out, to, data, at, after - at)
            to += after - at
            at = after
        first = False
        previous = key
        key_before = key_length
        value_before = value_length
    return OK if to == to_end else BAD_ENCODED_SIZE, at

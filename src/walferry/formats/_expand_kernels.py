"""Numba kernels that expand the entries of a dictionary-compressed WAL to plain ones, in one pass.

Compressed form (HBase: WALKeyImpl.getBuilder, WALCellCodec.CompressedKvEncoder, TagCompressionContext; a NAME is a name
in a dictionary, see `_dictionary_kernels`):

    key    a WALKey in which the region, the table, scopes' families and extended attributes' values are NAMEs
    cell   varint klen | varint vlen | varint tagslen | NAME row | NAME family | NAME qualifier | int64 timestamp
           | int8 type | value | tags
    value  vlen bytes, or, with value compression, varint clen | clen bytes
    tags   tagslen bytes, or, with tag compression, NAMEs of type and content until these and a uint16 length for each
           make tagslen bytes

klen is that of the plain KeyValue. The plain form is what `_wal_kernels` reads: a WALKey and cells as
KeyValueCodecWithTags.

Expanding changes the dictionaries, so nothing is read twice. A reader that runs out of bytes or of room stops between
two units (a key, a cell without compressed tags, or a compressed tag), keeps its place in `state`, and continues there.
All checks of a cell or a tag precede its first change of a dictionary; a key that fails a check ends the file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from walferry.formats import _dictionary_kernels as names
from walferry.formats._cell_kernels import (
    BAD_CELL_LENGTHS,
    BAD_CELL_TAGS,
    BAD_CELL_TIMESTAMP,
    BAD_CELL_TYPE,
    INCOMPLETE,
    MAX_CELL_BYTES,
    OK,
)
from walferry.formats._njit import copy_bytes, kernel
from walferry.formats._protobuf_kernels import (
    BAD_KEY_FIELD,
    BYTES,
    VARINT,
    field_at,
    put_varint,
    varint_at,
    varint_size,
)
from walferry.formats._wal_kernels import (
    EMPTY_KEY,
    FULL,
    KEY_FIELD_MISSING,
    KEY_TOO_LONG,
    MAX_KEY_BYTES,
    is_whole,
)

ARENA_FULL = 3  # names need state[NEEDED] more bytes
OUT_FULL = 4  # plain entries need state[NEEDED] more bytes
VALUES_FULL = 5  # the collected compressed values must be filled in

BAD_VALUE_LENGTH = 32
ENTRY_TOO_LONG = 33
BAD_VALUE = 34
REASONS = names.REASONS | {
    BAD_VALUE_LENGTH: "a value cannot be as long as its cell says",
    ENTRY_TOO_LONG: "an entry longer than any server accepts",
    BAD_VALUE: "a value cannot be decompressed",
}

LONGEST_FAMILY = 127
LONGEST_ROW = 32767
LONGEST_TAGS = 65535

STATE_FIELDS = 13
(
    PHASE,
    CELLS_LEFT,
    TAGS_LEFT,  # bytes
    KEY_LENGTH,  # of the key in `key`
    ARENA_USED,
    FILLED,  # bytes in `out`
    WHOLE,  # bytes of whole entries in `out`
    ENTRIES,  # whole entries in `out`
    OFFSET,  # file offset of the entry being read
    VALUES,  # how many compressed values are to be filled in
    NEEDED,  # bytes that the arena or `out` lacks
    MAX_ENTRY,  # plain bytes that an entry may have
    MAX_RATIO,  # most plain bytes that a compressed byte can yield; 0: values are not compressed
) = range(STATE_FIELDS)
AT_KEY, KEY_READ, AT_CELL, AT_TAG = range(4)
COMPRESSED_AT, COMPRESSED_LENGTH, VALUE_AT, VALUE_LENGTH = range(4)


class Expansion(NamedTuple):
    """The state of the kernels. `slots`, `uses` and `arena` are the dictionaries (`_dictionary_kernels`)."""

    slots: npt.NDArray[np.int64]
    uses: npt.NDArray[np.int64]
    arena: npt.NDArray[np.uint8]
    key: npt.NDArray[np.uint8]  # a plain WALKey, uint8[MAX_KEY_BYTES]
    out: npt.NDArray[np.uint8]  # plain entries
    spans: npt.NDArray[np.int64]  # int64[2, n]: file offsets of each whole entry in `out` and of its end
    values: npt.NDArray[np.int64]  # int64[4, n]: where compressed values are, and their places in `out`
    state: npt.NDArray[np.int64]
    compressed_tags: bool


@kernel()
def put_int32(out, to, value):  # type: ignore[no-untyped-def]
    for i in range(4):
        out[to + i] = (value >> (8 * (3 - i))) & 0xFF
    return to + 4


@kernel()
def put_bytes(out, to, buffer, start, end):  # type: ignore[no-untyped-def]
    copy_bytes(out, to, buffer, start, end - start)
    return to + end - start


@kernel()
def take_name(raw, slot, start, length, which, slots, uses, arena, state, out, to):  # type: ignore[no-untyped-def]
    """Copy a name to `out[to:]` and count its use; return the position after the name."""
    used = state[ARENA_USED]
    state[ARENA_USED] = names.take(slots, uses, which, slot, arena, used, raw, start, length, out, to)
    return to + length


@kernel()
def expand_name_field(raw, field, content, end, which, slots, uses, arena, state, key, to):  # type: ignore[no-untyped-def]
    """Write protobuf field number `field`, whose content is a NAME, to `key[to:]`; return (status, position after)."""
    longest = LONGEST_FAMILY if which == names.FAMILIES else MAX_KEY_BYTES
    status, slot, start, length, after = names.name_at(slots, uses, which, raw, content, end, longest)
    if status == INCOMPLETE or (status == OK and after != end):
        return BAD_KEY_FIELD, to
    if status != OK:
        return status, to
    if to + 6 + length > len(key):
        return KEY_TOO_LONG, to
    key[to] = (field << 3) | BYTES
    to = put_varint(key, to + 1, length)
    return OK, take_name(raw, slot, start, length, which, slots, uses, arena, state, key, to)


@kernel()
def expand_message_field(raw, field, content, end, inner, which, slots, uses, arena, state, key, to):  # type: ignore[no-untyped-def]
    """Write field number `field`, a message whose field `inner` is a NAME, to `key[to:]`; (status, position after)."""
    found = np.int64(-1)
    found_end = found_content = content
    at = content
    while at < end:
        before = at
        status, number, wire, _, start, at = field_at(raw, before, end)
        if status != OK:
            return BAD_KEY_FIELD, to
        if number == inner and wire == BYTES:
            if found >= 0:
                return BAD_KEY_FIELD, to
            found, found_content, found_end = before, start, at
    if found < 0:
        return BAD_KEY_FIELD, to
    status, _, _, length, _ = names.name_at(slots, uses, which, raw, found_content, found_end, MAX_KEY_BYTES)
    if status != OK:
        return BAD_KEY_FIELD if status == INCOMPLETE else status, to
    around = (found - content) + (end - found_end)
    size = around + 1 + varint_size(length) + length
    if to + 6 + size > len(key):
        return KEY_TOO_LONG, to
    key[to] = (field << 3) | BYTES
    to = put_varint(key, to + 1, size)
    to = put_bytes(key, to, raw, content, found)
    status, to = expand_name_field(raw, inner, found_content, found_end, which, slots, uses, arena, state, key, to)
    if status != OK:
        return status, to
    return OK, put_bytes(key, to, raw, found_end, end)


@kernel()
def expand_key(raw, at, limit, slots, uses, arena, state, key):  # type: ignore[no-untyped-def]
    """Read the delimited compressed WALKey at `at` into `key`; return (status, its end or position of the error).

    Takes names in the order of the fields, as HBase does: region, table, scopes, attributes.
    """
    status, size, start = varint_at(raw, at, limit)
    if status != OK:
        return status, at
    if size == 0:
        return EMPTY_KEY, at
    if size < 0 or size > MAX_KEY_BYTES:
        return KEY_TOO_LONG, at
    end = start + size
    if end > limit:
        return INCOMPLETE, at
    if state[ARENA_USED] + size > len(arena):
        state[NEEDED] = size
        return ARENA_FULL, at
    to = np.int64(0)
    last = np.int64(0)
    required = np.int64(0)
    cells = np.int64(0)
    position = start
    while position < end:
        before = position
        status, number, wire, value, content, position = field_at(raw, before, end)
        if status != OK or (wire == BYTES and number > 2 and not is_whole(raw, number, content, position)):
            return BAD_KEY_FIELD, before
        if wire == BYTES and (number == 1 or number == 2 or number == 6 or number == 12):
            if number < last or (number == last and number <= 2):
                return BAD_KEY_FIELD, before
            last = number
            if number <= 2:
                which = names.REGIONS if number == 1 else names.TABLES
                status, to = expand_name_field(
                    raw, number, content, position, which, slots, uses, arena, state, key, to
                )
                required |= number
            elif number == 6:
                status, to = expand_message_field(
                    raw, number, content, position, 1, names.FAMILIES, slots, uses, arena, state, key, to
                )
            else:
                status, to = expand_message_field(
                    raw, number, content, position, 2, names.TABLES, slots, uses, arena, state, key, to
                )
            if status != OK:
                return status, before
            continue
        if wire == VARINT:
            if number == 3:
                required |= 4
            elif number == 4:
                required |= 8
            elif number == 7:
                cells = value & 0xFFFFFFFF
        if to + position - before > len(key):
            return KEY_TOO_LONG, before
        to = put_bytes(key, to, raw, before, position)
    if required != 15:
        return KEY_FIELD_MISSING, at
    state[KEY_LENGTH] = to
    state[CELLS_LEFT] = cells
    return OK, end


@kernel()
def write_key(key, out, state):  # type: ignore[no-untyped-def]
    """Start a plain entry in `out` with the key in `key`."""
    length = state[KEY_LENGTH]
    if not has_room(out, state, length + 5):
        return OUT_FULL
    to = put_varint(out, state[FILLED], length)
    state[FILLED] = put_bytes(out, to, key, 0, length)
    return OK


@kernel()
def has_room(out, state, size):  # type: ignore[no-untyped-def]
    state[NEEDED] = size
    return state[FILLED] + size <= len(out)


@kernel()
def value_at(raw, at, limit, length, max_ratio):  # type: ignore[no-untyped-def]
    """(status, position of a value's bytes, how many, position after them) of a value of `length` plain bytes."""
    size = length
    if max_ratio:
        status, size, at = varint_at(raw, at, limit)
        if status != OK:
            return status, at, size, at
        if size < 0 or size > MAX_CELL_BYTES or length > size * max_ratio:
            return BAD_VALUE_LENGTH, at, size, at
    if size > limit - at:
        return INCOMPLETE, at, size, at
    return OK, at, size, at + size


@kernel()
def expand_cell(raw, at, limit, slots, uses, arena, out, values, state, compressed_tags):  # type: ignore[no-untyped-def]
    """Write the cell at `at` to `out`, without its tags if they are compressed; return (status, end or `at`)."""
    status, key_length, row_at = varint_at(raw, at, limit)
    if status != OK:
        return status, at
    if key_length < 12 or key_length > MAX_CELL_BYTES:
        return BAD_CELL_LENGTHS, at
    status, value_length, row_at = varint_at(raw, row_at, limit)
    if status != OK:
        return status, at
    if value_length < 0 or value_length > MAX_CELL_BYTES:
        return BAD_CELL_LENGTHS, at
    status, tags_length, row_at = varint_at(raw, row_at, limit)
    if status != OK:
        return status, at
    if tags_length < 0 or tags_length > LONGEST_TAGS:
        return BAD_CELL_TAGS, at
    room = key_length - 12
    status, row, row_start, row_length, family_at = names.name_at(
        slots, uses, names.ROWS, raw, row_at, limit, min(room, LONGEST_ROW)
    )
    if status != OK:
        return status, at
    room -= row_length
    status, family, family_start, family_length, qualifier_at = names.name_at(
        slots, uses, names.FAMILIES, raw, family_at, limit, min(room, LONGEST_FAMILY)
    )
    if status != OK:
        return status, at
    room -= family_length
    status, qualifier, qualifier_start, qualifier_length, rest = names.name_at(
        slots, uses, names.QUALIFIERS, raw, qualifier_at, limit, room
    )
    if status != OK:
        return status, at
    if qualifier_length != room:
        return BAD_CELL_LENGTHS, at
    if rest + 9 > limit:
        return INCOMPLETE, at
    if raw[rest] > 127:
        return BAD_CELL_TIMESTAMP, at
    kind = raw[rest + 8]
    if kind != 4 and kind != 8 and kind != 10 and kind != 12 and kind != 14:
        return BAD_CELL_TYPE, at
    total = 8 + key_length + value_length + (2 + tags_length if tags_length else 0)
    if total > MAX_CELL_BYTES or state[FILLED] - state[WHOLE] + total > state[MAX_ENTRY]:
        return ENTRY_TOO_LONG, at
    status, value, value_size, end = value_at(raw, rest + 9, limit, value_length, state[MAX_RATIO])
    if status != OK:
        return status, at
    tags_at = end
    if not compressed_tags:
        end += tags_length
        if end > limit:
            return INCOMPLETE, at

    if state[VALUES] == values.shape[1]:
        return VALUES_FULL, at
    new = (
        (row_length if row < 0 else 0)
        + (family_length if family < 0 else 0)
        + (qualifier_length if qualifier < 0 else 0)
    )
    if state[ARENA_USED] + new > len(arena):
        state[NEEDED] = new
        return ARENA_FULL, at
    if not has_room(out, state, total + 4):
        return OUT_FULL, at

    to = put_int32(out, state[FILLED], total)
    to = put_int32(out, to, key_length)
    to = put_int32(out, to, value_length)
    out[to] = row_length >> 8
    out[to + 1] = row_length & 0xFF
    to = take_name(raw, row, row_start, row_length, names.ROWS, slots, uses, arena, state, out, to + 2)
    out[to] = family_length
    to = take_name(raw, family, family_start, family_length, names.FAMILIES, slots, uses, arena, state, out, to + 1)
    to = take_name(
        raw, qualifier, qualifier_start, qualifier_length, names.QUALIFIERS, slots, uses, arena, state, out, to
    )
    to = put_bytes(out, to, raw, rest, rest + 9)
    if state[MAX_RATIO] == 0:
        put_bytes(out, to, raw, value, value + value_size)
    elif value_length:
        values[:, state[VALUES]] = (value, value_size, to, value_length)
        state[VALUES] += 1
    to += value_length
    if tags_length:
        out[to] = tags_length >> 8
        out[to + 1] = tags_length & 0xFF
        to += 2
        if compressed_tags:
            state[TAGS_LEFT] = tags_length
        else:
            to = put_bytes(out, to, raw, tags_at, end)
    state[FILLED] = to
    return OK, end


@kernel()
def expand_tag(raw, at, limit, slots, uses, arena, out, state):  # type: ignore[no-untyped-def]
    """Write the compressed tag at `at` to `out`, where its cell made room; return (status, its end or `at`)."""
    if state[TAGS_LEFT] < 3:
        return BAD_CELL_TAGS, at
    status, slot, start, length, after = names.name_at(slots, uses, names.TAGS, raw, at, limit, state[TAGS_LEFT] - 2)
    if status != OK:
        return BAD_CELL_TAGS if status == names.BAD_NAME_LENGTH else status, at
    if not has_room(out, state, state[TAGS_LEFT]):
        return OUT_FULL, at
    if slot < 0 and state[ARENA_USED] + length > len(arena):
        state[NEEDED] = length
        return ARENA_FULL, at
    to = state[FILLED]
    out[to] = length >> 8
    out[to + 1] = length & 0xFF
    state[FILLED] = take_name(raw, slot, start, length, names.TAGS, slots, uses, arena, state, out, to + 2)
    state[TAGS_LEFT] -= 2 + length
    return OK, after


@kernel()
def expand_entries(raw, at, limit, base, work):  # type: ignore[no-untyped-def]
    """Expand entries from `at` on; `state` holds which unit comes there, `base` is the file offset of `raw`.

    Returns (status, position after the last unit, position of the error).
    """
    slots, uses, arena, key, out, spans, values, state, compressed_tags = work
    while True:
        phase = state[PHASE]
        if phase == AT_CELL and state[CELLS_LEFT] == 0:
            entry = state[ENTRIES]
            spans[0, entry] = state[OFFSET]
            spans[1, entry] = base + at
            state[ENTRIES] = entry + 1
            state[WHOLE] = state[FILLED]
            phase = state[PHASE] = AT_KEY
        if phase == AT_KEY:
            if at >= limit:
                return OK, at, at
            if state[ENTRIES] == spans.shape[1]:
                return FULL, at, at
            status, after = expand_key(raw, at, limit, slots, uses, arena, state, key)
            if status != OK:
                return status, at, after
            state[OFFSET] = base + at
            state[PHASE] = KEY_READ
        elif phase == KEY_READ:
            status, after = write_key(key, out, state), at
            if status != OK:
                return status, at, at
            state[PHASE] = AT_CELL
        elif phase == AT_CELL:
            status, after = expand_cell(raw, at, limit, slots, uses, arena, out, values, state, compressed_tags)
            if status != OK:
                return status, at, after
            if state[TAGS_LEFT]:
                state[PHASE] = AT_TAG
            else:
                state[CELLS_LEFT] -= 1
        else:
            status, after = expand_tag(raw, at, limit, slots, uses, arena, out, state)
            if status != OK:
                return status, at, after
            if state[TAGS_LEFT] == 0:
                state[PHASE] = AT_CELL
                state[CELLS_LEFT] -= 1
        at = after

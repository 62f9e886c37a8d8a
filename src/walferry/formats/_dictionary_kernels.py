"""Numba kernels over the dictionaries of a compressed WAL (HBase: LRUDictionary, CompressionContext).

A WAL writes a name first as 0xFF | varint length | bytes, which adds the name to its dictionary, and from then on as
its int16 number there. A full dictionary gives a new name the number of the least recently used name. Both reading and
adding count as use. Empty names are never added.

    slots   int64[n, 4]   one row per name, contiguous for each dictionary: the name's position in the arena, its
                          length, its neighbours in the order of use (-1: none)
    uses    int64[6, 5]   one row per dictionary: its first slot, capacity, size, newest and oldest slot
    arena   uint8         the bytes of the names, concatenated; replaced names stay until `compact`
"""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import INCOMPLETE, OK
from walferry.formats._njit import copy_bytes, kernel
from walferry.formats._protobuf_kernels import varint_at

BAD_DICTIONARY_INDEX = 30
BAD_NAME_LENGTH = 31

REASONS = {
    BAD_DICTIONARY_INDEX: "a number refers to a name that is not in its dictionary",
    BAD_NAME_LENGTH: "a name is longer than what contains it",
}

NOT_IN_DICTIONARY = 0xFF

DICTIONARIES = 6
REGIONS, TABLES, ROWS, FAMILIES, QUALIFIERS, TAGS = range(DICTIONARIES)
SLOT_FIELDS = 4
AT, LENGTH, NEWER, OLDER = range(SLOT_FIELDS)
USE_FIELDS = 5
FIRST, CAPACITY, SIZE, NEWEST, OLDEST = range(USE_FIELDS)


@kernel()
def use(slots, uses, which, slot):  # type: ignore[no-untyped-def]
    """Make a slot the most recently used of its dictionary."""
    newest = uses[which, NEWEST]
    if slot == newest:
        return
    newer = slots[slot, NEWER]
    older = slots[slot, OLDER]
    slots[newer, OLDER] = older
    if older >= 0:
        slots[older, NEWER] = newer
    else:
        uses[which, OLDEST] = newer
    slots[slot, NEWER] = -1
    slots[slot, OLDER] = newest
    slots[newest, NEWER] = slot
    uses[which, NEWEST] = slot


@kernel()
def add(slots, uses, which, at, length):  # type: ignore[no-untyped-def]
    """Add the name at `arena[at : at + length]`."""
    if length == 0:
        return
    size = uses[which, SIZE]
    if size < uses[which, CAPACITY]:
        slot = uses[which, FIRST] + size
        newest = uses[which, NEWEST]
        slots[slot, NEWER] = -1
        slots[slot, OLDER] = newest
        if newest >= 0:
            slots[newest, NEWER] = slot
        else:
            uses[which, OLDEST] = slot
        uses[which, NEWEST] = slot
        uses[which, SIZE] = size + 1
    else:
        slot = uses[which, OLDEST]
        use(slots, uses, which, slot)
    slots[slot, AT] = at
    slots[slot, LENGTH] = length


@kernel()
def name_at(slots, uses, which, buffer, at, limit, longest):  # type: ignore[no-untyped-def]
    """(status, slot or -1 for a new name, where its bytes are in arena or buffer, length, position after the name).

    Changes nothing: see `take`. INCOMPLETE comes with the length if only the bytes of a new name run past the limit.
    """
    none = np.int64(-1)
    if at >= limit:
        return INCOMPLETE, none, at, np.int64(0), at
    first = np.int64(buffer[at])
    if first == NOT_IN_DICTIONARY:
        status, length, start = varint_at(buffer, at + 1, limit)
        if status != OK:
            return status, none, at, np.int64(0), at
        if length < 0 or length > longest:
            return BAD_NAME_LENGTH, none, at, np.int64(0), at
        if length > limit - start:
            return INCOMPLETE, none, start, length, at
        return OK, none, start, length, start + length
    if at + 2 > limit:
        return INCOMPLETE, none, at, np.int64(0), at
    index = (first << 8) | np.int64(buffer[at + 1])
    if index >= uses[which, SIZE]:
        return BAD_DICTIONARY_INDEX, none, at, np.int64(0), at
    slot = uses[which, FIRST] + index
    if slots[slot, LENGTH] > longest:
        return BAD_NAME_LENGTH, none, at, np.int64(0), at
    return OK, slot, slots[slot, AT], slots[slot, LENGTH], at + 2


@kernel()
def take(slots, uses, which, slot, arena, used, buffer, start, length, out, to):  # type: ignore[no-untyped-def]
    """Copy a name found by `name_at` to `out[to:]`, and count its use; return how many bytes of the arena are used.

    The arena must have room for the name.
    """
    if slot >= 0:
        copy_bytes(out, to, arena, start, length)
        use(slots, uses, which, slot)
        return used
    copy_bytes(out, to, buffer, start, length)
    copy_bytes(arena, used, buffer, start, length)
    add(slots, uses, which, used, length)
    return used + length


@kernel()
def live_bytes(slots, uses):  # type: ignore[no-untyped-def]
    """The total bytes of the names in all dictionaries."""
    total = np.int64(0)
    for which in range(DICTIONARIES):
        for slot in range(uses[which, FIRST], uses[which, FIRST] + uses[which, SIZE]):
            total += slots[slot, LENGTH]
    return total


@kernel()
def compact(slots, uses, arena, to):  # type: ignore[no-untyped-def]
    """Copy the names in all dictionaries to another arena; return how many bytes they take."""
    used = np.int64(0)
    for which in range(DICTIONARIES):
        for slot in range(uses[which, FIRST], uses[which, FIRST] + uses[which, SIZE]):
            start = slots[slot, AT]
            slots[slot, AT] = used
            copy_bytes(to, used, arena, start, slots[slot, LENGTH])
            used += slots[slot, LENGTH]
    return used

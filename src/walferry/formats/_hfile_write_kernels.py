"""Numba kernels that write cells to the data blocks of an HFile, and rows or columns to its bloom filter.

The input cells are as in a WAL (`_cell_kernels`). In the file a cell is int32 klen | int32 vlen | key | value | uint16
tagslen | tags | vlong 0: the length of tags is always there, and a bulk load replaces the sequence number 0.
"""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import int16_at, int32_at, int64_at
from walferry.formats._njit import copy_bytes, kernel
from walferry.formats._order_kernels import compare_keys

HEADER = 33
"""bytes of a block's header"""

(KEY_BYTES, VALUE_BYTES, LEAST_TIME, GREATEST_TIME, EARLIEST_PUT, FAMILY_DELETES, TAGS_BYTES) = range(7)
STATS = 7

OK, FULL, UNSORTED = range(3)

_DELETE_FAMILY_VERSION, _DELETE_COLUMN, _DELETE_FAMILY, _PUT = 10, 12, 14, 4


@kernel()
def lay_cells(buffer, positions, cell, out, at, block, block_bytes, chunk_bytes, blocks, stats):  # type: ignore[no-untyped-def]
    """Lay the cells from number `cell` on into `out` from `at` on.

    `block`: where the open block's header belongs, or -1. The cell that fills a block closes it: `blocks`
    (int64[n, 2]) gets where the block begins and where its cells end; room for its checksums follows them.
    Returns (status, next cell, at, block, number of closed blocks); FULL: `out` or `blocks` has no more room.
    """
    count = 0
    while cell < len(positions):
        position = positions[cell]
        total = int32_at(buffer, position)
        key_length = int32_at(buffer, position + 4)
        value_length = int32_at(buffer, position + 8)
        tags = max(total - 10 - key_length - value_length, 0)
        if cell > 0 and compare_keys(buffer, positions[cell - 1], buffer, position) >= 0:
            return UNSORTED, cell, at, block, count
        size = key_length + value_length + tags + 11
        begin = at + HEADER if block < 0 else at
        start = at if block < 0 else block
        room = 4 * ((begin + size - start) // chunk_bytes + 1)
        if begin + size + room > len(out):
            return FULL, cell, at, block, count
        block = start
        at = begin
        plain = 8 + key_length + value_length
        copy_bytes(out, at, buffer, position + 4, plain)
        at += plain
        out[at] = np.uint8(tags >> 8)
        out[at + 1] = np.uint8(tags & 0xFF)
        at += 2
        if tags > 0:
            copy_bytes(out, at, buffer, position + 6 + plain, tags)
            at += tags
        out[at] = np.uint8(0)
        at += 1
        cell += 1

        end = position + 12 + key_length
        timestamp = int64_at(buffer, end - 9)
        kind = buffer[end - 1]
        # TimeRangeTracker: a marker that covers older cells starts the range at 0, so that no reader skips the file.
        covers = kind in (_DELETE_COLUMN, _DELETE_FAMILY)
        stats[LEAST_TIME] = min(stats[LEAST_TIME], np.int64(0) if covers else timestamp)
        stats[GREATEST_TIME] = max(stats[GREATEST_TIME], timestamp)
        if kind == _PUT:
            stats[EARLIEST_PUT] = min(stats[EARLIEST_PUT], timestamp)
        if kind in (_DELETE_FAMILY, _DELETE_FAMILY_VERSION):
            stats[FAMILY_DELETES] += 1
        stats[KEY_BYTES] += key_length
        stats[VALUE_BYTES] += value_length
        stats[TAGS_BYTES] = max(stats[TAGS_BYTES], tags)

        if at - block - HEADER >= block_bytes:
            blocks[count, 0] = block
            blocks[count, 1] = at
            count += 1
            at += 4 * -(-(at - block) // chunk_bytes)
            block = -1
            if count == len(blocks):
                return FULL, cell, at, block, count
    return OK, cell, at, block, count


# ------------------------------------------------------------------ bloom filter


@kernel()
def _signed(value):  # type: ignore[no-untyped-def]
    """A byte sign-extended to 32 bits, as in Java."""
    return np.uint32(np.int32(np.int8(value)))


@kernel()
def murmur(data, at, size, seed):  # type: ignore[no-untyped-def]
    """HBase's MurmurHash, which is MurmurHash2 with signed tail bytes."""
    m = np.uint32(0x5BD1E995)
    h = np.uint32(seed) ^ np.uint32(size)
    whole = size >> 2
    for i in range(whole):
        p = at + (i << 2)
        k = (
            np.uint32(data[p])
            | (np.uint32(data[p + 1]) << np.uint32(8))
            | (np.uint32(data[p + 2]) << np.uint32(16))
            | (np.uint32(data[p + 3]) << np.uint32(24))
        )
        k = np.uint32(k * m)
        k ^= k >> np.uint32(24)
        k = np.uint32(k * m)
        h = np.uint32(h * m)
        h ^= k
    left = size - (whole << 2)
    if left > 0:
        p = at + (whole << 2)
        if left >= 3:
            h ^= np.uint32(_signed(data[p + 2]) << np.uint32(16))
        if left >= 2:
            h ^= np.uint32(_signed(data[p + 1]) << np.uint32(8))
        h ^= _signed(data[p])
        h = np.uint32(h * m)
    h ^= h >> np.uint32(13)
    h = np.uint32(h * m)
    h ^= h >> np.uint32(15)
    return h


@kernel()
def _set_bits(bits, data, at, size, hashes):  # type: ignore[no-untyped-def]
    first = murmur(data, at, size, np.uint32(0))
    second = murmur(data, at, size, first)
    slots = np.int64(len(bits)) * 8
    h = first
    for _ in range(hashes):
        number = np.int64(np.int32(h))
        bit = abs(number) % slots
        bits[bit >> 3] |= np.uint8(1 << (bit & 7))
        h = np.uint32(h + second)


@kernel()
def bloom_key(buffer, position, columns, key):  # type: ignore[no-untyped-def]
    """Write a cell's bloom filter key to `key`; return the key's length."""
    row = int16_at(buffer, position + 12)
    if not columns:
        copy_bytes(key, 0, buffer, position + 14, row)
        return row
    family_at = position + 14 + row
    family = np.int64(buffer[family_at])
    qualifier = int32_at(buffer, position + 4) - 12 - row - family
    copy_bytes(key, 0, buffer, position + 12, 2 + row)
    key[2 + row] = np.uint8(0)
    copy_bytes(key, 3 + row, buffer, family_at + 1 + family, qualifier)
    end = 3 + row + qualifier
    key[end] = np.uint8(0x7F)
    for i in range(1, 9):
        key[end + i] = np.uint8(0xFF)
    return end + 9


@kernel()
def add_keys(buffer, positions, cell, columns, bits, hashes, keys, most, last, last_length, key):  # type: ignore[no-untyped-def]
    """Add the rows (with `columns`: rows and columns) of the cells from number `cell` on to a bloom filter chunk.

    `keys`, `most`: how many keys the chunk has and may have. `last` (uint8), `last_length` (-1: none): the key added
    last. Returns (next cell, keys, last_length, the chunk's first cell if this call added it, or -1). Cells are left
    over if the chunk is full or `key` is too short.
    """
    first = -1
    while cell < len(positions):
        position = positions[cell]
        if int32_at(buffer, position + 4) + 3 > len(key):
            return cell, keys, last_length, first
        length = bloom_key(buffer, position, columns, key)
        same = length == last_length
        if same:
            for i in range(length):
                if key[i] != last[i]:
                    same = False
                    break
        if not same:
            if keys == most:
                return cell, keys, last_length, first
            if keys == 0:
                first = cell
            _set_bits(bits, key, 0, length, hashes)
            copy_bytes(last, 0, key, 0, length)
            last_length = length
            keys += 1
        cell += 1
    return cell, keys, last_length, first

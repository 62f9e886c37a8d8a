"""Numba kernels over encrypted WALs (HBase: SecureWALCellCodec). Their WALKeys are plain and never compressed.

    ENTRY = varint + WALKey | following_kv_count times: varint 16 | IV | varint length | AES/CTR of a cell
    cell  = varint klen | varint vlen | varint tagslen | varint + row | varint + family | varint + qualifier
            | int64 timestamp | int8 type | value | tags

One call of AES decrypts a batch's cells: `counter_blocks` lists the blocks to encrypt, and `open_entries` combines the
result with the file's bytes. HBase's encoder writes tags without their uint16 length, and its own decoder fails on
them; these kernels take tagslen bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from walferry.formats._cell_kernels import (
    BAD_CELL_LENGTHS,
    BAD_CELL_ROW_OR_FAMILY,
    INCOMPLETE,
    MAX_CELL_BYTES,
    OK,
    int64_at,
)
from walferry.formats._njit import copy_bytes, kernel
from walferry.formats._protobuf_kernels import varint_at
from walferry.formats._wal_kernels import CELL_COUNT, FULL, scan_key

CELLS_FULL = 6  # one entry has more cells than there is room for
BAD_IV = 36
REASONS = {BAD_IV: "an encrypted cell does not begin with its IV"}

BLOCK = 16
MORE_BYTES = 20  # at most, by which a plain cell exceeds its encrypted form
START, CELLS_START, FIRST_CELL = range(3)
IV_AT, CELL_AT, CELL_LENGTH = range(3)


@kernel()
def find_cell(raw, at, limit):  # type: ignore[no-untyped-def]
    """(status, position of the IV, position of the encrypted bytes, how many) of the cell at `at`."""
    status, size, iv = varint_at(raw, at, limit)
    if status != OK:
        return status, at, at, np.int64(0)
    if size != BLOCK:
        return BAD_IV, at, at, np.int64(0)
    if iv + BLOCK > limit:
        return INCOMPLETE, iv, at, np.int64(0)
    status, length, start = varint_at(raw, iv + BLOCK, limit)
    if status != OK:
        return status, iv, start, np.int64(0)
    if length < 15 or length > MAX_CELL_BYTES:
        return BAD_CELL_LENGTHS, iv, start, length
    if length > limit - start:
        return INCOMPLETE, iv, start, length
    return OK, iv, start, length


@kernel()
def find_cells(raw, start, limit, most, fields, entries, cells):  # type: ignore[no-untyped-def]
    """Find whole entries from `start` on, at most `most` bytes of them but at least one entry.

    Fills `entries`, int64[3, n], and `cells`, int64[3, m].
    Returns (status, number of entries, number of cells, position after the last entry, position of the error).
    """
    at = start
    count = 0
    found = 0
    while at < limit:
        if count == entries.shape[1] or (count and at - start > most):
            return FULL, count, found, at, at
        status, cell = scan_key(raw, at, limit, fields, 0)
        if status != OK:
            return status, count, found, at, cell
        entries[START, count] = at
        entries[CELLS_START, count] = cell
        entries[FIRST_CELL, count] = found
        number = found
        for _ in range(fields[CELL_COUNT, 0]):
            status, iv, content, length = find_cell(raw, cell, limit)
            if status != OK:
                return status, count, found, at, cell
            if number == cells.shape[1]:
                return (FULL if count else CELLS_FULL), count, found, at, at
            cells[IV_AT, number] = iv
            cells[CELL_AT, number] = content
            cells[CELL_LENGTH, number] = length
            number += 1
            cell = content + length
        found = number
        count += 1
        at = cell
    return OK, count, found, at, at


@njit(cache=True, nogil=True)
def counter_blocks(raw, cells):  # type: ignore[no-untyped-def]
    """The counter blocks of AES/CTR for all cells, each as two 64-bit numbers, the high one first. A cell's blocks
    count up from its IV."""
    blocks = np.int64(0)
    for cell in range(cells.shape[1]):
        blocks += (cells[CELL_LENGTH, cell] + BLOCK - 1) // BLOCK
    counters = np.empty(2 * blocks, np.uint64)
    to = np.int64(0)
    for cell in range(cells.shape[1]):
        high = np.uint64(int64_at(raw, cells[IV_AT, cell]))
        first = low = np.uint64(int64_at(raw, cells[IV_AT, cell] + 8))
        for _ in range((cells[CELL_LENGTH, cell] + BLOCK - 1) // BLOCK):
            counters[to] = high + np.uint64(low < first)
            counters[to + 1] = low
            low += np.uint64(1)
            to += 2
    return counters


@kernel()
def open_cell(plain, at, end, out, to):  # type: ignore[no-untyped-def]
    """Write the decrypted cell `plain[at:end]` to `out[to:]` as KeyValueCodecWithTags; return (status, its end)."""
    status, key_length, at = varint_at(plain, at, end)
    if status != OK:
        return BAD_CELL_LENGTHS, to
    status, value_length, at = varint_at(plain, at, end)
    if status != OK:
        return BAD_CELL_LENGTHS, to
    status, tags_length, at = varint_at(plain, at, end)
    if status != OK or key_length < 12 or value_length < 0 or tags_length < 0 or tags_length > 65535:
        return BAD_CELL_LENGTHS, to
    if key_length > end - at or value_length > end - at or tags_length > end - at:
        return BAD_CELL_LENGTHS, to
    cell = to
    to += 12
    names = np.int64(12)
    for part in range(3):
        status, length, at = varint_at(plain, at, end)
        if status != OK or length < 0 or length > end - at:
            return BAD_CELL_ROW_OR_FAMILY, cell
        if (part == 0 and length > 32767) or (part == 1 and length > 127):
            return BAD_CELL_ROW_OR_FAMILY, cell
        if part == 0:
            out[to] = length >> 8
            to += 1
        if part < 2:
            out[to] = length & 0xFF
            to += 1
        copy_bytes(out, to, plain, at, length)
        to += length
        at += length
        names += length
    if names != key_length or end - at != 9 + value_length + tags_length:
        return BAD_CELL_LENGTHS, cell
    copy_bytes(out, to, plain, at, 9 + value_length)
    to += 9 + value_length
    at += 9 + value_length
    if tags_length:
        out[to] = tags_length >> 8
        out[to + 1] = tags_length & 0xFF
        copy_bytes(out, to + 2, plain, at, tags_length)
        to += 2 + tags_length
    for i in range(4):
        shift = 8 * (3 - i)
        out[cell + i] = ((to - cell - 4) >> shift) & 0xFF
        out[cell + 4 + i] = (key_length >> shift) & 0xFF
        out[cell + 8 + i] = (value_length >> shift) & 0xFF
    return OK, to


@kernel()
def open_entries(raw, entries, cells, stream, out):  # type: ignore[no-untyped-def]
    """Decrypt entries to `out`, given `stream`, the encrypted counter blocks, which are overwritten.

    Returns (status, number of entries written, position after them in `out`).
    """
    to = np.int64(0)
    at = np.int64(0)
    for entry in range(entries.shape[1]):
        begun = to
        key = entries[CELLS_START, entry] - entries[START, entry]
        copy_bytes(out, to, raw, entries[START, entry], key)
        to += key
        last = entries[FIRST_CELL, entry + 1] if entry + 1 < entries.shape[1] else cells.shape[1]
        for cell in range(entries[FIRST_CELL, entry], last):
            length = cells[CELL_LENGTH, cell]
            content = cells[CELL_AT, cell]
            for i in range(length):
                stream[at + i] ^= raw[content + i]
            status, to = open_cell(stream, at, at + length, out, to)
            if status != OK:
                return status, entry, begun
            at += (length + BLOCK - 1) // BLOCK * BLOCK
    return OK, entries.shape[1], to

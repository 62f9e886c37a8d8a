"""Numba kernels over a call of HBase's replication: ReplicateWALEntryRequest, and the block with its entries' cells.

Field numbers and wire types are from HBase's Admin.proto; unknown fields are skipped by wire type, as protobuf does.
"""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import INCOMPLETE, OK
from walferry.formats._njit import kernel
from walferry.formats._protobuf_kernels import BAD_VARINT, BYTES, VARINT, field_at, varint_at
from walferry.formats._resolve_kernels import mix, murmur3
from walferry.formats._wal_kernels import (
    CELL_COUNT,
    KEY_END,
    KEY_FIELD_MISSING,
    KEY_START,
    START,
    scan_cells,
    scan_key,
)
from walferry.formats._wal_kernels import REASONS as WAL_REASONS

BAD_FIELD = 50
CELLS_IN_MESSAGE = 51
BAD_CELL_COUNT = 52
TWO_KEYS = 53
CELLS_MISSING = 54
CELLS_LEFT = 55

REASONS = WAL_REASONS | {
    BAD_FIELD: "a field does not fit into its message",
    CELLS_IN_MESSAGE: "an entry has cells outside the cell block, where no HBase sends any",
    BAD_CELL_COUNT: "an entry has a negative number of cells",
    TWO_KEYS: "an entry has two keys",
    CELLS_MISSING: "the cell block ends before the cells of the entry",
    CELLS_LEFT: "cells follow those of the last entry",
}

ENTRY, ARCHIVE_FOLDER = 1, 4
"""numbers of the request's first and last field; those from 2 on are texts about the source"""

# A key with its four required fields has 8 bytes at least, and a tag and a length precede it.
LEAST_ENTRY_BYTES = 10


@kernel()
def prints_of_entries(buffer, starts, ends, times, prints):  # type: ignore[no-untyped-def]
    """Write 64 bits to `prints` for each entry, by its cells and its write time."""
    for entry in range(len(starts)):
        low, high = murmur3(buffer, starts[entry], ends[entry] - starts[entry])
        prints[entry] = np.int64(low ^ mix(high ^ np.uint64(times[entry])))


@kernel()
def count_entries(request):  # type: ignore[no-untyped-def]
    """(status, number of entries, position of the error)."""
    at = 0
    count = 0
    while at < len(request):
        field = at
        status, number, wire, length, _, at = field_at(request, field, len(request))
        if status != OK:
            return status if status == BAD_VARINT else BAD_FIELD, count, field
        if number > ARCHIVE_FOLDER:
            continue
        if wire != BYTES:
            return BAD_FIELD, count, field
        if number != ENTRY:
            continue
        if length < LEAST_ENTRY_BYTES:
            return KEY_FIELD_MISSING, count, field
        count += 1
    return OK, count, at


@kernel()
def scan_call_entry(request, at, end, fields, i):  # type: ignore[no-untyped-def]
    """Read the WALEntry message `request[at:end]` into column `i` of `fields`, without its cells; return (status,
    position of the error)."""
    keys = 0
    cells = np.int64(0)
    while at < end:
        field = at
        status, number, wire, value, _, at = field_at(request, field, end)
        if status != OK:
            return status if status == BAD_VARINT else BAD_FIELD, field
        if number == 1 and wire == BYTES:
            _, _, size = varint_at(request, field, end)
            status, wrong = scan_key(request, size, at, fields, i)
            if status != OK:
                return status, wrong
            keys += 1
        elif number == 2:
            return CELLS_IN_MESSAGE, field
        elif number == 3 and wire == VARINT:
            cells = np.int64(np.int32(value))
            if cells < 0:
                return BAD_CELL_COUNT, field
        elif number <= 3:
            return BAD_FIELD, field
    if keys != 1:
        return KEY_FIELD_MISSING if keys == 0 else TWO_KEYS, at
    fields[CELL_COUNT, i] = cells
    return OK, at


@kernel()
def scan_call(request, cells, fields, messages):  # type: ignore[no-untyped-def]
    """Read the entries of a request that `count_entries` has read, and their cells, into int64[ENTRY_FIELDS, n].

    Names and clusters are in `request`; START, KEY_START, KEY_END and END are positions in `cells`. Writes where each
    entry's field begins and ends in `request` to int64[2, n].
    Returns (status, number of whole entries, position of the error, whether this is in `cells`).
    """
    at = 0
    cell = 0
    i = 0
    while at < len(request):
        field = at
        _, number, _, _, content, at = field_at(request, field, len(request))
        if number != ENTRY:
            continue
        messages[0, i] = field
        messages[1, i] = at
        status, wrong = scan_call_entry(request, content, at, fields, i)
        if status != OK:
            return status, i, wrong, False
        fields[START, i] = fields[KEY_START, i] = fields[KEY_END, i] = cell
        status, cell = scan_cells(cells, cell, len(cells), fields, i)
        if status != OK:
            return CELLS_MISSING if status == INCOMPLETE else status, i, cell, True
        i += 1
    if cell != len(cells):
        return CELLS_LEFT, i, cell, True
    return OK, i, at, False

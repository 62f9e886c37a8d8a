"""Numba kernel that counts the cells of WAL entries by kind, without an index of the cells."""

from __future__ import annotations

import numpy as np

from walferry.formats._cell_kernels import int32_at, int64_at
from walferry.formats._njit import kernel

(
    ENTRIES,
    CELLS,
    BYTES,
    PUTS,
    DELETES,
    DELETE_FAMILY_VERSIONS,
    DELETE_COLUMNS,
    DELETE_FAMILIES,
    TIES,
    OLD,
    FIRST_WRITE,
    LAST_WRITE,
    FIRST_SEQUENCE,
    LAST_SEQUENCE,
) = range(14)
COUNTS = 14
MARKERS = 128
"""kinds of marker, by number (`markers.Marker`)"""

BUCKET = 4
"""how many puts a bucket remembers"""

_PRIME = np.uint64(0x100000001B3)
_BASIS = np.uint64(0xCBF29CE484222325)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel()
def tally(  # type: ignore[no-untyped-def]
    buffer, start, cells_start, end, cell_count, marker, write_time, sequence_number, group, table, counts, markers,
    seen, old_ms,
):  # fmt: skip
    """Add n entries to `counts` (int64[groups, COUNTS]) and `markers` (int64[groups, MARKERS]).

    `group` is each entry's row in both arrays, `table` (uint64) identifies its table. `seen` (uint64, initially zeros,
    its length a power of two) remembers puts by hash, each in the bucket that the hash selects.
    """
    mask = np.uint64(len(seen) - 1)
    for i in range(len(start)):
        row = counts[group[i]]
        if row[ENTRIES] == 0:
            row[FIRST_WRITE] = row[LAST_WRITE] = write_time[i]
            row[FIRST_SEQUENCE] = row[LAST_SEQUENCE] = sequence_number[i]
        row[ENTRIES] += 1
        row[BYTES] += end[i] - start[i]
        row[FIRST_WRITE] = min(row[FIRST_WRITE], write_time[i])
        row[LAST_WRITE] = max(row[LAST_WRITE], write_time[i])
        row[FIRST_SEQUENCE] = min(row[FIRST_SEQUENCE], sequence_number[i])
        row[LAST_SEQUENCE] = max(row[LAST_SEQUENCE], sequence_number[i])
        if marker[i] != 0:
            markers[group[i], marker[i]] += 1
            continue
        at = cells_start[i]
        for _ in range(cell_count[i]):
            key = at + 12
            key_end = key + int32_at(buffer, at + 4)
            at += 4 + int32_at(buffer, at)
            kind = buffer[key_end - 1]
            row[CELLS] += 1
            row[OLD] += write_time[i] - int64_at(buffer, key_end - 9) > old_ms
            if kind == 4:
                row[PUTS] += 1
                digest = _BASIS ^ table[i]
                for b in range(key, key_end - 1):  # row, column and timestamp
                    digest = (digest ^ np.uint64(buffer[b])) * _PRIME
                digest = (digest ^ (digest >> np.uint64(32))) * _MIX | np.uint64(1)
                place = np.int64((digest >> np.uint64(20)) & mask) & -BUCKET
                found = False
                for b in range(place, place + BUCKET):
                    found = found or seen[b] == digest
                row[TIES] += found
                if not found:  # drops the bucket's oldest put
                    for b in range(place + BUCKET - 1, place, -1):
                        seen[b] = seen[b - 1]
                    seen[place] = digest
            elif kind == 8:
                row[DELETES] += 1
            elif kind == 10:
                row[DELETE_FAMILY_VERSIONS] += 1
            elif kind == 12:
                row[DELETE_COLUMNS] += 1
            elif kind == 14:
                row[DELETE_FAMILIES] += 1

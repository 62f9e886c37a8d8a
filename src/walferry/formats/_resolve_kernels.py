"""Numba kernels: find the visible cells of a raw scan, and compute 128-bit hashes of cells."""

from __future__ import annotations

import numpy as np
from numba import njit

from walferry.formats._cell_kernels import int64_at, same_bytes

VISIBLE, MARKER, MASKED, EXPIRED, SURPLUS, DUPLICATE = range(6)
PUT, DELETE, DELETE_FAMILY_VERSION, DELETE_COLUMN, DELETE_FAMILY = 4, 8, 10, 12, 14
TTL_TAG = 8  # TagType.TTL_TAG_TYPE: int64 milliseconds
FOREVER = np.int64(np.iinfo(np.int64).max)
NEVER = np.int64(np.iinfo(np.int64).min)


@njit(cache=True, nogil=True)
def same_row(buffer, row_start, row_length, a, b):  # type: ignore[no-untyped-def]
    """Whether the cells numbered `a` and `b` are of one row."""
    return same_bytes(buffer, row_start[a], row_length[a], row_start[b], row_length[b])


@njit(cache=True, nogil=True)
def ttl_of_tags(buffer, start, length):  # type: ignore[no-untyped-def]
    """The milliseconds in a cell's first TTL tag, counted from its timestamp; FOREVER without a TTL tag."""
    at = start
    end = start + length
    while at + 3 <= end:
        size = (np.int64(buffer[at]) << 8) + np.int64(buffer[at + 1])
        if buffer[at + 2] == TTL_TAG and size == 9 and at + 11 <= end:
            return int64_at(buffer, at + 3)
        at += 2 + size
    return FOREVER


@njit(cache=True, nogil=True)
def is_older(timestamp, ttl, now):  # type: ignore[no-untyped-def]
    """Whether timestamp + ttl < now, without overflow; a negative ttl has always expired."""
    return ttl != FOREVER and timestamp < now - ttl if ttl >= 0 else True


@njit(cache=True, nogil=True)
def outlived(buffer, timestamp, tags_start, tags_length, now):  # type: ignore[no-untyped-def]
    """Whether each cell has passed the TTL in its own tags."""
    found = np.zeros(len(timestamp), np.bool_)
    for i in range(len(timestamp)):
        if tags_length[i] > 0:
            found[i] = is_older(timestamp[i], ttl_of_tags(buffer, tags_start[i], tags_length[i]), now)
    return found


@njit(cache=True, nogil=True)
def expiries(buffer, timestamp, tags_start, tags_length):  # type: ignore[no-untyped-def]
    """The first moment at which each cell has passed the TTL in its own tags; FOREVER without a TTL tag."""
    found = np.full(len(timestamp), FOREVER)
    for i in range(len(timestamp)):
        ttl = ttl_of_tags(buffer, tags_start[i], tags_length[i]) if tags_length[i] > 0 else FOREVER
        if ttl < 0:
            found[i] = NEVER
        elif ttl < FOREVER - max(timestamp[i], 0):
            found[i] = timestamp[i] + ttl + 1
    return found


@njit(cache=True, nogil=True)
def holds(stamps, count, timestamp):  # type: ignore[no-untyped-def]
    """Whether the timestamp is among the first `count` of `stamps`, which are in descending order (binary search)."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) >> 1
        if stamps[middle] > timestamp:
            low = middle + 1
        else:
            high = middle
    return low < count and stamps[low] == timestamp


@njit(cache=True, nogil=True)
def rules_of(buffer, start, length, names, name_offsets):  # type: ignore[no-untyped-def]
    """The number of a family's rules, or -1 if it has none."""
    for r in range(len(name_offsets) - 1):
        if name_offsets[r + 1] - name_offsets[r] == length:
            alike = True
            for b in range(length):
                alike &= names[name_offsets[r] + b] == buffer[start + b]
            if alike:
                return r
    return -1


@njit(cache=True, nogil=True)
def deleted_by(kind, timestamp, family_to, column_to, version):  # type: ignore[no-untyped-def]
    """(family_to, column_to, version) after one more marker: the deletes up to a timestamp, and the deleted version."""
    if kind == DELETE_FAMILY:
        return max(family_to, timestamp), column_to, version
    if kind == DELETE_COLUMN:
        return family_to, max(column_to, timestamp), version
    return family_to, column_to, timestamp


@njit(cache=True, nogil=True)
def fate_of_version(number, too_old, max_versions, min_versions):  # type: ignore[no-untyped-def]
    """The fate of a version that no marker masks; `number` counts a column's versions from 1, the newest."""
    if number > max_versions:
        return SURPLUS
    if too_old and number > min_versions:
        return EXPIRED
    return VISIBLE


@njit(cache=True, nogil=True)
def resolve(  # type: ignore[no-untyped-def]
    buffer,
    row_start, row_length, family_start, family_length, qualifier_start, qualifier_length,
    timestamp, kind, tags_start, tags_length,
    names, name_offsets, max_versions, min_versions, ttl, now,
):  # fmt: skip
    """(fate of each cell, number of the first cell whose family has no rules, or -1).

    Follows NormalUserScanQueryMatcher: ScanDeleteTracker and ScanWildcardColumnTracker over cells in HBase's order. At
    one timestamp, a delete marker comes before the puts that it masks.
    """
    n = len(timestamp)
    fates = np.empty(n, np.uint8)
    family_versions = np.empty(int((kind == DELETE_FAMILY_VERSION).sum()), np.int64)
    family_version_count = versions = 0
    family_to = column_to = version = last_timestamp = NEVER
    rules = -1
    for i in range(n):
        new_family = i == 0 or not (
            same_bytes(buffer, family_start[i], family_length[i], family_start[i - 1], family_length[i - 1])
            and same_row(buffer, row_start, row_length, i, i - 1)
        )
        if new_family:
            rules = rules_of(buffer, family_start[i], family_length[i], names, name_offsets)
            if rules < 0:
                return fates, i
            family_to = NEVER
            family_version_count = 0
        if new_family or not same_bytes(
            buffer, qualifier_start[i], qualifier_length[i], qualifier_start[i - 1], qualifier_length[i - 1]
        ):
            column_to = version = last_timestamp = NEVER
            versions = 0
        t = timestamp[i]
        too_old = is_older(t, ttl[rules], now)
        expired = (too_old and min_versions[rules] == 0) or is_older(
            t, ttl_of_tags(buffer, tags_start[i], tags_length[i]), now
        )
        if kind[i] != PUT:
            fates[i] = MARKER
            if kind[i] == DELETE_FAMILY_VERSION and not expired:
                family_versions[family_version_count] = t
                family_version_count += 1
            elif not expired:
                family_to, column_to, version = deleted_by(kind[i], t, family_to, column_to, version)
        elif expired:
            fates[i] = EXPIRED
        elif t <= family_to or t <= column_to or t == version or holds(family_versions, family_version_count, t):
            fates[i] = MASKED
        elif t == last_timestamp:
            fates[i] = DUPLICATE
        else:
            last_timestamp = t
            versions += 1
            fates[i] = fate_of_version(versions, too_old, max_versions[rules], min_versions[rules])
    return fates, -1


@njit(cache=True, nogil=True)
def rotate(x, by):  # type: ignore[no-untyped-def]
    return (x << np.uint64(by)) | (x >> np.uint64(64 - by))


@njit(cache=True, nogil=True)
def mix(x):  # type: ignore[no-untyped-def]
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x


@njit(cache=True, nogil=True)
def little_endian(buffer, at, count):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for i in range(count):
        value |= np.uint64(buffer[at + i]) << np.uint64(8 * i)
    return value


@njit(cache=True, nogil=True)
def murmur3(buffer, start, length):  # type: ignore[no-untyped-def]
    """MurmurHash3_x64_128 with seed 0 of `buffer[start:start + length]`: (low, high) 64 bits."""
    c1 = np.uint64(0x87C37B91114253D5)
    c2 = np.uint64(0x4CF5AD432745937F)
    h1 = np.uint64(0)
    h2 = np.uint64(0)
    blocks = length // 16
    for block in range(blocks):
        at = start + 16 * block
        k1 = rotate(little_endian(buffer, at, 8) * c1, 31) * c2
        h1 = (rotate(h1 ^ k1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        k2 = rotate(little_endian(buffer, at + 8, 8) * c2, 33) * c1
        h2 = (rotate(h2 ^ k2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
    at = start + 16 * blocks
    rest = length - 16 * blocks
    if rest > 8:
        h2 ^= rotate(little_endian(buffer, at + 8, rest - 8) * c2, 33) * c1
    if rest > 0:
        h1 ^= rotate(little_endian(buffer, at, min(rest, 8)) * c1, 31) * c2
    h1 ^= np.uint64(length)
    h2 ^= np.uint64(length)
    h1 += h2
    h2 += h1
    h1 = mix(h1)
    h2 = mix(h2)
    h1 += h2
    h2 += h1
    return h1, h2


@njit(cache=True, nogil=True)
def digest_rows(buffer, position, row_start, row_length, value_start, value_length, tags_length, keep):  # type: ignore[no-untyped-def]
    """For each row with a kept cell: (the first one, how many, low and high half of the sum of their hashes)."""
    n = len(position)
    first = np.empty(n, np.int64)
    cells = np.empty(n, np.int32)
    low = np.empty(n, np.uint64)
    high = np.empty(n, np.uint64)
    rows = 0
    for i in range(n):
        if not keep[i]:
            continue
        if rows == 0 or not same_row(buffer, row_start, row_length, first[rows - 1], i):
            first[rows] = i
            cells[rows] = 0
            low[rows] = 0
            high[rows] = 0
            rows += 1
        start = position[i] + 4
        end = value_start[i] + value_length[i]
        if tags_length[i] > 0:
            end += 2 + tags_length[i]
        h1, h2 = murmur3(buffer, start, end - start)
        row = rows - 1
        cells[row] += 1
        low[row] += h1
        high[row] += h2 + np.uint64(low[row] < h1)
    return first[:rows], cells[:rows], low[:rows], high[:rows]


@njit(cache=True, nogil=True)
def sum_rows(buffer, row_start, row_length, timestamp, keep):  # type: ignore[no-untyped-def]
    """For each row with a kept cell: (the first one, how many, their least and their greatest timestamp)."""
    n = len(row_start)
    first = np.empty(n, np.int64)
    cells = np.empty(n, np.int64)
    least = np.empty(n, np.int64)
    greatest = np.empty(n, np.int64)
    rows = 0
    for i in range(n):
        if not keep[i]:
            continue
        last = rows - 1
        if rows == 0 or not same_row(buffer, row_start, row_length, first[last], i):
            first[rows] = i
            cells[rows] = 1
            least[rows] = timestamp[i]
            greatest[rows] = timestamp[i]
            rows += 1
        else:
            cells[last] += 1
            least[last] = min(least[last], timestamp[i])
            greatest[last] = max(greatest[last], timestamp[i])
    return first[:rows], cells[:rows], least[:rows], greatest[:rows]


@njit(cache=True, nogil=True)
def hash_keys(buffer, position, value_start, cells):  # type: ignore[no-untyped-def]
    """uint64[n, 2]: both halves of the hash of each listed cell's key (row, family, qualifier, timestamp, type)."""
    hashes = np.empty((len(cells), 2), np.uint64)
    for i in range(len(cells)):
        start = position[cells[i]] + 12
        hashes[i, 0], hashes[i, 1] = murmur3(buffer, start, value_start[cells[i]] - start)
    return hashes


@njit(cache=True, nogil=True)
def sum_128(low, high):  # type: ignore[no-untyped-def]
    """(low, high) halves of the sum modulo 2**128 of numbers given as halves."""
    total_low = np.uint64(0)
    total_high = np.uint64(0)
    for i in range(len(low)):
        total_low += low[i]
        total_high += high[i] + np.uint64(total_low < low[i])
    return total_low, total_high

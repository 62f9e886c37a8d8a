"""Numba kernels that sort KeyValues in the order of a store (CellComparatorImpl): row, family, qualifier, newest
timestamp first, greatest type first. Of cells with equal keys the one with the highest number comes first.

Kernels refer to a cell by the position of its int32 length (`_cell_kernels`) in one uint8 buffer.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from walferry.formats._cell_kernels import int16_at, int32_at, int64_at
from walferry.formats._njit import kernel

_PUT, _DELETE, _DELETE_FAMILY_VERSION, _DELETE_COLUMN, _DELETE_FAMILY = 4, 8, 10, 12, 14
_SHORT_RUN = 24
"""insertion sort is faster than merging up to this many cells"""


@kernel()
def _compare_bytes(one, at, size, other, other_at, other_size):  # type: ignore[no-untyped-def]
    least = min(size, other_size)
    for i in range(least):
        a = one[at + i]
        b = other[other_at + i]
        if a != b:
            return -1 if a < b else 1
    if size == other_size:
        return 0
    return -1 if size < other_size else 1


@kernel()
def compare_keys(one, at, other, other_at):  # type: ignore[no-untyped-def]
    """-1, 0 or 1: the cell at `at` comes before the other cell, has the same key, or comes after it."""
    row = int16_at(one, at + 12)
    other_row = int16_at(other, other_at + 12)
    found = _compare_bytes(one, at + 14, row, other, other_at + 14, other_row)
    if found != 0:
        return found
    family_at = at + 14 + row
    other_family_at = other_at + 14 + other_row
    family = np.int64(one[family_at])
    other_family = np.int64(other[other_family_at])
    found = _compare_bytes(one, family_at + 1, family, other, other_family_at + 1, other_family)
    if found != 0:
        return found
    end = at + 12 + int32_at(one, at + 4)
    other_end = other_at + 12 + int32_at(other, other_at + 4)
    qualifier_at = family_at + 1 + family
    other_qualifier_at = other_family_at + 1 + other_family
    found = _compare_bytes(
        one, qualifier_at, end - 9 - qualifier_at, other, other_qualifier_at, other_end - 9 - other_qualifier_at
    )
    if found != 0:
        return found
    timestamp = int64_at(one, end - 9)
    other_timestamp = int64_at(other, other_end - 9)
    if timestamp != other_timestamp:
        return -1 if timestamp > other_timestamp else 1
    kind = one[end - 1]
    other_kind = other[other_end - 1]
    if kind != other_kind:
        return -1 if kind > other_kind else 1
    return 0


@kernel()
def _before(buffer, positions, numbers, a, b):  # type: ignore[no-untyped-def]
    """Whether cell `a` sorts before cell `b`; of cells with equal keys and numbers, the later one sorts first."""
    found = compare_keys(buffer, positions[a], buffer, positions[b])
    if found != 0:
        return found < 0
    if numbers[a] != numbers[b]:
        return numbers[a] > numbers[b]
    return a > b


@kernel()
def row_prefixes(buffer, positions, prefixes):  # type: ignore[no-untyped-def]
    """Fill uint64[n] with the eight bytes of each row after the prefix common to all rows, padded with zeros."""
    first = positions[0] + 14
    common = int16_at(buffer, positions[0] + 12)
    for n in range(1, len(positions)):
        at = positions[n] + 14
        common = min(common, int16_at(buffer, positions[n] + 12))
        for i in range(common):
            if buffer[at + i] != buffer[first + i]:
                common = i
                break
    for n in range(len(positions)):
        at = positions[n] + 14
        size = int16_at(buffer, positions[n] + 12)
        value = np.uint64(0)
        for i in range(common, common + 8):
            value = (value << np.uint64(8)) | (np.uint64(buffer[at + i]) if i < size else np.uint64(0))
        prefixes[n] = value


@njit(cache=True, nogil=True)
def sort_ties(buffer, positions, numbers, prefixes, order):  # type: ignore[no-untyped-def]
    """Sort each run of cells with equal prefixes in `order`, which is already sorted by prefix."""
    spare = np.empty(len(order), np.int64)
    begin = 0
    n = len(order)
    while begin < n:
        end = begin + 1
        prefix = prefixes[order[begin]]
        while end < n and prefixes[order[end]] == prefix:
            end += 1
        if end - begin > 1:
            _sort(buffer, positions, numbers, order, spare, begin, end)
        begin = end


@kernel()
def _sort(buffer, positions, numbers, order, spare, begin, end):  # type: ignore[no-untyped-def]
    """Merge sort that starts from short runs; only compares runs that are already in order."""
    at = begin
    while at < end:
        stop = min(at + _SHORT_RUN, end)
        for i in range(at + 1, stop):
            cell = order[i]
            j = i
            while j > at and _before(buffer, positions, numbers, cell, order[j - 1]):
                order[j] = order[j - 1]
                j -= 1
            order[j] = cell
        at = stop
    width = _SHORT_RUN
    while width < end - begin:
        at = begin
        while at + width < end:
            middle = at + width
            stop = min(middle + width, end)
            if _before(buffer, positions, numbers, order[middle], order[middle - 1]):
                for i in range(at, middle):
                    spare[i] = order[i]
                left = at
                right = middle
                to = at
                while left < middle:
                    if right < stop and _before(buffer, positions, numbers, order[right], spare[left]):
                        order[to] = order[right]
                        right += 1
                    else:
                        order[to] = spare[left]
                        left += 1
                    to += 1
            at = stop
        width *= 2


@kernel()
def _same_key(buffer, at, other_at):  # type: ignore[no-untyped-def]
    """Whether two cells have the same key. Compares from the end, since cells of one row begin alike."""
    size = int32_at(buffer, at + 4)
    if size != int32_at(buffer, other_at + 4):
        return False
    for i in range(size - 1, -1, -1):  # noqa: SIM110 (numba has no all() over generators)
        if buffer[at + 12 + i] != buffer[other_at + 12 + i]:
            return False
    return True


@kernel()
def mark_first(buffer, positions, first):  # type: ignore[no-untyped-def]
    """Fill bool[n]: whether each cell's key differs from the previous cell's."""
    for i in range(len(positions)):
        first[i] = i == 0 or not _same_key(buffer, positions[i - 1], positions[i])


@kernel()
def rows_below(buffer, positions, row):  # type: ignore[no-untyped-def]
    """How many of the sorted cells have a row below `row` (uint8[n])."""
    low = 0
    high = len(positions)
    while low < high:
        middle = (low + high) // 2
        at = positions[middle]
        if _compare_bytes(buffer, at + 14, int16_at(buffer, at + 12), row, 0, len(row)) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@kernel()
def find_families(buffer, positions, names, starts, found):  # type: ignore[no-untyped-def]
    """Fill int32[n] with the number of each cell's family, -1 for none; name i is names[starts[i] : starts[i + 1]]."""
    for n in range(len(positions)):
        at = positions[n] + 14
        at += int16_at(buffer, positions[n] + 12)
        found[n] = -1
        for i in range(len(starts) - 1):
            if _compare_bytes(buffer, at + 1, np.int64(buffer[at]), names, starts[i], starts[i + 1] - starts[i]) == 0:
                found[n] = i
                break


@kernel()
def _row_and_family(buffer, position):  # type: ignore[no-untyped-def]
    """Position and length of a cell's row, and the length of its family."""
    row = int16_at(buffer, position + 12)
    return position + 14, row, np.int64(buffer[position + 14 + row])


@kernel()
def _same_row_and_family(buffer, a, b):  # type: ignore[no-untyped-def]
    at, row, family = _row_and_family(buffer, a)
    other_at, other_row, other_family = _row_and_family(buffer, b)
    if row != other_row or family != other_family:
        return False
    return _compare_bytes(buffer, at, row + 1 + family, buffer, other_at, row + 1 + family) == 0


@kernel()
def _same_column(buffer, a, b):  # type: ignore[no-untyped-def]
    """Whether two cells of one row and family have the same qualifier."""
    _, row, family = _row_and_family(buffer, a)
    before = 15 + row + family
    size = int32_at(buffer, a + 4) - 12 - row - family
    other_size = int32_at(buffer, b + 4) - 12 - row - family
    return _compare_bytes(buffer, a + before, size, buffer, b + before, other_size) == 0


@kernel()
def _timestamp_and_type(buffer, position):  # type: ignore[no-untyped-def]
    end = position + 12 + int32_at(buffer, position + 4)
    return int64_at(buffer, end - 9), buffer[end - 1]


@kernel()
def _at_or_after(times, count, timestamp):  # type: ignore[no-untyped-def]
    """How many of the first `count` times, sorted newest first, are at or after a timestamp."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if times[middle] >= timestamp:
            low = middle + 1
        else:
            high = middle
    return low


@kernel()
def mark_outranked(buffer, positions, numbers, outranked, room):  # type: ignore[no-untyped-def]
    """Fill bool[n]: whether a settled cell replaces or deletes this unsettled cell.

    The cells are sorted; keys may repeat. The lowest bit of `numbers` marks settled cells, the high bits are the
    sequence number. A settled cell replaces cells with its key and lower numbers; a settled marker deletes puts with
    lower numbers. `room`: int64[4, n]. Markers sort before the cells they delete: a family's markers are in its first
    column, and a column's markers come first by timestamp.
    """
    times, highest = room[0], room[1]  # of DeleteFamily: newest first, and the highest number so far
    version_times, version_numbers = room[2], room[3]  # of DeleteFamilyVersion, with its number
    row = column = 0
    families = versions = 0
    of_column = of_version = np.int64(-1)  # the highest number of DeleteColumn so far, of Delete at `version_time`
    version_time = np.int64(-1)
    for i in range(len(positions)):
        at = positions[i]
        if i > 0 and not _same_row_and_family(buffer, positions[row], at):
            row = column = i
            families = versions = 0
            of_column = of_version = version_time = np.int64(-1)
        elif i > 0 and not _same_column(buffer, positions[column], at):
            column = i
            of_column = of_version = version_time = np.int64(-1)
        timestamp, kind = _timestamp_and_type(buffer, at)
        number = numbers[i]
        outranked[i] = False
        if number & 1 == 1:
            if kind == _DELETE_FAMILY:
                times[families] = timestamp
                highest[families] = max(number, highest[families - 1]) if families > 0 else number
                families += 1
            elif kind == _DELETE_FAMILY_VERSION and (versions == 0 or version_times[versions - 1] != timestamp):
                version_times[versions] = timestamp  # the first of equal keys has the highest number
                version_numbers[versions] = number
                versions += 1
            elif kind == _DELETE_COLUMN:
                of_column = max(of_column, number)
            elif kind == _DELETE and version_time != timestamp:
                version_time = timestamp
                of_version = number
            continue
        if i > column and compare_keys(buffer, positions[i - 1], buffer, at) == 0:
            outranked[i] = outranked[i - 1] or numbers[i - 1] & 1 == 1
        if kind == _PUT and not outranked[i]:
            deleted = of_column
            if version_time == timestamp:
                deleted = max(deleted, of_version)
            covering = _at_or_after(times, families, timestamp)
            if covering > 0:
                deleted = max(deleted, highest[covering - 1])
            covering = _at_or_after(version_times, versions, timestamp)
            if covering > 0 and version_times[covering - 1] == timestamp:
                deleted = max(deleted, version_numbers[covering - 1])
            outranked[i] = deleted > number


@kernel()
def mark_stepped_over(buffer, positions, dropped, times):  # type: ignore[no-untyped-def]
    """Fill bool[n]: whether HBase's reader would show this put although a marker of its family covers it.

    In a file of several blocks, StoreScanner steps over the markers of a family when it skips from a newer put in the
    column with the empty qualifier to the next column. The cells are sorted and have distinct keys; `times` is room,
    int64[n]. HBase writes no such files: a flush leaves out the cells that its markers cover.
    """
    n = len(positions)
    row = 0
    newest = np.int64(-1)  # of DeleteFamily
    versions = 0  # of DeleteFamilyVersion: how many `times`, newest first
    for i in range(n):
        at = positions[i]
        if i == 0 or not _same_row_and_family(buffer, positions[row], at):
            row = i
            newest = np.int64(-1)
            versions = 0
            _, size, family = _row_and_family(buffer, at)
            has_put = False
            j = i
            while (
                j < n
                and int32_at(buffer, positions[j] + 4) == 12 + size + family
                and _same_row_and_family(buffer, at, positions[j])
            ):
                timestamp, kind = _timestamp_and_type(buffer, positions[j])
                if kind == _PUT:
                    has_put = True
                elif kind == _DELETE_FAMILY:
                    newest = max(newest, timestamp)
                elif kind == _DELETE_FAMILY_VERSION:
                    times[versions] = timestamp
                    versions += 1
                j += 1
            if not has_put:
                newest = np.int64(-1)
                versions = 0
        timestamp, kind = _timestamp_and_type(buffer, at)
        dropped[i] = False
        if kind == _PUT:
            covering = _at_or_after(times, versions, timestamp)
            dropped[i] = newest >= timestamp or (covering > 0 and times[covering - 1] == timestamp)

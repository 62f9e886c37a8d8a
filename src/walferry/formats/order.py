"""The order of cells in a store: row, family, qualifier, newest timestamp first, greatest type first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from walferry.formats import _order_kernels as kernels
from walferry.formats.cells import Bytes, Int32s, Int64s

NUMBER_BITS = 8
"""bits of a cell's number below its sequence number"""
MOST_LISTS = 1 << NUMBER_BITS - 1


def store_order(buffer: Bytes, positions: Int64s, numbers: Int64s) -> Int64s:
    """The indices of the cells, sorted in the order of a store.

    `positions`: where each cell's int32 length is in `buffer`. Among cells with equal keys (all but value and tags) the
    one with the highest of `numbers` comes first; if these are equal too, the last cell comes first.
    """
    if not len(positions):
        return np.empty(0, np.int64)
    prefixes = np.empty(len(positions), np.uint64)
    kernels.row_prefixes(buffer, positions, prefixes)
    order = np.argsort(prefixes, kind="stable")
    kernels.sort_ties(buffer, positions, numbers, prefixes, order)
    return order


def winners(buffer: Bytes, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Which of the sorted cells are the first of their key: the ones that a reader sees."""
    first = np.empty(len(positions), np.bool_)
    kernels.mark_first(buffer, positions, first)
    return first


def count_below(buffer: Bytes, positions: Int64s, row: bytes) -> int:
    """How many of the sorted cells have a row below `row`."""
    return int(kernels.rows_below(buffer, positions, np.frombuffer(row, np.uint8)))


def families_of(buffer: Bytes, positions: Int64s, families: Sequence[bytes]) -> Int32s:
    """The index of each cell's family in `families`; -1 for any other family."""
    found = np.empty(len(positions), np.int32)
    names = np.frombuffer(b"".join(families), np.uint8)
    kernels.find_families(buffer, positions, names, np.cumsum([0, *map(len, families)]), found)
    return found


def outranked(buffer: Bytes, positions: Int64s, numbers: Int64s) -> npt.NDArray[np.bool_]:
    """Which of the sorted cells a settled cell replaces or deletes.

    `numbers`: the sequence number, followed by NUMBER_BITS bits; the lowest bit is set for settled cells. A settled
    cell replaces cells with its key and lower sequence numbers. A settled marker deletes the puts that it covers and
    that have lower sequence numbers. Settled cells themselves are never marked.
    """
    marked = np.zeros(len(positions), np.bool_)
    if (numbers & 1).any():
        kernels.mark_outranked(buffer, positions, numbers, marked, np.empty((4, len(positions)), np.int64))
    return marked


def stepped_over(buffer: Bytes, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Which puts among sorted cells with distinct keys must not share a file with the markers that cover them.

    HBase's reader would show these puts (2.6.1, StoreScanner.trySkipToNextColumn). They are in rows and families with a
    put in the column with the empty qualifier.
    """
    marked = np.empty(len(positions), np.bool_)
    kernels.mark_stepped_over(buffer, positions, marked, np.empty(len(positions), np.int64))
    return marked

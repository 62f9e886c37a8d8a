"""The order of cells in a store: row, family, qualifier, newest timestamp first, greatest type first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from walferry.formats import _order_kernels as kernels
from walferry.formats.cells import Bytes, Int32s, Int64s

NUMBER_BITS = 8
"""below the sequence number in a cell's number"""
MOST_LISTS = 1 << NUMBER_BITS - 1


def store_order(buffer: Bytes, positions: Int64s, numbers: Int64s) -> Int64s:
    """The numbers of the cells in the order of a store.

    `positions`: of each cell's int32 length in `buffer`. Of cells with equal keys (all but value and tags) the one with
    the highest of `numbers` comes first, and of those with equal numbers too the last one.
    """
    if not len(positions):
        return np.empty(0, np.int64)
    prefixes = np.empty(len(positions), np.uint64)
    kernels.row_prefixes(buffer, positions, prefixes)
    order = np.argsort(prefixes, kind="stable")
    kernels.sort_ties(buffer, positions, numbers, prefixes, order)
    return order


def winners(buffer: Bytes, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Which cells, in order, are the first of their key: what a reader sees of equal cells."""
    first = np.empty(len(positions), np.bool_)
    kernels.mark_first(buffer, positions, first)
    return first


def count_below(buffer: Bytes, positions: Int64s, row: bytes) -> int:
    """How many of the cells, which are in order, are of rows below `row`."""
    return int(kernels.rows_below(buffer, positions, np.frombuffer(row, np.uint8)))


def families_of(buffer: Bytes, positions: Int64s, families: Sequence[bytes]) -> Int32s:
    """The number of each cell's family among `families`; -1 if it is none of them."""
    found = np.empty(len(positions), np.int32)
    names = np.frombuffer(b"".join(families), np.uint8)
    kernels.find_families(buffer, positions, names, np.cumsum([0, *map(len, families)]), found)
    return found


def outranked(buffer: Bytes, positions: Int64s, numbers: Int64s) -> npt.NDArray[np.bool_]:
    """Which cells, in order, a settled one replaces or deletes.

    `numbers`: the sequence number, then NUMBER_BITS of which the lowest is set for settled cells. A settled cell
    replaces those of its key with lower sequence numbers, and a settled marker deletes puts with lower ones that it
    covers. Settled cells themselves are never marked.
    """
    marked = np.zeros(len(positions), np.bool_)
    if (numbers & 1).any():
        kernels.mark_outranked(buffer, positions, numbers, marked, np.empty((4, len(positions)), np.int64))
    return marked


def stepped_over(buffer: Bytes, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Which puts, of cells in order with distinct keys, must not be in one file with the markers that cover them.

    HBase's reader would show them (2.6.1, StoreScanner.trySkipToNextColumn): those of a row and family with a put in
    the column without a name.
    """
    marked = np.empty(len(positions), np.bool_)
    kernels.mark_stepped_over(buffer, positions, marked, np.empty(len(positions), np.int64))
    return marked

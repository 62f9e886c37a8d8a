"""Merges sorted blocks of cells, and decides which cells are loaded: one of each key, and no deleted ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pyarrow as pa

from walferry.errors import WalferryError
from walferry.formats.cells import Bytes, Int64s, cell_lengths, cell_starts, gather
from walferry.formats.order import MOST_LISTS, count_below, outranked, stepped_over, store_order, winners

MERGE_BYTES = 16 << 20
"""least number of bytes of blocks that are sorted together"""

Block = tuple[bytes, bytes, bytes, Bytes, Int64s]
"""family, raw list of clusters, first row, cells, their numbers"""


def sorted_cells(parts: Sequence[tuple[Bytes, Int64s, Int64s]]) -> tuple[Bytes, Int64s, Int64s]:
    """All cells in the order of a store: buffer, where each begins, and their numbers."""
    shifts = np.cumsum([0, *(len(buffer) for buffer, _, _ in parts)])
    buffer = np.concatenate([buffer for buffer, _, _ in parts])
    positions = np.concatenate([at + shift for (_, at, _), shift in zip(parts, shifts[:-1], strict=True)])
    numbers = np.concatenate([numbers for _, _, numbers in parts])
    order = store_order(buffer, positions, numbers)
    return buffer, positions[order], numbers[order]


def taken(buffer: Bytes, positions: Int64s) -> tuple[Bytes, Int64s]:
    """The cells at these positions, one after the other; also the offset at which each begins, and that at which the
    last ends."""
    lengths = cell_lengths(buffer, positions)
    return gather(buffer, positions, positions + lengths), np.append(0, np.cumsum(lengths))


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        raise WalferryError(
            f"{folder}: {error.strerror}. Edits are kept there until they are loaded in bulk: set TMPDIR to a "
            "folder on a larger disk, or use apply: rpc",
            folder=folder,
        ) from error


class Spool:
    """Bytes that wait in a file of this machine. One thread at a time adds to it.

    Raises WalferryError when the disk has no room for them.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by its owner)
        self._end = 0

    def add(self, content: memoryview | pa.Buffer) -> tuple[int, int]:
        """Keep bytes; returns what `read` takes."""
        with _room():
            begin, self._end = self._end, self._end + self._file.write(content)
        return begin, self._end

    def read(self, begin: int, end: int) -> bytes:
        """The bytes that lie there."""
        with _room():
            self._file.flush()
        return os.pread(self._file.fileno(), end - begin, begin)

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


class Merge:
    """Merges the blocks of a family. They arrive in the order of their first rows, so all rows below the newest block's
    first row are complete."""

    def __init__(self, blocks: Iterator[Block], *, keeps_deleted: bool) -> None:
        self._blocks = blocks
        self._keeps_deleted = keeps_deleted
        self._lists: list[bytes] = []
        """lists of clusters, by number"""
        self._others: dict[int, list[tuple[int, int]]] = {}
        """where the sorted cells of the other lists lie in the spool, by the list's number"""
        self._spool = Spool()
        self.outranked = self.taken = 0

    def __enter__(self) -> Merge:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()

    def by_clusters(self) -> Iterator[tuple[bytes, Iterator[tuple[Bytes, Int64s]]]]:
        """Each list of clusters from which edits came, with the cells of these edits in order. Read one list after the
        other.

        This takes one pass over the blocks: the cells of all lists but the first wait on disk.
        """
        first = next(self._blocks, None)
        if first is None:
            return
        yield first[1], self._merged(chain([first], self._blocks))
        for number, places in self._others.items():
            yield self._lists[number], map(self._waiting, places)

    def _waiting(self, place: tuple[int, int]) -> tuple[Bytes, Int64s]:
        cells = np.frombuffer(self._spool.read(*place), np.uint8)
        return cells, cell_starts(cells)

    def _number(self, clusters: bytes) -> int:
        if clusters not in self._lists:
            self._lists.append(clusters)
            if len(self._lists) > MOST_LISTS:
                raise WalferryError(
                    f"the edits have more than {MOST_LISTS} different lists of clusters; use apply: rpc"
                )
        return self._lists.index(clusters)

    def _merged(self, blocks: Iterable[Block]) -> Iterator[tuple[Bytes, Int64s]]:
        waiting: list[tuple[Bytes, Int64s, Int64s]] = []
        size, limit = 0, MERGE_BYTES
        for _, clusters, first, cells, numbers in blocks:
            if size >= limit:
                buffer, positions, ranks = sorted_cells(waiting)
                below = count_below(buffer, positions, first)
                yield from self._kept(buffer, positions[:below], ranks[:below])
                rest, starts = taken(buffer, positions[below:])
                waiting = [(rest, starts[:-1], ranks[below:])]
                size, limit = len(rest), max(MERGE_BYTES, 2 * len(rest))
            waiting.append((cells, cell_starts(cells), numbers | self._number(clusters) << 1))
            self.taken += len(numbers)
            size += len(cells)
        yield from self._kept(*sorted_cells(waiting))

    def _kept(self, buffer: Bytes, positions: Int64s, numbers: Int64s) -> Iterator[tuple[Bytes, Int64s]]:
        """From the cells of whole rows, yield those to load for the first list of clusters, and put those of the other
        lists aside."""
        left_out = outranked(buffer, positions, numbers)
        self.outranked += int(left_out.sum())
        keep = winners(buffer, positions) & ~left_out & (numbers & 1 == 0)
        positions, lists = positions[keep], numbers[keep] >> 1 & MOST_LISTS - 1
        if not self._keeps_deleted and len(positions):
            covered = stepped_over(buffer, positions)
            positions, lists = positions[~covered], lists[~covered]
        for number in np.unique(lists).tolist():
            mine = positions[lists == number]
            if number == 0:
                yield buffer, mine
            else:
                self._others.setdefault(number, []).append(self._spool.add(taken(buffer, mine)[0].data))

"""Runs of cells as a client's mutations: where each begins, which region holds its row, its protobuf message.

The cells themselves travel unchanged in the request's cell block, with their tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walferry.formats import _mutation_kernels as kernels
from walferry.formats.cells import Bytes, Int32s, Int64s


@dataclass(frozen=True)
class Mutations:
    """The mutations in `buffer`. Each is a Put or a Delete: consecutive cells of one row and one type."""

    buffer: Bytes
    start: Int64s
    end: Int64s
    cells: Int32s
    deletes: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    def actions(self, picked: Int64s, attributes: bytes) -> bytes:
        """The `RegionAction.action` fields (Client.proto) of the picked mutations, each with the encoded `attributes`.

        They have no `index`: the server numbers its results itself.
        """
        out = np.empty(len(picked) * (len(attributes) + kernels.MOST_FRAMING), np.uint8)
        size = kernels.encode_actions(self.cells, self.deletes, picked, np.frombuffer(attributes, np.uint8), out)
        return out[:size].tobytes()


def cut_mutations(buffer: Bytes, at: int, count: int) -> Mutations:
    """Cut the `count` checked cells from `at` on into mutations, at each change of row or type (as HBase's
    ReplicationSink does)."""
    start, cells, deletes = np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count, np.bool_)
    found, after = kernels.cut_mutations(buffer, at, count, start, cells, deletes)
    start = start[:found]
    return Mutations(buffer, start, np.append(start[1:], after), cells[:found], deletes[:found])


@dataclass(frozen=True)
class RowBorders:
    """The first rows of consecutive row ranges. The first range begins with the empty row."""

    keys: Bytes
    ends: Int64s

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> RowBorders:
        """Build the borders from the ranges' first rows, in order."""
        keys = b"".join(rows)
        return cls(np.frombuffer(keys, np.uint8), np.cumsum([len(row) for row in rows], dtype=np.int64))

    def ranges_of(self, buffer: Bytes, positions: Int64s) -> Int64s:
        """The number of the range that holds the row of the cell at each position."""
        found = np.empty(len(positions), np.int64)
        kernels.find_rows(buffer, positions, self.keys, self.ends, found)
        return found

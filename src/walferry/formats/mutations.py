"""Runs of cells as a client's mutations: where each begins, which region holds its row, its protobuf message.

The cells themselves travel in the cell block of the request as they are, tags included.
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
    """Consecutive cells of one row and one type in `buffer`: each run of them is a Put or a Delete."""

    buffer: Bytes
    start: Int64s
    end: Int64s
    cells: Int32s
    deletes: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    def actions(self, picked: Int64s, attributes: bytes) -> bytes:
        """The fields `RegionAction.action` of some of them (Client.proto), each with these encoded attributes.

        Without `index`: the server numbers its results itself.
        """
        out = np.empty(len(picked) * (len(attributes) + kernels.MOST_FRAMING), np.uint8)
        size = kernels.encode_actions(self.cells, self.deletes, picked, np.frombuffer(attributes, np.uint8), out)
        return out[:size].tobytes()


def cut_mutations(buffer: Bytes, at: int, count: int) -> Mutations:
    """Cut `count` checked cells that begin at a position into mutations, at each change of row or type (as HBase's
    ReplicationSink does)."""
    start, cells, deletes = np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count, np.bool_)
    found, after = kernels.cut_mutations(buffer, at, count, start, cells, deletes)
    start = start[:found]
    return Mutations(buffer, start, np.append(start[1:], after), cells[:found], deletes[:found])


@dataclass(frozen=True)
class RowBorders:
    """The first rows of consecutive ranges of rows, of which the first one begins with the empty row."""

    keys: Bytes
    ends: Int64s

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> RowBorders:
        """From the rows in order."""
        keys = b"".join(rows)
        return cls(np.frombuffer(keys, np.uint8), np.cumsum([len(row) for row in rows], dtype=np.int64))

    def ranges_of(self, buffer: Bytes, positions: Int64s) -> Int64s:
        """The number of the range that holds the row of the cell at each position."""
        found = np.empty(len(positions), np.int64)
        kernels.find_rows(buffer, positions, self.keys, self.ends, found)
        return found

"""KeyValues with tags: indexes the cells of a WAL entry or an RPC cell block in place and turns them into Arrow.

A run of cells is a uint8 buffer of consecutive `int32 length + KeyValue`. A WAL holds a run after each key, and the RPC
codec `KeyValueCodecWithTags` sends one. `_cell_kernels` has the layout of a KeyValue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.errors import DamagedInputError
from walferry.formats import _cell_kernels as kernels

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Positions = npt.NDArray[np.integer[Any]]


class CellType(IntEnum):
    """KeyValue.Type: the kinds of cell that HBase stores."""

    PUT = 4
    DELETE = 8  # one version of a column
    DELETE_FAMILY_VERSION = 10  # all columns of a family at exactly one timestamp
    DELETE_COLUMN = 12  # all versions of a column up to a timestamp
    DELETE_FAMILY = 14  # all columns of a family up to a timestamp


CELL_SCHEMA = pa.schema(
    [
        ("row", pa.binary()),
        ("family", pa.binary()),
        ("qualifier", pa.binary()),
        ("timestamp", pa.int64()),
        ("type", pa.int16()),
        ("value", pa.binary()),
        ("tags", pa.binary()),
    ]
)


@dataclass(frozen=True)
class CellIndex:
    """Where the fields of n cells are in `buffer`: int64[n] positions and lengths; `timestamp` and `type` are decoded.

    `position` is where a cell's int32 length prefix begins; `tags` are the raw tags without their uint16 length.
    """

    buffer: Bytes
    position: Int64s
    row_start: Int64s
    row_length: Int64s
    family_start: Int64s
    family_length: Int64s
    qualifier_start: Int64s
    qualifier_length: Int64s
    timestamp: Int64s
    type: npt.NDArray[np.uint8]
    value_start: Int64s
    value_length: Int64s
    tags_start: Int64s
    tags_length: Int64s

    def __len__(self) -> int:
        return len(self.position)

    def part(self, start: int, stop: int) -> CellIndex:
        """The cells numbered [start, stop), over the same buffer."""
        columns = (getattr(self, spec.name) for spec in fields(self) if spec.name != "buffer")
        return CellIndex(self.buffer, *(column[start:stop] for column in columns))

    def pick(self, numbers: Int64s) -> CellIndex:
        """The cells with these numbers, in this order, over the same buffer."""
        columns = (getattr(self, spec.name) for spec in fields(self) if spec.name != "buffer")
        return CellIndex(self.buffer, *(column[numbers] for column in columns))

    def row(self, number: int) -> bytes:
        """The row of one cell."""
        start = self.row_start[number]
        return self.buffer[start : start + self.row_length[number]].tobytes()

    @classmethod
    def of(cls, buffer: Bytes, located: Int64s) -> CellIndex:
        """Build the index from a kernel's result: one row per attribute, in the attributes' order."""
        columns = list(located)
        columns[kernels.TYPE] = columns[kernels.TYPE].astype(np.uint8)
        return cls(buffer, *columns)


def index_cells(buffer: Bytes, start: int = 0, end: int | None = None) -> CellIndex:
    """Check and index the run of cells `buffer[start:end]` (uint8).

    Raises DamagedInputError (facts `offset` in the buffer, `reason`) for lengths that contradict each other or exceed
    the run, for unknown types, for negative timestamps, and for tags that do not fill their length.
    """
    stop = len(buffer) if end is None else end
    if not 0 <= start <= stop <= len(buffer):
        raise ValueError(f"no run of cells at {start}..{stop} in {len(buffer)} bytes")
    status, count, at = kernels.count_cells(buffer, start, stop)
    if status != kernels.OK:
        reason = kernels.REASONS.get(status, "the bytes end inside a cell")
        raise DamagedInputError(f"damaged cell at byte {at}: {reason}", offset=at, reason=reason)
    return CellIndex.of(buffer, kernels.locate_cells(buffer, start, count))


def find_cells(buffer: Bytes, starts: Int64s, counts: Int32s) -> tuple[Int64s, Int64s, Int32s, Int32s]:
    """Locate the cells of several runs that were already checked: position, length, number of the run, index in it.

    Takes a quarter of the memory of a CellIndex.
    """
    start, length, run, index = kernels.find_entry_cells(buffer, starts, counts)
    return start, length, run, index


def cell_starts(buffer: Bytes) -> Int64s:
    """The position of each cell of a run that was already checked."""
    starts: Int64s = kernels.start_cells(buffer)
    return starts


def cell_lengths(buffer: Bytes, positions: Int64s) -> Int64s:
    """The bytes of each already checked cell at these positions, including its int32 length."""
    lengths = np.empty(len(positions), np.int64)
    kernels.measure_cells(buffer, positions, lengths)
    return lengths


def row_at(buffer: Bytes, position: int) -> bytes:
    """The row of the already checked cell at a position."""
    size = int.from_bytes(buffer[position + 12 : position + 14].tobytes(), "big")
    return buffer[position + 14 : position + 14 + size].tobytes()


def row_starts(buffer: Bytes, position: Int64s) -> Int64s:
    """The numbers of the cells that begin a new row, among already checked cells at these positions."""
    found: Int64s = kernels.row_starts(buffer, position)
    return found


def row_column(buffer: Bytes, position: Int64s) -> pa.Array:
    """The rows of the already checked cells at these positions, as an Arrow binary array."""
    starts = position + 14
    lengths = buffer[starts - 2].astype(np.int64) << 8 | buffer[starts - 1]
    return binary_column(buffer, starts, lengths)


def cut_cells(borders: Positions, begin: int, end: int, cells: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut the cells numbered [begin, end) into parts, each given as its first number and the number after its last.

    `borders` are the positions where the cells begin, then the position where the last cell ends. A part has at most
    `cells` cells, and at most `size` bytes unless it is a single cell.
    """
    while begin < end:
        fitting = int(np.searchsorted(borders, borders[begin] + size, side="right")) - 1
        stop = max(begin + 1, min(end, begin + cells, fitting))
        yield begin, stop
        begin = stop


def encode_cell(
    row: bytes,
    family: bytes,
    qualifier: bytes,
    timestamp: int,
    type: int,
    value: bytes = b"",
    tags: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """Encode one cell as int32 length and KeyValue, with its tags. Raises struct.error if a field is too long."""
    key = (
        struct.pack(">h", len(row)) + row + struct.pack(">b", len(family)) + family + qualifier
        + struct.pack(">qB", timestamp, type)
    )  # fmt: skip
    raw_tags = b"".join(struct.pack(">HB", len(content) + 1, kind) + content for kind, content in tags)
    tail = struct.pack(">H", len(raw_tags)) + raw_tags if raw_tags else b""
    body = struct.pack(">ii", len(key), len(value)) + key + value + tail
    return struct.pack(">i", len(body)) + body


def decode_tags(raw: bytes) -> list[tuple[int, bytes]]:
    """(tag type, content) of each tag in a cell's raw tags. Raises DamagedInputError if the tags do not fill `raw`."""
    tags = []
    at = 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 2], "big")
        if length < 1 or at + 2 + length > len(raw):
            reason = kernels.REASONS[kernels.BAD_CELL_TAGS]
            raise DamagedInputError(f"damaged tags at byte {at}: {reason}", offset=at, reason=reason)
        tags.append((raw[at + 2], raw[at + 3 : at + 2 + length]))
        at += 2 + length
    return tags


def as_run(cells: CellIndex) -> tuple[Bytes, Int64s]:
    """The cells as a run, and where each begins in it. Also takes cells of an HFile, which have another layout."""
    run, starts = kernels.lay_run(cells.buffer, cells.position, cells.tags_start, cells.tags_length)
    return run, starts


def gather(buffer: Bytes, starts: Int64s, ends: Int64s) -> Bytes:
    """Concatenate the ranges `buffer[start:end]` into a new array."""
    _, data = kernels.gather(buffer, starts, ends - starts)
    copied: Bytes = data
    return copied


def binary_column(buffer: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    """The slices `buffer[starts:starts+lengths]` as an Arrow binary array. Raises OverflowError beyond 2 GiB."""
    offsets, data = kernels.gather(buffer, starts, lengths)
    if len(data) > np.iinfo(np.int32).max:
        raise OverflowError(f"{len(data)} bytes in one Arrow binary column: read smaller batches")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def number_column(values: npt.NDArray[np.integer]) -> pa.Array:
    """Integers as an Arrow array; contiguous ones are not copied.

    Replaces `pa.array`, whose first call imports pandas: 0.3 s in a Python worker.
    """
    packed = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(packed.dtype), len(packed), [None, pa.py_buffer(packed)])


def cells_to_arrow(index: CellIndex) -> pa.RecordBatch:
    """The cells as CELL_SCHEMA, in the index's order."""
    columns = [
        binary_column(index.buffer, index.row_start, index.row_length),
        binary_column(index.buffer, index.family_start, index.family_length),
        binary_column(index.buffer, index.qualifier_start, index.qualifier_length),
        number_column(index.timestamp),
        number_column(index.type.astype(np.int16)),
        binary_column(index.buffer, index.value_start, index.value_length),
        binary_column(index.buffer, index.tags_start, index.tags_length),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CELL_SCHEMA)

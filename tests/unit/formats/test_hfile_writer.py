"""What is written to an HFile is read back, cell by cell; HBase's own reader is asked in tests/integration."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.formats import hfile_writer
from walferry.formats.cells import Bytes, CellType, Int64s, cell_starts, cells_to_arrow, encode_cell, index_cells
from walferry.formats.hfile import of_bytes
from walferry.formats.hfile_writer import COMPRESSIONS, ENCODINGS, StoreFormat, WrittenFile, hfile_chunks
from walferry.formats.order import store_order, winners

CELLS = st.builds(
    encode_cell, st.binary(max_size=12), st.just(b"f"), st.binary(max_size=5),
    st.integers(0, 5) | st.integers(0, 2**63 - 1),
    st.sampled_from(CellType), st.binary(max_size=40) | st.just(b"v" * 3000),
    st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=9)), max_size=2),
)  # fmt: skip


def sorted_cells(cells: Sequence[bytes]) -> tuple[Bytes, Int64s]:
    """As a file takes them."""
    buffer = np.frombuffer(b"".join(cells), np.uint8)
    positions = cell_starts(buffer)
    positions = positions[store_order(buffer, positions, np.arange(len(positions)))]
    return buffer, positions[winners(buffer, positions)]


def file_of(batches: Sequence[tuple[Bytes, Int64s]], format: StoreFormat) -> tuple[bytes, WrittenFile]:
    written = WrittenFile()
    return b"".join(hfile_chunks(batches, format, 1234, written)), written


def told(buffer: Bytes, positions: Int64s) -> list[tuple[Any, ...]]:
    cells = [buffer[at : at + 4 + int.from_bytes(buffer[at : at + 4].tobytes(), "big")].tobytes() for at in positions]
    columns = cells_to_arrow(index_cells(np.frombuffer(b"".join(cells), np.uint8))).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def read_back(data: bytes) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for batch in of_bytes(data, "written").batches():
        assert not batch.sequence.any()
        found += zip(*(column.to_pylist() for column in cells_to_arrow(batch.cells).columns), strict=True)
    return found


@pytest.mark.parametrize(
    ("codec", "encoding"), [*((codec, "NONE") for codec in COMPRESSIONS), *(("NONE", name) for name in ENCODINGS)]
)
@given(
    cells=st.lists(CELLS, min_size=1, max_size=60), bloom=st.sampled_from(["NONE", "ROW", "ROWCOL"]),
    block=st.sampled_from([1, 200, 65536]), cut=st.integers(0, 60),
)  # fmt: skip
def test_cells_are_read_as_they_were_written(
    codec: str, encoding: str, cells: list[bytes], bloom: str, block: int, cut: int
) -> None:
    buffer, positions = sorted_cells(cells)
    data, written = file_of(
        [(buffer, positions[:cut]), (buffer, positions[cut:])], StoreFormat(block, codec, encoding, bloom)
    )
    expected = told(buffer, positions)
    assert read_back(data) == expected
    assert (written.cells, written.size) == (len(positions), len(data))
    assert (written.first_row, written.last_row) == (expected[0][0], expected[-1][0])


def many(count: int) -> tuple[Bytes, Int64s]:
    return sorted_cells([encode_cell(b"row%07d" % n, b"f", b"q", 7, CellType.PUT, b"v" * 20) for n in range(count)])


def test_a_large_file_has_an_index_of_two_levels_and_full_chunks_of_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hfile_writer, "INDEX_BLOCK_BYTES", 500)
    monkeypatch.setattr(hfile_writer, "BLOOM_BYTES", 1 << 10)
    monkeypatch.setattr(hfile_writer, "OUT_BYTES", 50_000)
    cells = many(20_000)
    data, _ = file_of([cells], StoreFormat(2000))
    file = of_bytes(data, "large")
    assert file.trailer.num_data_index_levels == 2
    assert data.count(b"BLMFBLK2") > 20
    assert read_back(data) == told(*cells)
    (batch,) = file.batches(b"row0012345", b"row0012347")
    assert [batch.cells.row(number) for number in range(len(batch))] == [b"row0012345", b"row0012346"]


def test_a_cell_larger_than_all_buffers_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hfile_writer, "OUT_BYTES", 50_000)
    cells = sorted_cells([encode_cell(b"%d" % n, b"f", b"q" * 5000, 7, CellType.PUT, b"v" * 400_000) for n in range(3)])
    data, _ = file_of([cells], StoreFormat(bloom="ROWCOL"))
    assert read_back(data) == told(*cells)


@pytest.mark.parametrize("batches", [[(1, 0)], [(1,), (0,)], [(0, 0)], [(0,), (0,)]])
def test_cells_out_of_order_are_no_file(batches: list[tuple[int, ...]]) -> None:
    buffer, positions = many(2)
    with pytest.raises(ValueError, match="not in order"):
        file_of([(buffer, positions[list(chosen)]) for chosen in batches], StoreFormat())


def test_no_cells_are_no_file() -> None:
    assert file_of([(np.empty(0, np.uint8), np.empty(0, np.int64))], StoreFormat()) == (b"", WrittenFile())


@pytest.mark.parametrize(("kind", "least"), [(CellType.DELETE_COLUMN, 0), (CellType.DELETE_FAMILY, 0),
                                             (CellType.DELETE, 5), (CellType.PUT, 5)])  # fmt: skip
def test_a_file_whose_markers_cover_older_cells_is_never_skipped_by_its_times(kind: CellType, least: int) -> None:
    data, _ = file_of([sorted_cells([encode_cell(b"r", b"f", b"", 5, kind)])], StoreFormat())
    assert of_bytes(data, "times").time_range == (least, 5)


def murmur(data: bytes, seed: int) -> int:
    """MurmurHash.hash of HBase, written down once more."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = seed ^ len(data)
    whole = len(data) // 4 * 4
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    tail = struct.unpack(f"{len(data) - whole}b", data[whole:])
    for number in reversed(range(len(tail))):
        h ^= tail[number] << 8 * number & mask
    if tail:
        h = h * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize(("bloom", "hashes"), [("ROW", 7), ("ROWCOL", 8)])
def test_a_filter_knows_each_key_and_hardly_another(bloom: str, hashes: int) -> None:
    rows = [b"\xf0row%d" % n * (n % 3 + 1) for n in range(3000)]
    cells = sorted_cells([encode_cell(row, b"f", b"q\xff", 7, CellType.PUT) for row in rows])
    data, _ = file_of([cells], StoreFormat(bloom=bloom))
    at = data.index(b"BLMFBLK2")
    size = int.from_bytes(data[at + 12 : at + 16], "big")
    bits = np.unpackbits(np.frombuffer(data[at + 33 : at + 33 + size], np.uint8), bitorder="little")
    assert size < hfile_writer.BLOOM_BYTES, "it is folded"

    def known(row: bytes) -> bool:
        key = row if bloom == "ROW" else struct.pack(">H", len(row)) + row + b"\0q\xff\x7f" + b"\xff" * 8
        first = murmur(key, 0)
        second = murmur(key, first)
        numbers = np.array([first + n * second for n in range(hashes)], np.uint64).astype(np.uint32).view(np.int32)
        return bool(bits[np.abs(numbers.astype(np.int64)) % len(bits)].all())

    assert all(known(row) for row in rows)
    assert sum(known(b"other%d" % n) for n in range(3000)) < 90

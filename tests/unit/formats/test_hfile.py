"""HFiles of every encoding are read as HBase reads them, whole or by rows; damage is told and never becomes cells."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from walferry.errors import DamagedInputError, UnreadableInputError
from walferry.formats import hfile
from walferry.formats.cells import cells_to_arrow
from walferry.formats.hfile import HFile, StoredCells, of_bytes

FOLDER = Path(__file__).parents[2] / "fixtures" / "hfile"
KINDS = sorted(path.stem for path in FOLDER.glob("*.hfile"))
Told = tuple[bytes, bytes, bytes, int, int, bytes, bytes, int]
"""row, family, qualifier, timestamp, type, value, tags, sequence number"""


def open_file(kind: str) -> HFile:
    return of_bytes(data_of(kind), kind)


@cache
def data_of(kind: str) -> bytes:
    return (FOLDER / f"{kind}.hfile").read_bytes()


@cache
def as_hbase_reads(name: str) -> list[Told]:
    """What HBase's own reader found."""
    found: list[Told] = []
    for line in gzip.decompress((FOLDER / f"{name}.tsv.gz").read_bytes()).decode().splitlines():
        row, family, qualifier, timestamp, kind, value, tags, sequence = line.split("\t")
        plain = base64.b64decode
        found.append((
            plain(row), plain(family), plain(qualifier), int(timestamp), int(kind), plain(value), plain(tags),
            int(sequence),
        ))  # fmt: skip
    return found


def expected(kind: str) -> list[Told]:
    return as_hbase_reads("untagged" if kind.startswith("untagged") else "cells")


def told(batches: Iterable[StoredCells]) -> list[Told]:
    found: list[Told] = []
    for batch in batches:
        columns = [column.to_pylist() for column in cells_to_arrow(batch.cells).columns]
        found += zip(*columns, batch.sequence.tolist(), strict=True)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_those_that_hbase_reads(kind: str) -> None:
    file = open_file(kind)
    assert told(file.batches()) == expected(kind)
    assert len(file) == len(expected(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_at_a_time_gives_the_same_cells(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hfile, "BATCH_BYTES", 1)
    monkeypatch.setattr(hfile, "_TAIL_BYTES", 5000)
    batches = list(open_file(kind).batches())
    assert len(batches) > 10
    assert told(batches) == expected(kind)


ROWS = sorted({cell[0] for cell in as_hbase_reads("cells") + as_hbase_reads("untagged")})
BORDERS = st.sampled_from(ROWS) | st.sampled_from(ROWS).map(lambda row: row + b"\0") | st.binary(max_size=3)


@given(kind=st.sampled_from(KINDS), start=BORDERS, stop=BORDERS)
@example(kind="none", start=b"", stop=b"")
@example(kind="none", start=b"\xff\xff\xff", stop=b"")
def test_a_range_of_rows_has_all_their_cells_and_no_others(kind: str, start: bytes, stop: bytes) -> None:
    wanted = [cell for cell in expected(kind) if start <= cell[0] and (not stop or cell[0] < stop)]
    assert told(open_file(kind).batches(start, stop)) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_is_found_by_the_index_and_reads_little_else(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hfile, "BATCH_BYTES", 4000)
    data, read = data_of(kind), 0

    def pieces(offset: int, length: int) -> Iterator[bytes]:
        nonlocal read
        for at in range(offset, offset + length, 100):
            piece = data[at : min(at + 100, offset + length)]
            read += len(piece)
            yield piece

    file = HFile(pieces, len(data), kind)
    read = 0
    row = expected(kind)[-1][0]
    assert told(file.batches(row, row + b"\0"))
    assert read < len(data) / 4


@pytest.mark.parametrize("kind", KINDS)
def test_rows_between_parts_cut_a_file_into_similar_ones(kind: str) -> None:
    file = open_file(kind)
    borders = [b"", *file.rows_between(4), b""]
    parts = [told(file.batches(*pair)) for pair in pairwise(borders)]
    assert [cell for part in parts for cell in part] == expected(kind)
    assert len(parts) == 4
    assert max(map(len, parts)) < 2 * min(map(len, parts))


def test_a_file_says_which_rows_it_has() -> None:
    for kind in KINDS:
        assert open_file(kind).rows == (expected(kind)[0][0], expected(kind)[-1][0])


def test_a_file_says_which_times_it_has() -> None:
    for kind in KINDS:
        assert open_file(kind).time_range == (0, max(cell[3] for cell in expected(kind)))


def read_whole(data: bytes, name: str) -> list[Told] | DamagedInputError:
    """All cells, or the error that says what is damaged."""
    try:
        return told(of_bytes(data, name).batches())
    except DamagedInputError as error:
        return error


@given(kind=st.sampled_from([kind for kind in KINDS if kind != "unchecked"]), data=st.data())
def test_a_flipped_bit_is_found_or_changes_nothing(kind: str, data: st.DataObject) -> None:
    damaged = bytearray(data_of(kind))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = read_whole(bytes(damaged), kind)
    if isinstance(found, DamagedInputError):
        assert (found.file, 0 <= found.offset <= len(damaged)) == (kind, True)
        assert kind in str(found)
    else:
        assert found == expected(kind)


@given(kind=st.sampled_from(KINDS), data=st.data())
def test_no_end_is_taken_for_a_whole_file(kind: str, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(data_of(kind)) - 1))
    with pytest.raises(DamagedInputError):
        told(of_bytes(data_of(kind)[:end], kind).batches())


@given(seed=st.integers(0, 2**32 - 1), flips=st.integers(1, 20))
def test_damage_that_no_checksum_shows_neither_crashes_nor_takes_memory(seed: int, flips: int) -> None:
    random = np.random.default_rng(seed)
    damaged = bytearray(data_of("unchecked"))
    for at in random.integers(0, len(damaged) - 4096, flips):
        damaged[at] = random.integers(0, 256)
    found = read_whole(bytes(damaged), "unchecked")
    if not isinstance(found, DamagedInputError):
        assert sum(len(cell[5]) + len(cell[6]) for cell in found) <= len(damaged)


def test_files_of_hbase_1_whose_minor_version_is_0_are_read() -> None:
    data = data_of("none")
    assert data[-4:] == b"\x03\0\0\x03"
    assert told(of_bytes(data[:-4] + b"\0\0\0\x03", "older").batches()) == expected("none")


def test_files_without_hbases_checksums_are_refused_by_their_version() -> None:
    data = data_of("none")
    trailer = data[-4096:-4].rstrip(b"\0").ljust(208, b"\0")
    with pytest.raises(UnreadableInputError, match=r"version 2, minor version 0; 2\.3 and"):
        of_bytes(data[:-4096] + trailer + b"\0\0\0\x02", "old")


def test_a_file_of_another_kind_is_no_hfile() -> None:
    for data in (b"", b"PWAL", bytes(5000)):
        with pytest.raises(DamagedInputError, match="does not end with an HFile's trailer"):
            of_bytes(data, "a.wal")


def test_an_encrypted_file_is_refused_by_that_name() -> None:
    file = open_file("none")
    trailer = file.trailer
    trailer.encryption_key = b"wrapped"
    message = trailer.SerializeToString()
    end = b'TRABLK"$' + bytes([len(message) & 0x7F | 0x80, len(message) >> 7]) + message
    data = data_of("none")[:-4096] + end.ljust(4092, b"\0") + b"\x03\0\0\x03"
    with pytest.raises(UnreadableInputError, match="encrypted"):
        of_bytes(data, "secret")

"""Decompression of values, as the codecs of HBase write them."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.formats.compressed_builder import Compressor, in_blocks
from unit.formats.wal_builder import TRAILER, entry
from walferry.errors import DamagedInputError, UnreadableInputError
from walferry.formats import _value_kernels as kernels
from walferry.formats.cells import encode_cell
from walferry.formats.value_codecs import ALGORITHMS, CODECS
from walferry.formats.wal import Ending, EntryBatch, WalReader


def by(codec: str) -> Callable[[bytes], bytes]:
    chunk = pa.Codec(codec)
    return lambda plain: bytes(chunk.compress(plain, asbytes=True))


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "GZ": lambda value: gzip.compress(value, mtime=0),
    "NONE": lambda value: value,
    "SNAPPY": in_blocks(by("snappy"), 100),
    "LZ4": in_blocks(by("lz4_raw"), 100),
    "ZSTD": in_blocks(by("zstd"), 100),
    "ZSTD frame": by("zstd"),
}


def decompress(kind: str, data: bytes, length: int) -> bytes | None:
    """None when it is refused."""
    to = bytearray(b"\xaa" * (length + 8))
    done = CODECS[kind.split()[0]].decompress(memoryview(data), memoryview(to)[:length])
    assert to[length:] == b"\xaa" * 8
    return bytes(to[:length]) if done else None


def compressor(kind: str) -> Compressor:
    return Compressor(value=COMPRESS[kind], algorithm=ALGORITHMS.index(kind.split()[0]))


@pytest.mark.parametrize("kind", COMPRESS)
@settings(max_examples=100)
@given(value=st.binary(min_size=1, max_size=400) | st.builds(bytes, st.integers(1, 5000)))
def test_a_value_comes_back(kind: str, value: bytes) -> None:
    data = COMPRESS[kind](value)
    assert decompress(kind, data, len(value)) == value
    assert len(value) <= CODECS[kind.split()[0]].max_ratio * len(data)


@pytest.mark.parametrize("kind", COMPRESS)
def test_bytes_that_are_not_the_whole_value_are_refused(kind: str) -> None:
    rng = random.Random(5)
    value = b"some text, some text" * 10 + rng.randbytes(50)
    data = COMPRESS[kind](value)
    for cut in range(len(data)):
        assert decompress(kind, data[:cut], len(value)) is None, cut
    assert decompress(kind, data, len(value) - 1) is None
    assert decompress(kind, data, len(value) + 1) is None
    assert decompress(kind, data + b"\x01", len(value)) is None
    assert decompress(kind, data + b"\0", len(value)) is None


def decompress_all(kind: str, parts: list[bytes], lengths: list[int]) -> tuple[int, bytes]:
    """The number of the first value that is refused, and what was made."""
    sizes = [len(part) for part in parts]
    values = np.array([np.cumsum([3, *sizes])[:-1], sizes, np.cumsum([2, *lengths])[:-1], lengths])
    out = np.zeros(sum(lengths) + 4, np.uint8)
    raw = np.frombuffer(b"abc" + b"".join(parts) + b"x", np.uint8)
    return CODECS[kind.split()[0]].decompress_all(raw, values, out), out.tobytes()


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("longest", [1, 90, 700, 20_000])
def test_values_that_are_decompressed_together_come_back_each_in_its_place(kind: str, longest: int) -> None:
    rng = random.Random(longest)
    values = [bytes(rng.choices(b"ab", k=rng.randrange(1, longest + 1))) for _ in range(50)]
    parts = [COMPRESS[kind](value) for value in values]
    lengths = [len(value) for value in values]
    assert decompress_all(kind, parts, lengths) == (-1, b"\0\0" + b"".join(values) + b"\0\0")
    for wrong in (0, 17, 49):
        for change in (-1, 1):
            claimed = [length + change * (number == wrong) for number, length in enumerate(lengths)]
            # Together they make as much as they claim: what one lacks, another one seems to have.
            claimed[(wrong + 1) % 50] -= change
            refused, _ = decompress_all(kind, parts, claimed)
            assert refused == min(wrong, (wrong + 1) % 50), (wrong, change)
        damaged = [*parts[:wrong], parts[wrong][:-1], *parts[wrong + 1 :]]
        assert decompress_all(kind, damaged, lengths)[0] == wrong


def frame(*blocks: bytes, size: int) -> bytes:
    """A ZSTD frame that makes `size` bytes, of blocks with their headers."""
    return b"\x28\xb5\x2f\xfd\x20" + bytes([size]) + b"".join(blocks)


def raw_block(data: bytes, claimed: int) -> bytes:
    """A last block of plain bytes, which claims so many."""
    return (claimed << 3 | 1).to_bytes(3, "little") + data


HELLO = frame(raw_block(b"hello", 5), size=5)
CHECKED = zstandard.ZstdCompressor(write_checksum=True).compress(b"hello")
SKIPPED = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
GZ_HELLO = gzip.compress(b"hello", mtime=0)
NOT_A_VALUE = {
    "junk after a member": ("GZ", GZ_HELLO + b"junk" + (5).to_bytes(4, "little")),
    "an empty member after a member": ("GZ", GZ_HELLO + gzip.compress(b"") + (5).to_bytes(4, "little")),
    "two members": ("GZ", gzip.compress(b"he") + gzip.compress(b"llo")),
    "a skippable frame after a frame": ("ZSTD", HELLO + SKIPPED),
    "an empty frame after a frame": ("ZSTD", HELLO + frame(raw_block(b"", 0), size=0)),
    "a skippable frame in a block": ("ZSTD", in_blocks(lambda _: HELLO + SKIPPED, 100)(b"hello")),
    "a checksum that is cut off": ("ZSTD", CHECKED[:-4]),
}


@pytest.mark.parametrize("what", NOT_A_VALUE)
def test_what_is_refused_singly_is_refused_together(what: str) -> None:
    kind, data = NOT_A_VALUE[what]
    good = {"GZ": GZ_HELLO, "ZSTD": HELLO}[kind]
    assert decompress(kind, data, 5) is None
    assert decompress_all(kind, [good, good, data, good], [5] * 4)[0] == 2
    assert decompress_all(kind, [good, good, good], [5] * 3) == (-1, b"\0\0" + b"hello" * 3 + b"\0\0")


def test_frames_of_every_kind_of_block_are_known_to_end_where_they_do() -> None:
    run = frame((5 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x", size=5)
    two = frame((2 << 3).to_bytes(3, "little") + b"he", raw_block(b"llo", 3), size=5)
    for data in (HELLO, CHECKED, run, two):
        values = np.array([[1], [len(data)], [0], [5]])
        raw = np.frombuffer(b"x" + data + b"y", np.uint8)
        assert kernels.gather_zstd(raw, values, np.zeros(len(data), np.uint8)) == len(data)
        assert decompress_all("ZSTD", [data, data], [5, 5])[0] == -1


def test_a_frame_that_takes_in_the_beginning_of_the_next_value_is_refused() -> None:
    # Of 9 bytes the first frame holds 3; the next value's begins with 6 that would be the rest.
    first = frame(raw_block(b"AAA", 9), size=9)
    second = HELLO[:6] + frame(raw_block(b"WORLD", 5), size=5)
    values = [(9).to_bytes(4, "big") + len(first).to_bytes(4, "big") + first]
    values.append((5).to_bytes(4, "big") + len(second).to_bytes(4, "big") + second)
    assert decompress_all("ZSTD", values, [9, 5])[0] == 0
    assert decompress_all("ZSTD", [HELLO, second], [5, 5])[0] == 1


def test_a_member_that_lies_about_its_length_takes_no_more_than_its_value_may() -> None:
    member = gzip.compress(bytes(50 << 20), mtime=0)
    lying = member[:-4] + (4096).to_bytes(4, "little")
    tracemalloc.start()
    refused, _ = decompress_all("GZ", [lying], [4096])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused == 0
    assert peak < 1 << 20


@pytest.mark.parametrize("kind", COMPRESS)
def test_damage_never_raises(kind: str) -> None:
    rng = random.Random(6)
    value = b"some text, some text" * 10 + rng.randbytes(50)
    data = COMPRESS[kind](value)
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        decompress(kind, bytes(damaged), len(value))


def test_the_empty_block_after_a_long_value_is_passed_over() -> None:
    value = bytes(range(256)) * 4
    assert decompress("SNAPPY", COMPRESS["SNAPPY"](value) + bytes(4), len(value)) == value


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("batch_bytes", [300, 1 << 20])
def test_a_file_with_compressed_values_reads_as_the_plain_one(kind: str, batch_bytes: int) -> None:
    rng = random.Random(7)
    of = compressor(kind)
    lengths = [0, 1, 30, 1000, 0, 500, 20_000]
    entries = [
        [
            encode_cell(b"r%d" % (i % 7), b"f", b"q", i, 4, rng.randbytes(rng.choice(lengths)), [(8, b"ttl")])
            for _ in range(5)
        ]
        for i in range(30)
    ]
    data = of.header + b"".join(of.entry(cells, i) for i, cells in enumerate(entries)) + TRAILER
    reader = WalReader((data[at : at + 777] for at in range(0, len(data), 777)), "file", batch_bytes=batch_bytes)
    found = [
        batch.buffer[start:end].tobytes() for batch in reader for start, end in zip(batch.start, batch.end, strict=True)
    ]
    assert found == [entry(cells, i) for i, cells in enumerate(entries)]
    assert reader.ending is Ending.WHOLE


@pytest.mark.parametrize("trailer", [TRAILER, b""], ids=["closed", "killed"])
@pytest.mark.parametrize("batch_bytes", [300, 1 << 20])
@pytest.mark.parametrize("kind", ["GZ", "SNAPPY"])
def test_a_value_that_cannot_be_decompressed_is_damage_at_its_entry(
    kind: str, batch_bytes: int, trailer: bytes
) -> None:
    of = compressor(kind)
    cell = encode_cell(b"r", b"f", b"q", 1, 4, b"some value " * 20)
    first, second, third = (of.entry([cell, cell], number) for number in range(3))
    damaged = bytearray(second)
    last = len(second) - len(COMPRESS[kind](b"some value " * 20))
    damaged[last + 1] ^= 0xFF  # magic of a gzip member, length of a block
    reader = WalReader([of.header, first, bytes(damaged), third, trailer], "file", batch_bytes=batch_bytes)
    read: list[EntryBatch] = []
    with pytest.raises(DamagedInputError, match="cannot be decompressed") as raised:
        read.extend(reader)
    assert [len(batch) for batch in read] == [1]
    assert raised.value.offset == len(of.header + first)


def test_a_value_that_claims_more_than_its_bytes_can_make_is_damage_before_room_is_made_for_it() -> None:
    of = Compressor(value=lambda value: b"\0" * 30, algorithm=ALGORITHMS.index("GZ"))
    data = of.header + of.entry([encode_cell(b"r", b"f", b"q", 1, 4, bytes(1 << 20))]) + TRAILER
    with pytest.raises(DamagedInputError, match="as long as its cell says"):
        list(WalReader([data], "file"))


@pytest.mark.parametrize("number", [0, 5, 7, 8, 9, 2000])
def test_an_algorithm_that_is_not_read_is_refused_by_name(number: int) -> None:
    name = ALGORITHMS[number] if number < len(ALGORITHMS) else f"algorithm {number}"
    with pytest.raises(UnreadableInputError, match=f"values compressed by {name}"):
        WalReader([Compressor(value=bytes, algorithm=number).header], "file")

"""The reader of encrypted WALs: entries, keys, and what is wrong with either."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.formats.encrypted_builder import FILE_KEY, MASTER_KEY, SECURE_CODEC, encrypted_entry, encrypted_header
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import DamagedInputError, UnreadableInputError, WalKeyError
from walferry.formats import wal_decoders
from walferry.formats.cells import encode_cell
from walferry.formats.wal import Ending, EntryBatch, WalReader


@pytest.fixture(autouse=True, scope="module")
def few_entries_a_batch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_decoders, "ENTRIES_PER_BATCH", 50)
        yield


def reader(data: bytes, size: int = 1 << 20, batch_bytes: int = 1 << 20, key: bytes = MASTER_KEY) -> WalReader:
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    return WalReader(chunks, "some.wal", batch_bytes=batch_bytes, keys=lambda: {"hbase": key})


def some_cells(seed: int) -> list[list[bytes]]:
    rng = random.Random(seed)
    return [
        [
            encode_cell(
                b"row-%d" % rng.randrange(99),
                b"f",
                rng.choice([b"", b"qualifier"]),
                rng.getrandbits(40),
                rng.choice([4, 4, 4, 12]),
                rng.randbytes(rng.choice([0, 1, 16, 300])),
                [(8, rng.randbytes(8))] * rng.randrange(3),
            )
            for _ in range(rng.randrange(6))
        ]
        for _ in range(60)
    ]


CELLS = some_cells(1)
PLAIN = [entry(cells, number) for number, cells in enumerate(CELLS)]
ENTRIES = [encrypted_entry(cells, number) for number, cells in enumerate(CELLS)]
STARTS = list(itertools.accumulate(map(len, ENTRIES), initial=len(encrypted_header())))
DATA = encrypted_header() + b"".join(ENTRIES) + TRAILER


def plain_entries(batch: EntryBatch) -> list[bytes]:
    return [batch.buffer[start:end].tobytes() for start, end in zip(batch.start, batch.end, strict=True)]


@pytest.mark.parametrize(("size", "batch_bytes"), [(1, 64), (7, 300), (4096, 1000), (1 << 20, 1 << 20)])
def test_an_encrypted_file_reads_as_the_plain_one(size: int, batch_bytes: int) -> None:
    wal = reader(DATA, size, batch_bytes)
    batches = list(wal)
    assert [one for batch in batches for one in plain_entries(batch)] == PLAIN
    assert [offset for batch in batches for offset in batch.offset.tolist()] == STARTS[:-1]
    assert (wal.ending, wal.end) == (Ending.WHOLE, STARTS[-1])


def test_an_entry_of_more_cells_than_fit_is_read_whole() -> None:
    cells = [encode_cell(b"r%d" % i, b"f", b"q", 1, 4, b"v") for i in range(333)]
    data = encrypted_header() + ENTRIES[1] + encrypted_entry(cells, 7) + ENTRIES[2] + TRAILER
    found = [one for batch in reader(data) for one in plain_entries(batch)]
    assert found == [PLAIN[1], entry(cells, 7), PLAIN[2]]


def test_a_file_cut_anywhere_is_unfinished_and_is_read_on_from_there() -> None:
    for cut in range(STARTS[0], len(DATA), 97):
        wal = reader(DATA[:cut])
        found = [one for batch in wal for one in plain_entries(batch)]
        assert found == PLAIN[: sum(end <= cut for end in STARTS[1:])]
        assert wal.ending is Ending.UNFINISHED
        wal.resume([DATA[wal.needs :]])
        assert found + [one for batch in wal for one in plain_entries(batch)] == PLAIN
        assert (wal.ending, wal.end) == (Ending.WHOLE, STARTS[-1])


@settings(max_examples=200)
@given(at=st.integers(STARTS[0], len(DATA) - 1), flip=st.integers(1, 255), batch_bytes=st.sampled_from([300, 1 << 20]))
def test_a_flipped_byte_never_touches_the_entries_before_it(at: int, flip: int, batch_bytes: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= flip
    wal = reader(bytes(damaged), batch_bytes=batch_bytes)
    found: list[bytes] = []
    with suppress(DamagedInputError):
        for batch in wal:
            found += plain_entries(batch)
        assert wal.ending is Ending.WHOLE or at >= STARTS[-1]
    before = sum(end <= at for end in STARTS[1:])
    assert found[:before] == PLAIN[:before]


def test_a_wrong_key_is_no_damage() -> None:
    with pytest.raises(WalKeyError, match="another key than hbase") as raised:
        reader(DATA, key=bytes(16))
    assert raised.value.exit_code == 2
    assert MASTER_KEY.hex() not in str(raised.value)


def test_the_right_key_is_found_among_several() -> None:
    keys = {"old": bytes(16), "short": b"x", "new": MASTER_KEY}
    wal = WalReader([DATA], "some.wal", keys=lambda: keys)
    assert sum(len(batch) for batch in wal) == len(PLAIN)


@pytest.mark.parametrize("trailer", [TRAILER, b""], ids=["closed", "killed"])
@pytest.mark.parametrize("first", [True, False])
def test_cells_that_do_not_decrypt_with_the_right_key_are_damage(first: bool, trailer: bytes) -> None:
    damaged = bytearray(DATA.removesuffix(TRAILER) + trailer)
    second = next(i for i, cells in enumerate(CELLS) if (first or i) and cells)
    key_bytes = len(entry([], second, following_kv_count=len(CELLS[second])))
    damaged[STARTS[second] + key_bytes + 1] ^= 0xFF  # its IV
    found: list[EntryBatch] = []
    with pytest.raises(DamagedInputError, match="cell") as raised:
        found.extend(reader(bytes(damaged)))
    assert sum(map(len, found)) == second
    assert raised.value.offset == STARTS[second]


def test_without_a_trailer_a_length_that_runs_past_the_end_over_whole_entries_is_damage() -> None:
    cell = encode_cell(b"r", b"f", b"q", 1, 4, b"value")
    first, second, third = (encrypted_entry([cell], number) for number in range(3))
    at = len(entry([], 1, following_kv_count=1)) + 17
    damaged = second[:at] + b"\xff\x7f" + second[at + 1 :]
    with pytest.raises(DamagedInputError, match="although a whole one") as raised:
        list(reader(encrypted_header() + first + damaged + third))
    assert raised.value.offset == len(encrypted_header() + first)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"algorithm": None}, "unknown way, by nothing"),
        ({"algorithm": "DES"}, "unknown way, by DES"),
        ({"iv": b"short"}, "unknown way"),
        ({"hash_algorithm": "CRC"}, "hashed by CRC"),
        ({"hash_algorithm": "SHAKE-128"}, "hashed by SHAKE-128"),
    ],
)
def test_a_wrapped_key_that_is_none_is_damage(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(DamagedInputError, match=named):
        reader(encrypted_header(**fields) + ENTRIES[0])


def test_a_key_may_be_hashed_by_another_algorithm_or_not_at_all() -> None:
    sha = {"hash": hashlib.sha256(FILE_KEY).digest(), "hash_algorithm": "SHA-256"}
    for fields in (sha, {"hash": None}):
        (batch,) = reader(encrypted_header(**fields) + ENTRIES[1])
        assert plain_entries(batch) == [PLAIN[1]]


def test_a_secure_writer_without_encryption_writes_plain_cells() -> None:
    data = header(writer_cls_name="SecureProtobufLogWriter", cell_codec_cls_name=SECURE_CODEC) + PLAIN[1] + TRAILER
    (batch,) = WalReader([data], "some.wal")
    assert plain_entries(batch) == [PLAIN[1]]


def test_a_codec_that_does_not_encrypt_in_an_encrypted_file_is_refused() -> None:
    with pytest.raises(UnreadableInputError, match="which does not encrypt"):
        WalReader([header(encryption_key=b"k")], "some.wal")

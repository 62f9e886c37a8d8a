"""The reader of dictionary-compressed WALs, on built files and on those of a real HBase."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.formats.compressed_builder import Compressor
from unit.formats.wal_builder import TRAILER, entry
from walferry.errors import DamagedInputError, UnfinishedInputError
from walferry.formats import wal_decoders
from walferry.formats._expand_kernels import FILLED, NEEDED, OUT_FULL, TAGS_LEFT, expand_entries
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2
from walferry.formats.wal import Ending, EntryBatch, WalReader

REGIONS = [b"%032x" % number for number in range(5)]


@dataclass(frozen=True)
class Written:
    """A compressed file without trailer, its entries as plain ones, and where each begins; last, where they end."""

    data: bytes
    plain: list[bytes]
    starts: list[int]


@dataclass(frozen=True)
class Read:
    """What reading a file came to."""

    entries: list[bytes]
    offsets: list[int]
    ending: Ending | None
    error: DamagedInputError | UnfinishedInputError | None


@pytest.fixture(autouse=True, scope="module")
def few_entries_a_batch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_decoders, "ENTRIES_PER_BATCH", 1000)
        yield


def write(compressor: Compressor, entries: Sequence[tuple[list[bytes], dict[str, Any]]]) -> Written:
    compressed = [compressor.entry(cells, i + 1, **fields) for i, (cells, fields) in enumerate(entries)]
    plain = [entry(cells, i + 1, **fields) for i, (cells, fields) in enumerate(entries)]
    starts = list(itertools.accumulate(map(len, compressed), initial=len(compressor.header)))
    return Written(compressor.header + b"".join(compressed), plain, starts)


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def read(data: bytes, size: int = 1 << 20, batch_bytes: int = 1 << 20, recovered: bool = False) -> Read:
    entries: list[bytes] = []
    offsets: list[int] = []
    try:
        reader = WalReader(chunks(data, size), "some.wal", batch_bytes=batch_bytes, recovered=recovered)
        for batch in reader:
            entries += plain_entries(batch)
            offsets += batch.offset.tolist()
            assert reader.end == batch.offset_end[-1]
    except (DamagedInputError, UnfinishedInputError) as error:
        return Read(entries, offsets, None, error)
    assert reader.length == len(data)
    return Read(entries, offsets, reader.ending, None)


def plain_entries(batch: EntryBatch) -> list[bytes]:
    return [batch.buffer[start:end].tobytes() for start, end in zip(batch.start, batch.end, strict=True)]


def some_entries(seed: int, count: int) -> list[tuple[list[bytes], dict[str, Any]]]:
    """Entries whose names come again, in keys as in cells, so that every dictionary is in use."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        cells = [
            encode_cell(
                b"row-%d" % rng.randrange(40),
                rng.choice([b"f", b"g", b"family", b"METAFAMILY"]),
                rng.choice([b"", b"q%d" % rng.randrange(20)]),
                number,
                rng.choice([4, 4, 4, 8, 10, 12, 14]),
                rng.randbytes(rng.choice([0, 1, 40])),
                [(8, bytes([rng.randrange(9)])) for _ in range(rng.choice([0, 0, 1, 3]))],
            )
            for _ in range(rng.randrange(5))
        ]
        fields: dict[str, Any] = {
            "encoded_region_name": rng.choice(REGIONS),
            "table_name": rng.choice([b"t1", b"ns:t2"]),
            "scopes": [
                hbase_pb2.FamilyScope(family=f, scope_type=hbase_pb2.REPLICATION_SCOPE_GLOBAL)
                for f in rng.sample([b"f", b"g", b"h", b"i"], 2)
            ],
            "nonce": rng.getrandbits(64),
            "extended_attributes": [hbase_pb2.Attribute(key="k", value=b"v%d" % rng.randrange(3))] * rng.randrange(3),
        }
        found.append((cells, fields))
    return found


SMALL = write(Compressor(), some_entries(1, 6))


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize(("size", "batch_bytes"), [(1, 64), (7, 300), (4096, 1000), (1 << 20, 1 << 20)])
def test_a_compressed_file_reads_as_the_plain_one_in_chunks_and_batches_of_any_size(
    tags: bool, size: int, batch_bytes: int
) -> None:
    written = write(Compressor(tags=tags), some_entries(2, 300))
    found = read(written.data + TRAILER, size, batch_bytes)
    assert found.entries == written.plain
    assert found.offsets == written.starts[:-1]
    assert found.ending is Ending.WHOLE


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 20),
    capacities=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    size=st.sampled_from([1, 13, 1 << 20]),
    batch_bytes=st.sampled_from([64, 500, 1 << 20]),
)
def test_full_dictionaries_evict_what_was_not_used_for_the_longest_time(
    seed: int, capacities: tuple[int, int], size: int, batch_bytes: int
) -> None:
    many, columns = capacities
    compressor = Compressor(names=many, rows=many, columns=columns)
    written = write(compressor, some_entries(seed, 40))
    assert compressor.rows.evicted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_decoders, "MANY_NAMES", many)
        patch.setattr(wal_decoders, "COLUMN_NAMES", columns)
        assert read(written.data + TRAILER, size, batch_bytes).entries == written.plain


def test_the_dictionaries_are_as_large_as_those_of_hbase() -> None:
    rng = random.Random(3)
    compressor = Compressor()
    rows = [b"row-%d" % number for number in range(34_000)]
    chosen = [*rows, *(rng.choice(rows) for _ in range(20_000))]
    cells = [
        encode_cell(
            row, b"family-%d" % rng.randrange(150), b"q%d" % rng.randrange(200), 1, 4, b"", [(9, b"tag of " + row)]
        )
        for row in chosen
    ]
    written = write(compressor, [(cells[at : at + 500], {}) for at in range(0, len(cells), 500)])
    evicting = (compressor.rows, compressor.families, compressor.qualifiers, compressor.tags)
    assert all(dictionary.evicted for dictionary in evicting)
    assert read(written.data + TRAILER).entries == written.plain


def test_of_recovered_edits_one_region_and_one_table_are_kept() -> None:
    written = write(Compressor(names=1), some_entries(4, 50))
    assert read(written.data + TRAILER, recovered=True).entries == written.plain
    assert read(written.data + TRAILER).entries != written.plain


def test_a_compressed_file_cut_anywhere_is_unfinished_and_gives_the_whole_entries_before_the_cut() -> None:
    data = SMALL.data + TRAILER
    for cut in range(SMALL.starts[0], len(data)):
        whole = sum(end <= cut for end in SMALL.starts[1:])
        found = read(data[:cut], batch_bytes=300)
        assert found.entries == SMALL.plain[:whole], cut
        assert found.ending is Ending.UNFINISHED, (cut, found.error)


def test_a_compressed_file_goes_on_from_any_place_at_which_it_ended_before() -> None:
    data = SMALL.data + TRAILER
    for cut in range(SMALL.starts[0], len(data)):
        reader = WalReader([data[:cut]], "some.wal", batch_bytes=500)
        entries = [one for batch in reader for one in plain_entries(batch)]
        reader.resume([data[reader.needs :]])
        entries += [one for batch in reader for one in plain_entries(batch)]
        assert entries == SMALL.plain, cut
        assert (reader.ending, reader.length) == (Ending.WHOLE, len(data))


def test_a_flipped_byte_never_crashes_and_never_touches_the_entries_before_it() -> None:
    data = SMALL.data + TRAILER
    for at in range(SMALL.starts[0], len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            found = read(bytes(damaged), batch_bytes=500)
            before = sum(end <= at for end in SMALL.starts[1:])
            assert found.entries[:before] == SMALL.plain[:before], (at, flip)
            assert found.ending is Ending.WHOLE or isinstance(found.error, DamagedInputError), (at, flip)


def test_a_number_that_no_dictionary_has_is_damage_at_its_entry() -> None:
    known = encode_cell(b"r", b"f", b"q", 1, 4, b"v")
    compressor = Compressor()
    first, second = compressor.entry([known]), compressor.entry([known])
    row = len(second) - len(b"v") - 9 - 6
    for number in (b"\0\1", b"\x7f\xff", b"\xfe\0"):
        damaged = second[:row] + number + second[row + 2 :]
        found = read(compressor.header + first + damaged + TRAILER)
        assert found.entries == [entry([known])]
        assert isinstance(found.error, DamagedInputError)
        assert found.error.offset == len(compressor.header + first)
        assert "not in its dictionary" in found.error.reason


@pytest.mark.parametrize("at", [0, 1, 2], ids=["key", "value", "tags"])
def test_a_length_that_claims_too_much_in_an_unfinished_file_is_damage_if_entries_follow_it(at: int) -> None:
    compressor = Compressor()
    cell = encode_cell(b"r", b"f", b"q", 1, 4, b"value", [(8, b"tag")])
    first, second, third = (compressor.entry([cell], number) for number in range(3))
    lengths = len(second) - len(compressor.cell(cell))
    for claimed in (b"\xff\x7f", b"\xff\xff\x7f"):
        damaged = second[: lengths + at] + claimed + second[lengths + at + 1 :]
        found = read(compressor.header + first + damaged + third)
        assert found.entries == [entry([cell], 0)]
        assert isinstance(found.error, DamagedInputError), claimed
        assert found.error.offset == len(compressor.header + first)


def test_names_in_a_key_that_come_in_another_order_than_hbase_writes_are_damage() -> None:
    region, table = b"\x0a\x22\xff\x20" + REGIONS[0], b"\x12\x04\xff\x02t1"
    key = table + region + b"\x18\x01\x20\x01"
    found = read(Compressor().header + bytes([len(key)]) + key + TRAILER)
    assert isinstance(found.error, DamagedInputError)


def test_a_small_file_whose_entries_expand_a_thousandfold_is_read_in_bounded_memory() -> None:
    compressor = Compressor()
    qualifier = bytes(100_000)
    cell = encode_cell(b"r", b"f", qualifier, 1, 4, b"")
    entries = [compressor.entry([cell] * 10, number) for number in range(200)]
    data = compressor.header + b"".join(entries) + TRAILER  # 130 kB, expanded 200 MB
    tracemalloc.start()
    count = sum(len(batch) for batch in WalReader([data], "some.wal", batch_bytes=1 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 200
    assert peak < 40 << 20


def test_an_entry_that_no_server_accepts_is_damage_before_it_is_expanded() -> None:
    compressor = Compressor()
    cell = encode_cell(b"r", b"f", bytes(1 << 20), 1, 4, b"")
    data = compressor.header + compressor.entry([cell] * 2000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_decoders, "MAX_ENTRY_BYTES", 100 << 20)
        found = read(data + TRAILER, batch_bytes=1 << 20)
    assert isinstance(found.error, DamagedInputError)
    assert "longer than any server accepts" in found.error.reason


@pytest.mark.parametrize("polls", [1, 2, 3])
def test_tags_have_room_however_often_the_file_is_read_without_new_bytes_inside_them(polls: int) -> None:
    compressor = Compressor()
    cell = encode_cell(b"r", b"f", b"q", 1, 4, b"v", [(8, bytes(20_000)), (9, bytes(300)), (8, b"a")])
    data = compressor.header + compressor.entry([cell, cell], 1) + compressor.entry([cell], 2)
    for cut in (len(compressor.header) + 100, len(data) - 21_000, *range(len(data) - 3, len(data))):
        reader = WalReader([data[:cut]], "some.wal", batch_bytes=64)
        found = [one for batch in reader for one in plain_entries(batch)]
        for _ in range(polls):
            reader.resume([])
            found += [one for batch in reader for one in plain_entries(batch)]
            state, out = reader._decoder._work.state, reader._decoder._work.out  # type: ignore[attr-defined]
            assert state[FILLED] + state[TAGS_LEFT] <= len(out)
        reader.resume([data[reader.needs :]])
        found += [one for batch in reader for one in plain_entries(batch)]
        assert found == [entry([cell, cell], 1), entry([cell], 2)]


def test_a_tag_is_not_written_past_the_room_that_there_is() -> None:
    compressor = Compressor()
    cell = encode_cell(b"r", b"f", b"q", 1, 4, b"v", [(8, bytes(20_000))])
    data = compressor.header + compressor.entry([cell])
    reader = WalReader([data[:-100]], "some.wal", batch_bytes=64)
    assert list(reader) == []
    decoder = reader._decoder
    assert isinstance(decoder, wal_decoders.DictionaryEntries)
    kept = decoder._work.out[: decoder._work.state[FILLED] + 100]
    work = decoder._work._replace(out=kept.copy())
    rest = np.frombuffer(data[reader.needs :], np.uint8)
    status, at, _ = expand_entries(rest, 0, len(rest), reader.needs, work)
    assert (status, at) == (OUT_FULL, 0)
    assert work.state[NEEDED] == 20_003


def test_a_value_that_ends_like_a_trailer_ends_no_compressed_file_and_reading_goes_on_after_it() -> None:
    compressor = Compressor(tags=False)
    plain = [[encode_cell(b"r%d" % i, b"f", b"q", 1, 4, b"value\0\0\0\x08LAWP")] * 2 for i in range(3)]
    first, second, third = (compressor.entry(cells, i) for i, cells in enumerate(plain))
    data = compressor.header + first + second + third + TRAILER
    wanted = [entry(cells, i) for i, cells in enumerate(plain)]
    for cut, whole in ((len(compressor.header + first), 1), (len(compressor.header + first + second), 2)):
        reader = WalReader([data[:cut]], "some.wal", batch_bytes=500)
        found = [one for batch in reader for one in plain_entries(batch)]
        assert (found, reader.ending) == (wanted[:whole], Ending.UNFINISHED)
        for rest in (b"", data[cut:]):
            reader.resume([data[reader.needs : cut], rest])
            found += [one for batch in reader for one in plain_entries(batch)]
        assert (found, reader.ending) == (wanted, Ending.WHOLE)


def test_looking_past_what_may_be_a_trailer_takes_nothing() -> None:
    compressor = Compressor()
    cells = [encode_cell(b"r", b"f", b"q", 1, 4, b"value")] * 2
    data = compressor.header + compressor.entry(cells) + b"LAWP" + bytes(100)
    reader = WalReader([data[:-100]], "some.wal", batch_bytes=500)
    with pytest.raises(DamagedInputError, match="into the trailer"):
        list(reader)
    reader.resume([data[reader.needs :]])
    found: list[bytes] = []
    with pytest.raises(DamagedInputError) as raised:
        found.extend(one for batch in reader for one in plain_entries(batch))
    assert found == [entry(cells)]
    assert raised.value.offset == len(data) - 104

"""The WAL reader, on built files and on those of a real HBase."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.formats.wal_builder import CODEC, REGION, TRAILER, entry, header
from walferry.errors import DamagedInputError, UnfinishedInputError, UnreadableInputError
from walferry.formats import wal_decoders
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2
from walferry.formats.wal import Ending, EntryBatch, WalReader

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
CLOSED = (FIXTURES / "closed.wal").read_bytes()
KILLED = (FIXTURES / "killed.wal").read_bytes()
TAG = (8, (86_400_000).to_bytes(8, "big"))


def cell(i: int = 0, **fields: Any) -> bytes:
    known: dict[str, Any] = {
        "row": b"r%d" % i,
        "family": b"f",
        "qualifier": b"q",
        "timestamp": 1000 + i,
        "type": 4,
        "value": b"v%d" % i,
    }
    return encode_cell(**(known | fields))


ENTRIES = [entry([cell(i), cell(i + 1, tags=[TAG])], sequence_number=i + 1) for i in range(6)]
SMALL = header() + b"".join(ENTRIES)
STARTS = list(itertools.accumulate((len(one) for one in ENTRIES), initial=len(header())))


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


@pytest.fixture(autouse=True, scope="module")
def few_entries_a_batch() -> Iterator[None]:
    """Thousands of readers of a few entries: the kernel would clear megabytes for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_decoders, "ENTRIES_PER_BATCH", 1000)
        yield


class Outcome:
    """What reading a file came to: its entries as (offset, bytes), its ending, its error."""

    def __init__(self, data: bytes, size: int = 1 << 20, batch_bytes: int = 1 << 20) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.ending: Ending | None = None
        self.error: DamagedInputError | UnfinishedInputError | None = None
        try:
            reader = WalReader(chunks(data, size), "some.wal", batch_bytes=batch_bytes)
            for batch in reader:
                self._add(batch)
                assert reader.end == batch.offset_end[-1]
        except (DamagedInputError, UnfinishedInputError) as error:
            self.error = error
        else:
            self.ending = reader.ending
            self.end = reader.end
            assert reader.length == len(data)

    def _add(self, batch: EntryBatch) -> None:
        for offset, start, end in zip(batch.offset.tolist(), batch.start, batch.end, strict=True):
            self.entries.append((offset, batch.buffer[start:end].tobytes()))


def expected(count: int) -> list[tuple[int, bytes]]:
    return list(zip(STARTS, ENTRIES, strict=False))[:count]


def test_a_closed_file_is_whole_and_gives_every_entry_with_its_key() -> None:
    uuid = hbase_pb2.UUID(least_sig_bits=2**64 - 1, most_sig_bits=1)
    fields: dict[str, Any] = {
        "table_name": b"ns:t",
        "cluster_ids": [uuid, uuid],
        "nonceGroup": 2**64 - 1,
        "scopes": [hbase_pb2.FamilyScope(family=b"f", scope_type=hbase_pb2.REPLICATION_SCOPE_GLOBAL)],
    }
    data = header() + ENTRIES[0] + entry([cell()], 7, **fields) + TRAILER
    reader = WalReader([data], "some.wal")
    (batch,) = reader
    assert reader.ending is Ending.WHOLE
    assert (reader.end, reader.length) == (len(data) - 8, len(data))
    assert [batch.tables[code] for code in batch.table] == [b"t1", b"ns:t"]
    assert [batch.regions[code] for code in batch.region] == [REGION, REGION]
    assert batch.sequence_number.tolist() == [1, 7]
    assert batch.write_time.tolist() == [1700000000000] * 2
    assert batch.cell_count.tolist() == [2, 1]
    raw = b"".join(b"\x42" + bytes([uuid.ByteSize()]) + uuid.SerializeToString() for _ in range(2))
    assert [batch.cluster_lists[code] for code in batch.clusters] == [b"", raw]
    key = hbase_pb2.WALKey.FromString(batch.buffer[batch.key_start[1] : batch.key_end[1]].tobytes())
    assert list(key.cluster_ids) == [uuid, uuid]
    assert batch.buffer[batch.cells_start[0] : batch.end[0]].tobytes() == cell(0) + cell(1, tags=[TAG])


def test_the_header_says_who_wrote_the_file_and_where_entries_begin() -> None:
    known = WalReader([header()], "some.wal").header
    assert known is not None
    assert (known.writer, known.codec, known.size) == ("ProtobufLogWriter", CODEC, 85)
    of_1_7 = {"has_value_compression": None, "has_tag_compression": None}
    assert WalReader([header(**of_1_7)], "some.wal").header.size == 81


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"encryption_key": b"k"}, "encrypted WAL with cells of the codec .*[.]WALCellCodec"),
        ({"cell_codec_cls_name": "org.example.IndexedWALEditCodec"}, "org.example.IndexedWALEditCodec"),
        ({"writer_cls_name": "OtherWriter"}, "OtherWriter"),
    ],
)
def test_what_cannot_be_read_yet_is_refused_by_its_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnreadableInputError, match=named) as raised:
        WalReader([header(**fields) + ENTRIES[0]], "some.wal")
    assert raised.value.file == "some.wal"
    assert raised.value.exit_code == 4


@pytest.mark.parametrize("data", [CLOSED, KILLED], ids=["closed", "killed"])
@pytest.mark.parametrize(("size", "batch_bytes"), [(1, 64), (7, 300), (4096, 1000), (1 << 20, 1 << 20)])
def test_chunks_and_batches_of_any_size_give_the_same_entries(data: bytes, size: int, batch_bytes: int) -> None:
    whole = Outcome(data)
    assert len(whole.entries) > 50
    outcome = Outcome(data, size, batch_bytes)
    assert outcome.entries == whole.entries
    assert outcome.ending is whole.ending


def test_a_file_cut_anywhere_is_unfinished_and_gives_the_whole_entries_before_the_cut() -> None:
    data = SMALL + TRAILER
    for cut in range(len(data)):
        outcome = Outcome(data[:cut])
        whole = sum(end <= cut for end in STARTS[1:])
        assert outcome.entries == expected(whole), cut
        if cut < STARTS[0]:
            assert isinstance(outcome.error, UnfinishedInputError), cut
        else:
            assert outcome.ending is Ending.UNFINISHED, (cut, outcome.error)
            assert outcome.end == STARTS[whole], cut


def test_a_real_file_cut_anywhere_is_unfinished_and_gives_the_whole_entries_before_the_cut() -> None:
    whole = Outcome(CLOSED)
    assert whole.ending is Ending.WHOLE
    ends = [offset + len(data) for offset, data in whole.entries]
    for cut in range(len(CLOSED) - 1, 0, -31):
        outcome = Outcome(CLOSED[:cut])
        assert outcome.entries == whole.entries[: sum(end <= cut for end in ends)], cut
        assert outcome.ending is Ending.UNFINISHED or isinstance(outcome.error, UnfinishedInputError), outcome.error


def test_a_flipped_byte_never_crashes_and_never_touches_the_entries_before_it() -> None:
    data = SMALL + TRAILER
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            for batch_bytes in (200, 1 << 20):
                outcome = Outcome(bytes(damaged), batch_bytes=batch_bytes)
                before = sum(end <= at for end in STARTS[1:])
                assert outcome.entries[:before] == expected(before), (at, flip)
                if at >= STARTS[0]:
                    # A closed file that lost nothing but bits is never taken for one that was cut off,
                    # unless the bits are those of the trailer's own magic.
                    assert outcome.ending is Ending.WHOLE or isinstance(outcome.error, DamagedInputError), (at, flip)


def test_a_flipped_length_in_a_file_without_trailer_is_damage_if_entries_follow_it() -> None:
    first_cell = STARTS[1] + len(ENTRIES[1]) - len(cell(1)) - len(cell(2, tags=[TAG]))
    for at in [*STARTS[:-2], *range(first_cell, first_cell + 12)]:
        for flip in (0x01, 0x10, 0x40, 0x80):
            damaged = bytearray(SMALL)
            damaged[at] ^= flip
            outcome = Outcome(bytes(damaged))
            assert isinstance(outcome.error, DamagedInputError), (at, flip)
            assert outcome.error.offset in STARTS, (at, flip)


def test_an_entry_that_claims_more_than_the_file_holds_is_damage_when_whole_entries_lie_within_it() -> None:
    # Lengths that agree with each other: only the entries behind can tell that the value does not go on.
    lying = bytearray(cell(0))
    lying[0:4] = (int.from_bytes(lying[0:4], "big") + 10_000).to_bytes(4, "big")
    lying[8:12] = (int.from_bytes(lying[8:12], "big") + 10_000).to_bytes(4, "big")
    data = header() + ENTRIES[0] + entry([bytes(lying)], 2) + b"".join(ENTRIES[2:])
    outcome = Outcome(data)
    assert outcome.entries == expected(1)
    assert isinstance(outcome.error, DamagedInputError)
    assert outcome.error.offset == STARTS[1]
    torn = Outcome(header() + ENTRIES[0] + entry([bytes(lying)], 2))
    assert torn.ending is Ending.UNFINISHED


def test_entries_that_run_into_the_trailer_are_damage_at_the_entry() -> None:
    outcome = Outcome(SMALL[:-3] + TRAILER)
    assert outcome.entries == expected(5)
    assert isinstance(outcome.error, DamagedInputError)
    assert outcome.error.offset == STARTS[5]


@pytest.mark.parametrize("size", [1, 100, 2**31 - 1, -1])
def test_a_trailer_with_a_wrong_size_is_damage_behind_all_entries(size: int) -> None:
    outcome = Outcome(SMALL + size.to_bytes(4, "big", signed=True) + b"LAWP")
    assert outcome.entries == expected(6)
    assert isinstance(outcome.error, DamagedInputError)
    assert outcome.error.offset == STARTS[6]


@pytest.mark.parametrize("more", [b"\0", bytes(8), TRAILER[:-1], b"x"])
def test_bytes_after_a_trailer_are_damage(more: bytes) -> None:
    outcome = Outcome(SMALL + TRAILER + more)
    assert outcome.entries == expected(6)
    assert isinstance(outcome.error, DamagedInputError)
    assert outcome.error.offset == STARTS[6]


def test_a_trailer_that_holds_a_message_is_whole() -> None:
    message = b"\x0a\x05hello"
    outcome = Outcome(SMALL + message + len(message).to_bytes(4, "big") + b"LAWP")
    assert (outcome.entries, outcome.ending) == (expected(6), Ending.WHOLE)


@pytest.mark.parametrize("missing", ["encoded_region_name", "table_name", "log_sequence_number", "write_time"])
def test_a_key_without_a_required_field_is_damage(missing: str) -> None:
    key = hbase_pb2.WALKey.FromString(ENTRIES[0][1 : 1 + ENTRIES[0][0]])
    key.ClearField(missing)
    message = key.SerializePartialToString()
    outcome = Outcome(header() + ENTRIES[0] + bytes([len(message)]) + message + cell() + cell() + TRAILER)
    assert outcome.entries == expected(1)
    assert isinstance(outcome.error, DamagedInputError)
    assert "required field" in outcome.error.reason


def test_an_unknown_field_of_a_key_is_skipped() -> None:
    key = hbase_pb2.WALKey.FromString(ENTRIES[0][1 : 1 + ENTRIES[0][0]]).SerializeToString()
    later = key + b"\x98\x06\x05" + b"\xa5\x06abcd" + b"\xa9\x06abcdefgh" + b"\xaa\x06\x02hi"
    data = header() + bytes([len(later)]) + later + cell(0) + cell(1, tags=[TAG]) + TRAILER
    assert len(Outcome(data).entries) == 1
    assert Outcome(data).ending is Ending.WHOLE


def test_something_else_than_a_wal_is_damage_at_its_first_byte() -> None:
    outcome = Outcome(b"PAR1 is another kind of file")
    assert isinstance(outcome.error, DamagedInputError)
    assert outcome.error.offset == 0


@pytest.mark.parametrize("cut", [200, 5000, len(CLOSED) - 9, len(CLOSED) - 8, len(CLOSED) - 3])
def test_reading_goes_on_where_the_file_ended_before(cut: int) -> None:
    reader = WalReader([CLOSED[:cut]], "some.wal")
    numbers = [number for batch in reader for number in batch.sequence_number]
    assert reader.ending is Ending.UNFINISHED
    reader.resume([CLOSED[reader.needs :]])
    numbers += [number for batch in reader for number in batch.sequence_number]
    assert numbers == [number for batch in WalReader([CLOSED], "some.wal") for number in batch.sequence_number]
    assert (reader.ending, reader.length) == (Ending.WHOLE, len(CLOSED))


def test_a_damaged_length_does_not_make_the_reader_take_in_the_rest_of_the_file() -> None:
    damaged = bytearray(ENTRIES[1])
    first_cell = len(ENTRIES[1]) - len(cell(1)) - len(cell(2, tags=[TAG]))
    damaged[first_cell] = 0x30  # total length: 800 MB
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        yield header() + ENTRIES[0] + bytes(damaged)
        for _ in range(1000):
            taken += 1
            yield bytes(1 << 16)

    reader = WalReader(endless(), "some.wal", batch_bytes=1 << 16)
    batches = iter(reader)
    assert len(next(batches)) == 1
    assert taken == 1  # found after one buffer, not after 800 MB
    with pytest.raises(DamagedInputError, match="lengths of a cell contradict"):
        next(batches)
    assert len(reader._decoder.raw.data) <= 1 << 17


def test_an_entry_larger_than_a_batch_is_read_whole() -> None:
    large = entry([cell(value=bytes(100_000))])
    outcome = Outcome(header() + large + ENTRIES[0] + TRAILER, size=1000, batch_bytes=5000)
    assert [data for _, data in outcome.entries] == [large, ENTRIES[0]]
    assert outcome.ending is Ending.WHOLE


@pytest.mark.parametrize(
    ("qualifier", "value", "marker"),
    [
        (b"HBASE::FLUSH", b"", Marker.FLUSH),
        (b"HBASE::COMPACTION", b"", Marker.COMPACTION),
        (b"HBASE::REGION_EVENT::REGION_OPEN", b"", Marker.REGION_OPEN),
        (b"HBASE::REGION_EVENT::REGION_CLOSE", b"", Marker.REGION_CLOSE),
        (b"HBASE::REGION_EVENT", b"\x08\x00\x12\x01t", Marker.REGION_OPEN),
        (b"HBASE::REGION_EVENT", b"\x08\x01\x12\x01t", Marker.REGION_CLOSE),
        (b"HBASE::REGION_EVENT", b"\xff", Marker.UNKNOWN),
        (b"HBASE::BULK_LOAD", b"", Marker.BULK_LOAD),
        (b"HBASE::REPLICATION_MARKER", b"", Marker.REPLICATION),
        (b"HBASE::NEWS", b"", Marker.UNKNOWN),
    ],
)
def test_a_marker_is_known_by_its_qualifier(qualifier: bytes, value: bytes, marker: Marker) -> None:
    data = header() + entry([cell(family=b"METAFAMILY", qualifier=qualifier, value=value)]) + ENTRIES[0] + TRAILER
    (batch,) = WalReader([data], "some.wal")
    assert batch.marker.tolist() == [marker, Marker.NONE]


def test_a_mutation_is_a_run_of_cells_of_one_row_and_type() -> None:
    put, delete, other = cell(1), cell(1, type=12, value=b""), cell(2)
    runs = [[put, put], [put, delete, put], [put, other, other, delete], []]
    (batch,) = WalReader([header() + b"".join(entry(run) for run in runs) + TRAILER], "some.wal")
    assert batch.mutation_count.tolist() == [1, 3, 3, 0]


def test_dictionary_codes_hold_across_the_batches_of_a_reader() -> None:
    names = [b"t%d" % (i * i % 7) for i in range(40)]
    data = header() + b"".join(entry([cell()], table_name=name) for name in names) + TRAILER
    reader = WalReader([data], "some.wal", batch_bytes=400)
    batches = list(reader)
    assert len(batches) > 5
    assert [batch.tables[code] for batch in batches for code in batch.table] == names
    assert all(batch.tables is batches[0].tables for batch in batches)


def test_a_batch_with_a_large_entry_is_at_most_half_as_large_again() -> None:
    large = encode_cell(b"r", b"f", b"q", 1, CellType.PUT, bytes(10 << 20))
    content = header() + entry([large]) * 4 + TRAILER
    chunks = (content[at : at + 100_000] for at in range(0, len(content), 100_000))
    batches = list(WalReader(chunks, "file", batch_bytes=1 << 20))
    assert sum(len(batch) for batch in batches) == 4
    assert max(batch.buffer.nbytes for batch in batches) <= 1.5 * len(entry([large]))


LIKE_A_TRAILER = entry([cell(), cell(value=b"value\0\0\0\x08LAWP")])


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
def test_a_value_that_ends_like_a_trailer_ends_no_file(batch_bytes: int) -> None:
    data = header() + ENTRIES[0] + LIKE_A_TRAILER
    both = [(STARTS[0], ENTRIES[0]), (STARTS[1], LIKE_A_TRAILER)]
    unfinished = Outcome(data, 20, batch_bytes)
    assert (unfinished.entries, unfinished.ending) == (both, Ending.UNFINISHED)
    closed = Outcome(data + TRAILER, 20, batch_bytes)
    assert (closed.entries, closed.ending) == (both, Ending.WHOLE)


@pytest.mark.parametrize("more", [b"LAWP", b"\0\0\0LAWP"])
def test_an_entry_that_ends_elsewhere_than_the_file_runs_into_the_trailer(more: bytes) -> None:
    outcome = Outcome(SMALL + more)
    assert outcome.entries == expected(5)
    assert isinstance(outcome.error, DamagedInputError)
    assert outcome.error.offset == STARTS[5]


def test_reading_goes_on_after_a_value_that_ends_like_a_trailer() -> None:
    data = header() + LIKE_A_TRAILER + ENTRIES[0] + TRAILER
    reader = WalReader([data[: len(header() + LIKE_A_TRAILER)]], "some.wal")
    assert sum(len(batch) for batch in reader) == 1
    reader.resume([])
    assert list(reader) == []
    reader.resume([data[reader.needs :]])
    assert sum(len(batch) for batch in reader) == 1
    assert reader.ending is Ending.WHOLE


@pytest.mark.parametrize("tail", [TRAILER, b""], ids=["closed", "killed"])
@pytest.mark.parametrize("field", ["encoded_region_name", "table_name"])
@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
def test_a_name_that_is_not_text_is_damage_of_its_entry(field: str, batch_bytes: int, tail: bytes) -> None:
    name = (REGION if field == "encoded_region_name" else b"t1")[:-1] + b"\xe6"
    fields: dict[str, Any] = {field: name}
    wrong = entry([cell(1)], 2, **fields)
    data = header() + ENTRIES[0] + wrong + ENTRIES[1] + wrong + tail
    outcome = Outcome(data, batch_bytes=batch_bytes)
    assert outcome.entries == expected(1)
    assert isinstance(outcome.error, DamagedInputError)
    assert outcome.error.offset == STARTS[1]
    assert "not UTF-8" in outcome.error.reason
    reader = WalReader([data], "some.wal", batch_bytes=batch_bytes)
    batches: list[EntryBatch] = []
    for _ in range(2):  # it stays so
        with pytest.raises(DamagedInputError, match="not UTF-8"):
            batches.extend(reader)
        reader.resume([data[reader.needs :]])
    assert [batch.of_regions({REGION.decode()}).tolist() for batch in batches] == [[True]]

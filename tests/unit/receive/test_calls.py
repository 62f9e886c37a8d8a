"""Calls of HBase's replication as batches of entries."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import example, given
from hypothesis import strategies as st

from unit.receive.call_builder import REGION, Sent, call, read, received
from walferry.formats.cells import encode_cell
from walferry.formats.entries import entry_cells
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, WalReader, cluster_ids
from walferry.receive.calls import BadCallError, entries_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
CELL = encode_cell(b"r", b"f", b"q", 1, 4, b"v")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.binary(max_size=5)
unsigned = st.integers(0, 2**64 - 1)
tags = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=5)), max_size=2)
users = st.tuples(
    st.sampled_from([b"", b"r1", b"r2"]), st.sampled_from([b"f", b"METAFAMILI"]), names, st.integers(0, 2**63 - 1),
    st.sampled_from([4, 8, 10, 12, 14]), st.binary(max_size=20), tags,
)  # fmt: skip
QUALIFIERS = {
    b"HBASE::FLUSH": Marker.FLUSH,
    b"HBASE::BULK_LOAD": Marker.BULK_LOAD,
    b"HBASE::REPLICATION_MARKER": Marker.REPLICATION,
    b"HBASE::SOMETHING": Marker.UNKNOWN,
}
markers = st.tuples(
    st.just(b"\0"), st.just(b"METAFAMILY"), st.sampled_from(sorted(QUALIFIERS)), st.integers(0, 2**63 - 1),
    st.just(4), st.binary(max_size=20), st.just([]),
)  # fmt: skip
Cell = tuple[bytes, bytes, bytes, int, int, bytes, list[tuple[int, bytes]]]


@st.composite
def sent(draw: st.DrawFn) -> tuple[Sent, list[Cell]]:
    """An entry, and its cells as they are before they are encoded."""
    cells: list[Cell] = draw(st.lists(st.one_of(users, users, users, markers), max_size=5))
    more = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "following_kv_count": st.integers(0, 9),
                "nonce": unsigned,
                "orig_sequence_number": unsigned,
                "cluster_id": st.just(pb.UUID(most_sig_bits=1, least_sig_bits=2)),
                "scopes": st.just([pb.FamilyScope(family=b"f", scope_type=pb.REPLICATION_SCOPE_GLOBAL)]),
                "extended_attributes": st.just([pb.Attribute(key="k", value=b"v")]),
            },
        )
    )
    clusters = draw(st.lists(st.tuples(unsigned, unsigned), max_size=2))
    encoded = [encode_cell(*cell) for cell in cells]
    return Sent(encoded, draw(texts), draw(texts), draw(unsigned), draw(unsigned), clusters, more), cells


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def mutations(cells: list[Cell]) -> int:
    """How many Puts and Deletes HBase's own sink makes of an entry's cells."""
    kinds = [(cell[0], cell[4]) for cell in cells]
    return sum(i == 0 or kinds[i - 1] != kind for i, kind in enumerate(kinds))


def marker(cells: list[Cell]) -> Marker:
    return next((QUALIFIERS[cell[2]] for cell in cells if cell[1] == b"METAFAMILY"), Marker.NONE)


def decoded(batch: EntryBatch) -> Iterator[list[Cell]]:
    """Each entry's cells, by slices: no kernel."""
    for at, end in zip(batch.cells_start.tolist(), batch.end.tolist(), strict=True):
        cells = []
        while at < end:
            total, key, value = (int.from_bytes(batch.buffer[at + 4 * i : at + 4 * i + 4].tobytes()) for i in range(3))
            raw = batch.buffer[at + 12 : at + 4 + total].tobytes()
            row_end = 2 + int.from_bytes(raw[:2])
            family_end = row_end + 1 + raw[row_end]
            kept, rest = [], raw[key + value + 2 :]
            while rest:
                size = int.from_bytes(rest[:2])
                kept.append((rest[2], rest[3 : 2 + size]))
                rest = rest[2 + size :]
            cells.append(
                (raw[2:row_end], raw[row_end + 1 : family_end], raw[family_end : key - 9],
                 int.from_bytes(raw[key - 9 : key - 1]), raw[key - 1], raw[key : key + value], kept)
            )  # fmt: skip
            at += 4 + total
        assert at == end
        yield cells


@given(st.lists(sent(), max_size=6), texts, texts, texts)
def test_every_entry_of_a_call_has_its_key_and_its_cells(
    entries: list[tuple[Sent, list[Cell]]], source: str, base: str, archive: str
) -> None:
    fields = {
        "replicationClusterId": source,
        "sourceBaseNamespaceDirPath": base,
        "sourceHFileArchiveDirPath": archive,
    }
    batch = read(*call([entry for entry, _ in entries], **{name: text for name, text in fields.items() if text})).batch
    assert [batch.table_and_region(i) for i in range(len(batch))] == [(one.table, one.region) for one, _ in entries]
    assert batch.sequence_number.tolist() == [signed(one.number) for one, _ in entries]
    assert batch.write_time.tolist() == [signed(one.time) for one, _ in entries]
    been_on = [cluster_ids(batch.cluster_lists[code]) for code in batch.clusters.tolist()]
    assert been_on == [[UUID(int=most << 64 | least) for most, least in one.clusters] for one, _ in entries]
    assert batch.offset.tolist() == list(range(len(entries)))
    assert batch.offset_end.tolist() == list(range(1, len(entries) + 1))
    assert batch.cell_count.tolist() == [len(cells) for _, cells in entries]
    assert batch.mutation_count.tolist() == [mutations(cells) for _, cells in entries]
    assert [Marker(kind) for kind in batch.marker.tolist()] == [marker(cells) for _, cells in entries]
    assert list(decoded(batch)) == [cells for _, cells in entries]
    for column in (batch.start, batch.key_start, batch.key_end):
        assert column.tolist() == batch.cells_start.tolist()


def test_cells_are_not_copied() -> None:
    parameter, cells = call([Sent([CELL])])
    block = bytearray(cells)
    batch = entries_of(memoryview(parameter), memoryview(block)).batch
    block[-1] ^= 1
    assert batch.buffer.tobytes() == bytes(block)


def test_a_call_in_memory_that_cannot_be_written_is_read_too() -> None:
    parameter, cells = call([Sent([CELL])])
    assert entries_of(memoryview(parameter), memoryview(cells)).batch.edits.tolist() == [True]


def test_a_call_without_entries_is_an_empty_batch() -> None:
    got = read(b"", b"")
    assert len(got.batch) == 0
    assert got.batch.holds_data.tolist() == got.batch.of_tables(["t1"]).tolist() == []


def test_columns_are_what_the_log_reader_makes_of_the_same_entries() -> None:
    for batch in real_entries():
        got = resent(batch)
        for column in ("cell_count", "mutation_count", "sequence_number", "write_time", "marker"):
            assert getattr(got, column).tolist() == getattr(batch, column).tolist()
        for codes, known in (("region", "regions"), ("table", "tables"), ("clusters", "cluster_lists")):
            names = [[getattr(one, known)[code] for code in getattr(one, codes).tolist()] for one in (got, batch)]
            assert names[0] == names[1]
        before, after = (entry_cells(one, "").drop_columns(["offset"]) for one in (batch, got))
        assert after.equals(before)


def test_real_entries_have_tags_deletes_and_bulk_loads() -> None:
    """So that the test above says something."""
    batches = list(real_entries())
    cells = [cell for batch in batches for cell in entry_cells(batch, "").select(["type", "tags"]).to_pylist()]
    assert {cell["type"] for cell in cells} == {4, 8, 10, 12, 14}
    assert any(cell["tags"] for cell in cells)
    assert {kind for batch in batches for kind in batch.marker.tolist()} > {Marker.NONE, Marker.BULK_LOAD}


def real_entries() -> Iterator[EntryBatch]:
    """Entries that servers of all versions have written, and markers of bulk loads as servers lay them out."""
    for kind in ("closed", "killed", "dictionary", "1.7.2-dictionary", "2.2.3-dictionary", "2.5.7-values-gz"):
        path = FIXTURES / f"{kind}.wal"
        yield from WalReader([path.read_bytes()], path.name)
    load = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"default", qualifier=b"t1"),
        encoded_region_name=REGION.encode(),
        stores=[pb.StoreDescriptor(family_name=b"f", store_home_dir="f", store_file=["0" * 32 + "_SeqId_7_"])],
        bulkload_seq_num=7,
    )
    cell = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, load.SerializeToString())
    yield received(Sent([cell], number=8)).batch


def resent(batch: EntryBatch) -> EntryBatch:
    """The entries of a batch as they arrive, if their server's source sends them in one call."""
    request = pb.ReplicateWALEntryRequest()
    for i in range(len(batch)):
        sent = request.entry.add(associated_cell_count=int(batch.cell_count[i]))
        sent.key.encoded_region_name = batch.regions[batch.region[i]]
        sent.key.table_name = batch.tables[batch.table[i]]
        sent.key.log_sequence_number = int(batch.sequence_number[i])
        sent.key.write_time = int(batch.write_time[i])
        sent.key.MergeFromString(batch.cluster_lists[batch.clusters[i]])
    cells = b"".join(
        batch.buffer[start:end].tobytes()
        for start, end in zip(batch.cells_start.tolist(), batch.end.tolist(), strict=True)
    )
    return read(request.SerializeToString(), cells).batch


def refused(parameter: bytes, cells: bytes) -> BadCallError:
    with pytest.raises(BadCallError) as refusal:
        read(parameter, cells)
    return refusal.value


def test_more_cells_than_the_block_has_are_refused_with_entry_and_position() -> None:
    parameter, cells = call([Sent([CELL]), Sent([CELL, CELL])])
    for missing in (1, len(CELL)):
        wrong = refused(parameter, cells[:-missing])
        assert (wrong.entry, wrong.place, wrong.offset) == (1, "cell block", 2 * len(CELL))
        assert "from its entry 1 on (byte 56 of its cell block): the cell block ends before" in wrong.message


def test_fewer_cells_than_the_block_has_are_refused() -> None:
    parameter, cells = call([Sent([CELL])])
    wrong = refused(parameter, cells + CELL)
    assert (wrong.entry, wrong.place, wrong.offset) == (1, "cell block", len(CELL))
    assert "cells follow those of the last entry" in wrong.reason


def test_a_damaged_cell_is_refused_with_entry_and_position() -> None:
    broken = bytearray(CELL)
    broken[4 + 8 + 2 + 1 + 1 + 1 + 1 + 8] = 5  # its type
    wrong = refused(*call([Sent([CELL]), Sent([CELL, bytes(broken)])]))
    assert (wrong.entry, wrong.place, wrong.offset) == (1, "cell block", 2 * len(CELL))
    assert wrong.reason == "a cell has a type that HBase does not write"


@pytest.mark.parametrize("name", ["region", "table"])
def test_a_name_that_is_not_text_is_refused_with_its_entry(name: str) -> None:
    parameter, cells = call([Sent(), Sent(**{name: "name"}), Sent()])  # type: ignore[arg-type]
    wrong = refused(parameter.replace(b"name", b"nam\xff"), cells)
    assert (wrong.entry, wrong.place, wrong.offset) == (1, "request", parameter.index(b"name"))
    assert "not UTF-8" in wrong.reason


def test_a_negative_number_of_cells_is_refused() -> None:
    entry = pb.WALEntry(key=Sent().key, associated_cell_count=-1)
    assert "negative" in refused(pb.ReplicateWALEntryRequest(entry=[entry]).SerializeToString(), b"").reason


def test_cells_that_are_sent_where_nobody_reads_them_are_refused() -> None:
    entry = pb.WALEntry(key=Sent().key, key_value_bytes=[CELL])
    wrong = refused(pb.ReplicateWALEntryRequest(entry=[entry]).SerializeToString(), b"")
    assert "outside the cell block" in wrong.reason


@pytest.mark.parametrize("name", ["encoded_region_name", "table_name", "log_sequence_number", "write_time"])
def test_a_key_without_a_required_field_is_refused(name: str) -> None:
    key = Sent(more={"nonce": 1 << 63}).key
    key.ClearField(name)
    request = pb.ReplicateWALEntryRequest(entry=[pb.WALEntry(key=Sent().key), pb.WALEntry(key=key)])
    wrong = refused(request.SerializePartialToString(), b"")
    assert (wrong.entry, wrong.reason) == (1, "a required field of the WALKey is missing")


@pytest.mark.parametrize("keys", [0, 2])
def test_an_entry_has_one_key(keys: int) -> None:
    entry = keys * pb.WALEntry(key=Sent().key).SerializeToString() + b"\x22\x0a" + bytes(10)
    wrong = refused(b"\x0a" + bytes(_VarintBytes(len(entry))) + entry, b"")
    assert wrong.reason == ("an entry has two keys" if keys else "a required field of the WALKey is missing")


@pytest.mark.parametrize("in_entry", [b"\x08\x01", b"\x1a\x01x", b"\x19" + bytes(8)])
def test_a_field_of_an_entry_that_has_another_type_is_refused(in_entry: bytes) -> None:
    entry = pb.WALEntry(key=Sent().key).SerializeToString() + in_entry
    assert "does not fit" in refused(b"\x0a" + bytes(_VarintBytes(len(entry))) + entry, b"").reason


@pytest.mark.parametrize("field", [b"\x08\x01", b"\x10\x01", b"\x21" + bytes(8), b"\x0b", b"\x02\x01x", b"\x12\x05x"])
def test_a_field_of_a_call_that_has_another_type_or_does_not_end_is_refused(field: bytes) -> None:
    wrong = refused(call([Sent()])[0] + field, b"")
    assert (wrong.entry, wrong.offset) == (1, len(call([Sent()])[0]))
    assert wrong.reason == "a field does not fit into its message"


def test_entries_too_short_for_a_key_take_no_memory() -> None:
    parameter = memoryview(bytearray(b"\x0a\x00" * 1_000_000))
    tracemalloc.start()
    with pytest.raises(BadCallError):
        entries_of(parameter, memoryview(bytearray()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_fields_of_later_versions_are_skipped() -> None:
    entry = pb.WALEntry(key=Sent().key, associated_cell_count=1).SerializeToString() + b"\x22\x01x\x28\x01"
    parameter = b"\x0a" + bytes(_VarintBytes(len(entry))) + entry + b"\x2a\x01x\x30\x01"
    assert read(parameter, CELL).batch.cell_count.tolist() == [1]


VALID = call(
    [
        Sent([CELL, encode_cell(b"r2", b"f", b"q", 5, 8, b"", [(8, b"12345678")])], clusters=[(1, 2)]),
        Sent(region="other", table="ns:t2", number=2**63, more={"nonce": 2**64 - 1}),
        Sent([encode_cell(b"\0", b"METAFAMILY", b"HBASE::REGION_EVENT", 1, 4, b"\x08\x01")], number=3),
    ],
    replicationClusterId="source",
)


def outcome(parameter: bytes, cells: bytes) -> EntryBatch | BadCallError:
    try:
        return read(parameter, cells).batch
    except BadCallError as wrong:
        return wrong


@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
@example(0, 1, True)
def test_damage_is_refused_or_gives_other_entries_within_the_call(seed: int, changes: int, in_cells: bool) -> None:
    """Whatever is read afterwards lies in the cell block: the slow reader below raises IndexError if it does not."""
    chance = random.Random(seed)
    damaged = [bytearray(part) for part in VALID]
    for _ in range(changes):
        part = damaged[in_cells]
        at = chance.randrange(len(part))
        choice = chance.randrange(4)
        if choice == 0:
            part[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif choice == 1:
            part[at] ^= 1 << chance.randrange(8)
        elif choice == 2 and len(part) > 20:
            del part[at : at + chance.randrange(1, 9)]
        else:
            part[at:at] = chance.randbytes(chance.randrange(1, 9))
    batch = outcome(bytes(damaged[0]), bytes(damaged[1]))
    if isinstance(batch, BadCallError):
        assert 0 <= batch.offset <= len(damaged[("request", "cell block").index(batch.place)])
        return
    request = pb.ReplicateWALEntryRequest.FromString(bytes(damaged[0]))
    assert batch.cell_count.tolist() == [entry.associated_cell_count for entry in request.entry]
    assert batch.sequence_number.tolist() == [signed(entry.key.log_sequence_number) for entry in request.entry]
    assert [batch.regions[code] for code in batch.region] == [one.key.encoded_region_name for one in request.entry]
    assert [len(cells) for cells in decoded(batch)] == batch.cell_count.tolist()
    assert np.append(batch.cells_start, len(damaged[1])).tolist() == [0, *batch.end.tolist()]


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_at_all_are_refused_or_read(parameter: bytes, cells: bytes) -> None:
    what = outcome(parameter, cells)
    assert isinstance(what, EntryBatch) or what.reason in what.message

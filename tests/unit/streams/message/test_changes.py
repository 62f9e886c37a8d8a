"""Messages have what a naive encoder makes of the same entries, byte for byte."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unit.streams.message.naive_messages import (
    ENTRIES,
    FORMS,
    IMAGED,
    KINDS,
    Cell,
    Entry,
    batch_of,
    java_murmur2,
    made,
    naive,
    only,
)
from walferry.formats.cells import decode_tags
from walferry.formats.entries import index_entry_cells
from walferry.formats.wal import EntryBatch, WalReader
from walferry.streams.message import _change_kernels as kernels
from walferry.streams.message import _json_kernels as json_kernels
from walferry.streams.message.changes import BytesAs, Form, Selection, SnapshotMark, messages
from walferry.streams.message.image_cells import changed_rows, images

FIXTURES = Path(__file__).parents[3] / "fixtures" / "wal"


@given(FORMS, st.lists(ENTRIES, min_size=1, max_size=5))
def test_messages_are_what_a_naive_encoder_makes(form: Form, entries: list[Entry]) -> None:
    found, expected = made(form, entries), list(naive(form, entries))
    assert found.refused == {}
    assert [found.key(i) for i in range(len(found))] == [one.key for one in expected]
    assert [found.value(i) for i in range(len(found))] == [one.value for one in expected]
    assert found.entry.tolist() == [one.entry for one in expected]
    assert found.index.tolist() == [one.run for one in expected]
    assert found.hash.tolist() == [java_murmur2(one.key) & 0x7FFFFFFF for one in expected]


@given(FORMS, st.lists(IMAGED, min_size=1, max_size=5))
def test_messages_with_images_are_what_a_naive_encoder_makes(form: Form, entries: list[Entry]) -> None:
    found, expected = made(form, entries), list(naive(form, entries))
    assert found.refused == {}
    assert [found.value(i) for i in range(len(found))] == [one.value for one in expected]
    assert [found.key(i) for i in range(len(found))] == [one.key for one in expected]


@pytest.mark.parametrize("name", ["closed", "killed", "dictionary-raw-tags", "values-zstd", "1.7.2-dictionary"])
@pytest.mark.parametrize("form", [Form("prod", 1, bytes_as) for bytes_as in BytesAs], ids=lambda form: form.bytes_as)
def test_real_logs_become_messages(name: str, form: Form) -> None:
    made_of = 0
    for batch in WalReader([(FIXTURES / f"{name}.wal").read_bytes()], name):
        picked = np.flatnonzero(batch.edits)
        found = messages(form, batch, picked, np.full(len(picked), 3, np.int32))
        expected = list(naive(form, read(batch.take(picked))))
        assert found.refused == {}
        assert [found.value(i) for i in range(len(found))] == [one.value for one in expected]
        assert [found.key(i) for i in range(len(found))] == [one.key for one in expected]
        assert found.entry.tolist() == picked[[one.entry for one in expected]].tolist()
        made_of += len(found)
    assert made_of > 5


def read(batch: EntryBatch) -> list[Entry]:
    """A batch's entries, as Python has them; incarnation 3."""
    cells: list[list[Cell]] = [[] for _ in range(len(batch))]
    index, entry_of, _ = index_entry_cells(batch)

    def part(name: str, number: int) -> bytes:
        start = getattr(index, f"{name}_start")[number]
        return batch.buffer[start : start + getattr(index, f"{name}_length")[number]].tobytes()

    for number, at in enumerate(entry_of.tolist()):
        row, family, qualifier, value, tags = (
            part(name, number) for name in ("row", "family", "qualifier", "value", "tags")
        )
        facts = int(index.timestamp[number]), int(index.type[number])
        cells[at].append(Cell(row, family, qualifier, *facts, value, decode_tags(tags)))
    return [
        Entry(
            own, number, 3, *batch.table_and_region(at), written, clusters_of(batch.cluster_lists[batch.clusters[at]])
        )
        for at, (own, number, written) in enumerate(
            zip(cells, batch.sequence_number.tolist(), batch.write_time.tolist(), strict=True)
        )
    ]


def clusters_of(raw: bytes) -> list[UUID]:
    """Of a log that WriteWal.java wrote: `new UUID(1, 2)`, or none."""
    return [UUID(int=1 << 64 | 2)] if raw else []


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_kafkas_own_test_expects(key: bytes, java: int) -> None:
    """UtilsTest.testMurmur2"""
    data = np.frombuffer(b"-" + key + b"-", np.uint8)
    assert kernels.murmur2(data, 1, len(key)) == java & 0x7FFFFFFF
    assert java_murmur2(key) == java % 2**32


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(10**18)
def test_numbers_are_written_in_decimal(number: int) -> None:
    out = np.zeros(json_kernels.MOST_DIGITS, np.uint8)
    size = json_kernels.put_number(out, 0, number)
    assert out[:size].tobytes() == b"%d" % number


def test_a_message_goes_to_the_partition_of_its_hash() -> None:
    found = made(Form("prod", 1), [Entry([Cell(b"row %d" % number) for number in range(50)])])
    partitions = found.partitions(7)
    assert partitions.dtype == np.int32
    assert partitions.tolist() == [(java_murmur2(found.key(i)) & 0x7FFFFFFF) % 7 for i in range(50)]
    assert set(partitions.tolist()) == set(range(7))


def test_a_row_that_is_named_twice_apart_gives_two_messages() -> None:
    found = made(
        Form("prod", 1, BytesAs.UTF8), [Entry([Cell(b"a"), Cell(b"a", qualifier=b"r"), Cell(b"b"), Cell(b"a")])]
    )
    values = [json.loads(found.value(number)) for number in range(len(found))]
    assert [(one["row"], len(one["cells"]), one["position"]) for one in values] == [
        ("a", 2, [0, 1, 0]), ("b", 1, [0, 1, 1]), ("a", 1, [0, 1, 2]),
    ]  # fmt: skip


def test_each_kind_of_cell_has_its_name_and_only_puts_have_a_value() -> None:
    change = only(Form("prod", 1), *(Cell(type=kind, value=b"v") for kind in KINDS))
    assert [cell["kind"] for cell in change["cells"]] == list(KINDS.values())
    assert [cell["kind"] for cell in change["cells"] if "value" in cell] == ["put"]


def test_bytes_that_are_not_utf8_are_an_object_and_the_rest_is_text() -> None:
    """Overlong forms, surrogates, what is past U+10FFFF, and what is cut off, as Python's own decoder has it."""
    wrong = [
        b"\x80", b"\xff", b"\xc0\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80", b"\xe2\x82", b"\xe2\x82x", b"\xc3\xc3",
    ]  # fmt: skip
    right = [b"", b"\xc2\x80", b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xf4\x8f\xbf\xbf"]
    for padding in (b"", b"x" * 15, b"x" * 16, "ß".encode() * 20):
        change = only(Form("prod", 1, BytesAs.UTF8), *(Cell(value=padding + raw) for raw in [*wrong, *right]))
        values = [cell["value"] for cell in change["cells"]]
        assert values[: len(wrong)] == [{"base64": base64.b64encode(padding + raw).decode()} for raw in wrong]
        assert values[len(wrong) :] == [(padding + raw).decode() for raw in right]


def test_every_byte_of_ascii_is_escaped_as_python_does_wherever_it_is() -> None:
    values = [b"x" * before + bytes([byte]) + b"x" * 20 for byte in range(128) for before in (0, 7, 20)]
    entries = [Entry([Cell(value=value) for value in values])]
    form = Form("prod", 1, BytesAs.UTF8)
    assert made(form, entries).value(0) == next(naive(form, entries)).value


def test_a_family_is_text_in_every_form() -> None:
    for bytes_as in BytesAs:
        change = only(Form("prod", 1, bytes_as), Cell(family="größe".encode()), Cell(family=b"\xff"))
        assert [cell["family"] for cell in change["cells"]] == ["größe", {"base64": "/w=="}]


def test_a_run_that_is_filtered_out_keeps_its_number() -> None:
    entries = [Entry([Cell(b"a"), Cell(b"b", family=b"g"), Cell(b"c"), Cell(b"d", family=b"g")])]
    found = made(Form("prod", 1, selection=Selection(families=(b"g",))), entries)
    assert found.index.tolist() == [1, 3]


def test_what_deletes_a_family_passes_if_one_of_its_columns_is_selected() -> None:
    form = Form("prod", 1, BytesAs.UTF8, Selection(columns=((b"f", b"q"),)))
    cells = [Cell(qualifier=b"", type=kind) for kind in KINDS]
    assert [cell["kind"] for cell in only(form, *cells)["cells"]] == ["delete_family_version", "delete_family"]
    assert len(made(form, [Entry([cell._replace(family=b"g") for cell in cells])])) == 0


def test_a_range_has_its_start_and_not_its_stop_and_an_empty_stop_is_the_end() -> None:
    cells = [Cell(row) for row in (b"a", b"b", b"b\0", b"c", b"d")]
    form = Form("prod", 1, BytesAs.UTF8, Selection(rows=((b"b", b"c"), (b"d", b""))))
    found = made(form, [Entry(cells)])
    assert [json.loads(found.key(number))["row"] for number in range(len(found))] == ["b", "b\0", "d"]


def test_headers_have_the_position_the_epoch_and_a_version_that_rises_with_it() -> None:
    positions = [(0, 1), (0, 2), (0, 2**40 - 1), (1, 0), (2, 5), (127, 2**40 - 1)]
    entries = [Entry([Cell(b"a"), Cell(b"b")], number, incarnation) for incarnation, number in positions]
    found = made(Form("prod", 12), entries)
    headers = [dict(found.headers(number)) for number in range(len(found))]
    assert headers[9] == {"position": b"2.5.1", "epoch": b"12", "version": b"%d" % (2 << 56 | 5 << 16 | 1)}
    versions = [int(one["version"]) for one in headers]
    assert versions == sorted(set(versions))
    assert 2**62 < versions[-1] < 2**63


@pytest.mark.parametrize(
    ("wide", "reason"),
    [
        (Entry([Cell()], incarnation=128), "incarnation 128 does not fit into the 7 bits"),
        (Entry([Cell()], incarnation=-1), "incarnation -1 does not fit"),
        (Entry([Cell()], sequence_number=2**40), "sequence number 1099511627776 does not fit into the 40 bits"),
    ],
)
def test_a_position_that_does_not_fit_into_a_version_is_refused(wide: Entry, reason: str) -> None:
    found = made(Form("prod", 1), [Entry([Cell()]), wide, Entry([Cell()])])
    assert list(found.refused) == [1]
    assert reason in found.refused[1]
    assert (found.value(1), json.loads(found.key(1))["table"]) == (b"", "t1")
    assert found.value(0) == found.value(2) != b""
    with pytest.raises(ValueError, match="message 1 is refused"):
        found.headers(1)


def test_the_65281st_row_of_an_entry_is_refused_since_that_index_is_a_snapshots() -> None:
    found = made(Form("prod", 1), [Entry([Cell(b"%d" % number) for number in range(65282)])])
    assert {number: reason.partition(" does")[0] for number, reason in found.refused.items()} == {
        65280: "number 65280 of the row in its entry", 65281: "number 65281 of the row in its entry",
    }  # fmt: skip
    assert dict(found.headers(65279))["version"] == b"%d" % (1 << 16 | 65279)


@pytest.mark.parametrize(("count", "index"), [(0, 65280), (7, 65287), (255, 65535), (300, 65535)])
def test_a_row_of_a_snapshot_is_marked_and_comes_after_every_change_of_its_number(count: int, index: int) -> None:
    entries = [Entry([Cell(b"a")], 7), Entry([Cell(b"b"), Cell(b"b")], 8)]
    changes, rows = made(Form("prod", 1), entries), made(Form("prod", 1, snapshot=SnapshotMark("s-1", count)), entries)
    for number in range(2):
        change, row = json.loads(changes.value(number)), json.loads(rows.value(number))
        assert (row.pop("snapshot"), row.pop("position")) == ("s-1", [0, 7 + number, index])
        assert change.pop("position") < [0, 7 + number, index]
        assert change == row
        assert rows.key(number) == changes.key(number)


def test_a_cell_of_an_unknown_type_is_refused_with_its_message_only() -> None:
    """The reader calls such a log damaged today, so the type is changed after it was read."""
    batch = batch_of([Entry([Cell(b"a"), Cell(b"b"), Cell(b"b", qualifier=b"r"), Cell(b"c")])])
    index, *_ = index_entry_cells(batch)
    batch.buffer[index.value_start[2] - 1] = 5
    found = messages(Form("prod", 1), batch, np.arange(1), np.zeros(1, np.int32))
    assert found.refused == {1: "a cell has the type 5, which this version of walferry does not know"}
    assert [found.value(number) != b"" for number in range(3)] == [True, False, True]


def test_a_cell_of_an_unknown_type_is_taken_for_one_that_deletes_its_family() -> None:
    batch = batch_of([Entry([Cell(b"a", qualifier=b"r"), Cell(b"b", qualifier=b"r", family=b"g")])])
    index, *_ = index_entry_cells(batch)
    batch.buffer[index.value_start - 1] = 5
    form = Form("prod", 1, selection=Selection(columns=((b"f", b"q"),)))
    assert list(messages(form, batch, np.arange(1), np.zeros(1, np.int32)).refused) == [0]


def lengths(table: str, family: str, qualifier: bytes, value: bytes) -> Any:
    if value == b"bad":
        raise LookupError(f"no schema for {table}")
    return {"of": f"{table}/{family}/{qualifier.decode()}", "length": len(value), "ß": [None, 1.5, "\n"]}


@given(st.lists(st.lists(st.sampled_from([b"", b"a", b"bad"]), min_size=1, max_size=4), min_size=1, max_size=5))
def test_a_decoder_gives_the_values_and_its_error_refuses_that_message_only(rows: list[list[bytes]]) -> None:
    entries = [
        Entry([Cell(b"%d" % number, type=kind, value=value) for value in values for kind in (4, 12)], table="ns:t")
        for number, values in enumerate(rows)
    ]
    form = Form("prod", 1, BytesAs.UTF8, decode=lengths)
    found = made(form, entries)
    wrong = {number for number, values in enumerate(rows) if b"bad" in values}
    reason = "the decoder failed for column 'f', b'q': LookupError: 'no schema for ns:t'"
    assert found.refused == dict.fromkeys(sorted(wrong), reason.replace("'no schema for ns:t'", "no schema for ns:t"))
    for number, one in enumerate(entries):
        expected = b"" if number in wrong else next(naive(form, [one])).value
        assert found.value(number) == expected


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (float("nan"), "ValueError: Out of range float"),
        (b"", "TypeError: Object of type bytes"),
        ("\ud800", "UnicodeEnc"),
    ],
)
def test_a_result_that_json_does_not_have_is_refused(result: Any, error: str) -> None:
    found = made(Form("prod", 1, decode=lambda *_: result), [Entry([Cell()])])
    assert error in found.refused[0]


def test_a_decoder_sees_only_selected_puts_and_families_of_any_bytes() -> None:
    seen = []
    form = Form("prod", 1, selection=Selection(families=(b"\xff",)), decode=lambda *asked: seen.append(asked))
    made(form, [Entry([Cell(), Cell(family=b"\xff"), Cell(family=b"\xff", type=12)]), Entry([Cell()], incarnation=128)])
    assert seen == [("t1", "\udcff", b"q", b"")]


def test_the_decoder_gives_the_values_of_an_image_and_its_error_refuses_that_message_only() -> None:
    form = Form("prod", 1, BytesAs.UTF8, Selection(families=(b"f",)), decode=lengths)
    good, bad = Cell(value=b"a"), Cell(value=b"bad")
    entries = [Entry([good], images=[[one, bad._replace(family=b"g")]]) for one in (good, bad, good)]
    found = made(form, entries)
    assert found.refused == {1: "the decoder failed for column 'f', b'q': LookupError: no schema for t1"}
    assert [found.value(number) for number in (0, 2)] == [one.value for one in naive(form, [entries[0]] * 2)]
    assert found.value(1) == b""


def test_a_row_of_a_snapshot_and_both_runs_of_a_row_that_is_named_twice_have_their_images() -> None:
    first, second = Cell(qualifier=b"1"), Cell(qualifier=b"2")
    entries = [Entry([Cell(b"a"), Cell(b"b"), Cell(b"a")], images=[[first], [], [first, second]])]
    for snapshot in (None, SnapshotMark("s-1", 0)):
        found = made(Form("prod", 1, BytesAs.UTF8, snapshot=snapshot), entries)
        seen = [json.loads(found.value(number))["image"] for number in range(3)]
        assert [one["exact"] for one in seen] == [True, False, False]
        assert [[cell["qualifier"] for cell in one["cells"]] for one in seen] == [["1"], [], ["1", "2"]]


def test_a_changed_row_without_an_image_is_an_error() -> None:
    batch = batch_of([Entry([Cell(b"a")]), Entry([Cell(b"b")], 2)])
    form = Form("prod", 1)
    changed = changed_rows(form, batch, np.array([0]))
    known = images(form, batch, changed, [b""], np.array([True]))
    with pytest.raises(ValueError, match="without an image"):
        messages(form, batch, np.array([0, 1]), np.zeros(2, np.int32), known)


def test_only_picked_entries_become_messages_in_their_order() -> None:
    batch = batch_of([Entry([Cell(b"%d" % number)], number, table=f"t{number % 2}") for number in range(6)])
    found = messages(Form("prod", 1, BytesAs.UTF8), batch, np.array([4, 1]), np.array([7, 8], np.int32))
    assert found.entry.tolist() == [4, 1]
    assert [json.loads(found.value(i))["position"] for i in range(2)] == [[7, 4, 0], [8, 1, 0]]
    assert [json.loads(found.key(i)) for i in range(2)] == [{"table": "t0", "row": "4"}, {"table": "t1", "row": "1"}]


def test_no_entries_are_no_messages() -> None:
    found = messages(Form("prod", 1), batch_of([Entry([])]), np.array([], np.intp), np.array([], np.int32))
    assert (len(found), len(found.partitions(3)), found.refused) == (0, 0, {})


def test_each_entry_needs_its_incarnation() -> None:
    with pytest.raises(ValueError, match="1 incarnations for 2 entries"):
        messages(Form("prod", 1), batch_of([Entry([Cell()])] * 2), np.arange(2), np.zeros(1, np.int32))


def test_messages_take_a_few_times_the_memory_of_their_entries() -> None:
    cells = [Cell(b"%06d" % number, value=b"\x01\xff" * 50_000) for number in range(20)]
    for bytes_as in BytesAs:
        found = made(Form("prod", 1, bytes_as), [Entry(cells)])
        held = found.values.base
        assert held is not None
        assert held.nbytes < 7 * 20 * 100_000

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from unit.json_shape import written_schema
from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import TableDescriptor, new_table, table_name
from walferry.storage import Local
from walferry.streams.delivery import Claims, Delivery, Topic
from walferry.streams.message.changes import Form
from walferry.streams.message.events import schema_digest
from walferry.streams.message.model import ClaimedChange
from walferry.streams.ordering.stays import LogPlace, Opened, Taken
from walferry.streams.sending import Sending, Sent

TABLE = new_table("t1", {"f": {}})


class Recorder:
    """Keeps what is sent."""

    keeps_changes = keeps_positions = False
    positions: Mapping[str, bytes] = {}

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self.places: list[tuple[str, int]] = []

    def send(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]] | None
    ) -> None:
        assert value is not None
        self.values.append(json.loads(value))
        self.places.append((topic, partition))

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        raise AssertionError("sending does not commit")

    def write(self) -> None:
        raise AssertionError("sending does not commit")

    @property
    def numbers(self) -> list[tuple[str, int]]:
        """Region and sequence number of each change sent."""
        return [(value["region"], value["sequence_number"]) for value in self.values if "event" not in value]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [value["event"] for value in self.values if "event" in value]


def put(number: int, region: str = "a", size: int = 1, row: bytes = b"row") -> Entry:
    return Entry([Cell(row, value=b"v" * size)], number, region=region)


def bulk_load(number: int, value: bytes | None = None, region: str = "a") -> Entry:
    marker = pb.BulkLoadDescriptor(
        table_name=table_name("t1"), encoded_region_name=region.encode(), bulkload_seq_num=number
    )
    marker.stores.add(family_name=b"f", store_home_dir="f", store_file=["one"])
    content = marker.SerializeToString() if value is None else value
    return Entry([Cell(b"row", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, value=content)], number, region=region)


def taken(entries: Sequence[Entry], number: int = 5) -> Taken:
    batch = batch_of(entries)
    return Taken("g", "s", number, batch, np.arange(len(batch)), True)


def sending(
    sink: Recorder, *, most_bytes: int = 2000, partitions: int = 2, claims: Claims | None = None, **more: Any
) -> Sending:
    known: dict[str, Any] = {
        "describe": lambda table: TABLE, "tells_new_history": True, "schemas": {"t1": schema_digest(TABLE)},
    }  # fmt: skip
    delivery = Delivery({"t1": Topic("topic", partitions, most_bytes)}, sink, claims)
    return Sending(Form("c", 1), delivery, **(known | more))


def sent(sink: Recorder, passed: Sequence[Taken | Opened], **more: Any) -> Sent:
    return sending(sink, **more).send(passed, lambda region: 0)


def test_entries_are_sent_in_their_order_with_the_last_number_of_each_region() -> None:
    sink = Recorder()
    found = sent(sink, [taken([put(1), put(7, "b"), put(2)]), taken([put(3)], 6)])
    assert sink.numbers == [("a", 1), ("b", 7), ("a", 2), ("a", 3)]
    assert (found.messages, found.cells, found.last, found.held) == (4, 4, {"a": 3, "b": 7}, {})


def test_an_entry_that_is_too_large_holds_its_region_and_no_other() -> None:
    sink = Recorder()
    first = taken([put(1), put(2, size=3000), put(3), put(4, "b")])
    found = sent(sink, [first, taken([put(5), put(6, "b")], 6)])
    assert sink.numbers == [("a", 1), ("b", 4), ("b", 6)]
    assert found.last == {"a": 1, "b": 6}
    assert found.held == {"a": {"g": LogPlace(5, int(first.batch.offset[1]))}}
    (refused,) = found.refused
    assert (refused.region, refused.sequence_number, refused.file) == ("a", 2, "g.5")
    assert "the message has" in refused.reason
    assert refused.data == first.batch.buffer[first.batch.start[1] : first.batch.end[1]].tobytes()


def test_an_entry_is_sent_whole_or_not_at_all() -> None:
    sink = Recorder()
    two_rows = Entry([Cell(b"small", value=b"v"), Cell(b"large", value=b"v" * 3000)], 2, region="a")
    found = sent(sink, [taken([put(1), two_rows, put(3)])])
    assert sink.numbers == [("a", 1)]
    assert found.last == {"a": 1}


def test_entries_of_several_regions_that_cannot_be_sent_hold_each_its_own() -> None:
    sink = Recorder()
    found = sent(sink, [taken([put(1, size=3000), put(2, "b", size=3000), put(3, "c"), put(4), put(5, "b")])])
    assert sink.numbers == [("c", 3)]
    assert [one.region for one in found.refused] == ["a", "b"]
    assert found.held.keys() == {"a", "b"}
    assert found.last == {"c": 3}


def test_a_large_message_goes_to_the_folder_and_its_topic_names_the_file(tmp_path: Path) -> None:
    sink = Recorder()
    claims = Claims(Local(), str(tmp_path))
    for _ in range(2):  # the second time as after a kill before the commit
        found = sent(sink, [taken([put(1), put(2, size=3000), put(3)])], claims=claims)
    assert found.refused == []
    assert sink.numbers == [("a", 1), ("a", 2), ("a", 3)] * 2
    claimed = sink.values[1]
    jsonschema.validate(claimed, json.loads(written_schema("claimed-change")[1]))
    ClaimedChange.model_validate(claimed)
    path = Path(claimed["claim"]["path"])
    content = path.read_bytes()
    assert [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.*")] == ["topic/1/a/0.2.0.json"]
    assert (len(content), sha256(content).hexdigest()) == (claimed["claim"]["bytes"], claimed["claim"]["sha256"])
    whole = json.loads(content)
    assert whole.pop("cells")[0]["kind"] == "put"
    assert whole == {key: value for key, value in claimed.items() if key != "claim"}


def test_what_a_person_has_decided_to_leave_out_is_not_sent_and_counts_as_sent() -> None:
    sink = Recorder()
    one = taken([put(1), put(2, size=3000)])
    found = sent(sink, [one], left_out={("g.5", int(one.batch.offset[1])), ("g.6", int(one.batch.offset[0]))})
    assert sink.numbers == [("a", 1)]
    assert (found.last, found.refused) == ({"a": 2}, [])


def test_a_bulk_load_is_told_in_each_partition_between_the_changes_around_it() -> None:
    sink = Recorder()
    found = sent(sink, [taken([put(1), bulk_load(2), put(3)])], partitions=3)
    kinds = ["event" in value for value in sink.values]
    assert kinds == [False, True, True, True, False]
    assert sorted(sink.places[1:4]) == [("topic", 0), ("topic", 1), ("topic", 2)]
    assert found.last == {"a": 3}


@pytest.mark.parametrize("qualifier", [b"HBASE::BULK_LOAD", b"HBASE::SOMETHING_NEW"])
def test_a_marker_that_cannot_be_read_holds_its_region(qualifier: bytes) -> None:
    sink = Recorder()
    marker = Entry([Cell(b"row", b"METAFAMILY", qualifier, 1, value=b"\xff\xff\xff")], 2, region="a")
    found = sent(sink, [taken([put(1), marker, put(3)])])
    assert sink.numbers == [("a", 1)]
    assert [one.sequence_number for one in found.refused] == [2]


def test_a_new_history_is_told_once_and_only_where_it_can_be_told() -> None:
    begins = [Opened("t1", "a", 3, 1, begins=True), Opened("t1", "b", 3, 1)]
    for tells, events in ((True, [{"kind": "truncate"}] * 2), (False, [])):
        sink = Recorder()
        sent(sink, begins, tells_new_history=tells)
        assert sink.events == events


def test_a_changed_schema_is_told_when_a_region_opens_with_it_and_then_no_more() -> None:
    sink, asked = Recorder(), list[str]()

    def describe(table: str) -> TableDescriptor:
        asked.append(table)
        return new_table("t1", {"f": {}, "g": {}})

    sends = sending(sink, describe=describe, partitions=1)
    sends.send([Opened("t1", "a", 3, 0), taken([put(4)]), Opened("t1", "b", 9, 0)], lambda region: 0)
    sends.send([Opened("t1", "c", 3, 0)], lambda region: 0)
    assert [event["kind"] for event in sink.events] == ["schema"]
    assert sink.events[0]["families"].keys() == {"f", "g"}
    assert "event" in sink.values[0], "it comes before the first change after it"
    assert asked == ["t1", "t1"], "once for each pass"


def test_nothing_is_told_of_the_schema_of_a_dropped_table() -> None:
    sink = Recorder()
    sent(sink, [Opened("t1", "a", 3, 0)], describe=lambda table: None)
    assert sink.values == []


def test_a_claim_that_another_attempt_keeps_meanwhile_is_that_one(tmp_path: Path) -> None:
    class Meanwhile(Local):
        def rename(self, source: str, destination: str) -> None:
            Path(destination).write_bytes(b"content")
            super().rename(source, destination)

    path = Claims(Meanwhile(), str(tmp_path)).put("topic/1/a.json", b"content")
    assert [str(file) for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert Path(path).read_bytes() == b"content"

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from unit.json_shape import written_schema
from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.errors import DamagedInputError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import new_table, table_name
from walferry.streams.message import events
from walferry.streams.message.changes import Form
from walferry.streams.message.model import Notice, TableEvent

FORM = Form("c", 3)


def checked(message: events.Message) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(message.value)
    jsonschema.validate(value, json.loads(written_schema("table-event")[1]))
    TableEvent.model_validate(value)
    return value


def test_a_new_history_is_told_with_the_position_at_which_it_begins() -> None:
    message = events.new_history(FORM, "ns:t", "abc", 3, 2)
    value = checked(message)
    assert (value["table"], value["region"], value["epoch"], value["position"]) == ("ns:t", "abc", 3, [2, 3, 0])
    assert value["event"] == {"kind": "truncate"}
    assert json.loads(message.key) == {"table": "ns:t", "event": "truncate"}
    assert dict(message.headers)["position"] == b"2.3.0"


def test_a_changed_schema_is_told_without_defaults_and_without_keys() -> None:
    table = new_table("t", {"f": {"VERSIONS": "5", "TTL": "2147483647", "ENCRYPTION_KEY": "wrapped"}})
    value = checked(events.schema(FORM, table.with_attribute("OWNER", "me"), "abc", 9, 0))
    assert value["event"] == {"kind": "schema", "families": {"f": {"VERSIONS": "5"}}, "attributes": {"OWNER": "me"}}


def test_the_digest_of_a_schema_changes_when_its_event_does() -> None:
    table = new_table("t", {"f": {"VERSIONS": "5"}})
    digest = events.schema_digest(table)
    assert digest == events.schema_digest(new_table("t", {"f": {"VERSIONS": "5", "BLOCKSIZE": "65536"}}))
    assert digest != events.schema_digest(new_table("t", {"f": {"VERSIONS": "6"}}))
    assert digest != events.schema_digest(new_table("t", {"f": {"VERSIONS": "5"}, "g": {}}))
    assert digest != events.schema_digest(table.with_attribute("OWNER", "me"))


def test_a_bulk_load_is_told_with_its_files() -> None:
    marker = pb.BulkLoadDescriptor(table_name=table_name("t1"), encoded_region_name=b"r", bulkload_seq_num=9)
    for family, names in ((b"f", ["one", "two"]), (b"a b", ["three"])):
        marker.stores.add(family_name=family, store_home_dir=family.decode(), store_file=names)
    cell = Cell(b"row", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, value=marker.SerializeToString())
    batch = batch_of([Entry([Cell(value=b"v")], 8), Entry([cell], 9)])
    value = checked(events.bulk_load(FORM, batch, 1, 2, "file"))
    assert value["position"] == [2, 9, 0]
    loaded = value["event"]["files"]
    assert loaded == [
        {"family": "a b", "name": "three"}, {"family": "f", "name": "one"}, {"family": "f", "name": "two"},
    ]  # fmt: skip


def test_a_bulk_load_that_cannot_be_read_is_damage() -> None:
    cell = Cell(b"row", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, value=b"\xff\xff\xff")
    with pytest.raises(DamagedInputError, match="file is damaged at byte"):
        events.bulk_load(FORM, batch_of([Entry([cell], 9)]), 0, 0, "file")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (events.snapshot_begins(FORM, "t1", "s-1", 5), {"kind": "snapshot_begins", "snapshot": "s-1", "taken": 5}),
        (events.snapshot_ends(FORM, "t1", "s-1", 7), {"kind": "snapshot_ends", "snapshot": "s-1", "rows": 7}),
        (events.resolved(FORM, "t1", 9), {"kind": "resolved", "time": 9}),
    ],
)
def test_a_notice_has_no_position_and_is_of_the_published_schema(event: events.Message, expected: Any) -> None:
    value = json.loads(event.value)
    jsonschema.validate(value, json.loads(written_schema("notice")[1]))
    Notice.model_validate(value)
    assert value["event"] == expected
    assert json.loads(event.key) == {"table": "t1", "event": expected["kind"]}
    assert dict(event.headers) == {"epoch": str(FORM.epoch).encode()}

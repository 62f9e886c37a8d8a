"""The last image of each row is what its upsert topic gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest

from unit.json_shape import written_schema
from unit.streams.message.naive_messages import Cell, Entry, batch_of, made
from walferry.storage import Local
from walferry.streams.delivery import Claims, Topic
from walferry.streams.image.upserts import Upserts
from walferry.streams.message.changes import BytesAs, Form
from walferry.streams.message.model import UpsertedRow

FORM = Form("c", 1, BytesAs.UTF8)
LOW, HIGH = Cell(qualifier=b"low", value=b"1"), Cell(qualifier=b"high", value=b"2")


class Recorder:
    def __init__(self) -> None:
        self.sent: list[tuple[str, int, bytes, bytes | None, list[tuple[str, bytes]] | None]] = []

    def send(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]] | None
    ) -> None:
        self.sent.append((topic, partition, key, value, headers))

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        raise AssertionError("upserts are committed by their caller")


def sent(entries: list[Entry], most_bytes: int = 2000, claims: Claims | None = None) -> Recorder:
    sink = Recorder()
    upserts = Upserts(FORM, {"t1": Topic("rows", 3, most_bytes)}, sink, claims)
    upserts.send(batch_of(entries), made(FORM, entries))
    return sink


def test_the_last_image_of_each_row_is_sent_as_its_change_is_and_no_cell_is_a_tombstone() -> None:
    entries = [
        Entry([Cell(b"a"), Cell(b"b")], 1, images=[[LOW]]),
        Entry([Cell(b"a")], 2, images=[[HIGH, LOW]]),
        Entry([Cell(b"b"), Cell(b"b", qualifier=b"x")], 3, incarnation=1, images=[[]]),
    ]
    changes = [made(FORM, [one]) for one in entries[1:]]
    first, second = sent(entries).sent
    for change, (topic, partition, key, _, headers) in zip(changes, (first, second), strict=True):
        assert (topic, partition, key) == ("rows", change.partitions(3)[0], change.key(0))
        assert headers == change.headers(0)
    assert first[3] == (
        b'{"schema":1,"cluster":"c","table":"t1","row":"a","write_time":1700000000000,"epoch":1,"position":[0,2,0],'
        b'"exact":false,"cells":%b}'
        % json.dumps(json.loads(changes[0].value(0))["image"]["cells"], separators=(",", ":")).encode()
    )
    assert second[3] is None
    jsonschema.validate(json.loads(first[3]), json.loads(written_schema("upserted-row")[1]))


def test_tables_without_an_upsert_topic_give_none() -> None:
    assert sent([Entry([Cell(b"a")], table="t2", images=[[LOW]])]).sent == []


def test_a_value_that_is_too_large_is_in_a_file(tmp_path: Path) -> None:
    one = Entry([Cell(b"a")], 7, images=[[LOW._replace(value=b"v" * 3000)]])
    ((_, _, _, value, _),) = sent([one], claims=Claims(Local(), str(tmp_path))).sent
    claimed = UpsertedRow.model_validate_json(value or b"")
    assert claimed.cells is None
    assert claimed.claim is not None
    whole = json.loads(Path(claimed.claim.path).read_bytes())
    assert whole["cells"][0]["value"] == "v" * 3000
    assert len(value or b"") < 2000


@pytest.mark.parametrize("exact", [True, False])
def test_a_value_says_whether_it_is_exact(exact: bool) -> None:
    ((_, _, _, value, _),) = sent([Entry([Cell(b"a")], images=[[LOW] if exact else [HIGH, LOW]])]).sent
    assert json.loads(value or b"")["exact"] is exact

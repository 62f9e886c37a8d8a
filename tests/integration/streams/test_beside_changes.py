"""What else goes through a topic: events of bulk loads, and messages that name a file; and how fast it all goes."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from integration.migration.moves import unique
from integration.streams.bulk_loads import load_file
from integration.streams.streamers import PARTITIONS, Lay, Streamer
from kafka_reading import read
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.streams.message.model import Change, ClaimedChange, TableEvent

pytestmark = pytest.mark.cluster

MOST_BYTES = 4000
"""of a message of the topic"""
SLOW = 200
"""bytes per second"""
ROW = b"row"


def create_topic(admin: AdminClient, streamer: Streamer, table: str) -> None:
    """A topic that takes only small messages."""
    name = f"{streamer.name}.{table}"
    wanted = NewTopic(name, PARTITIONS, 1, config={"max.message.bytes": str(MOST_BYTES)})
    admin.create_topics([wanted])[name].result(30)


def partitions_of(streamer: Streamer, table: str) -> dict[int, list[dict[str, Any]]]:
    """The messages' values, by partition."""
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in range(PARTITIONS)}
    for one in read(streamer.address, f"{streamer.name}.{table}", PARTITIONS):
        found[one.partition].append(json.loads(one.value or b""))
    return found


def put(client: HBaseClient, table: str, value: bytes) -> None:
    client.put(table, [Cell(ROW, b"f", b"q", value)])


def test_large_messages_and_bulk_loads_keep_their_place_among_changes_and_a_throttle_slows_them(
    source: MiniCluster, at_source: HBaseClient, admin: AdminClient, lay: Lay, tmp_path: Path
) -> None:
    table, folder = unique("s"), tmp_path / "large"
    at_source.create_table(table, {"f": {}})
    streamer = lay(table, bytes_as="utf8", large_messages=str(folder), throttle={"write_bytes": SLOW})
    create_topic(admin, streamer, table)
    judge = streamer.judge(table)
    streamer.start()
    put(at_source, table, b"a" * 1000)
    judge.await_more(0)
    put(at_source, table, b"b" * 1000)
    judge.await_more(1)
    first, second = (one.created_ms for one in judge.seen())
    assert second - first > 0.8 * 1000 * 1000 / SLOW
    assert "without a limit" in streamer.command("throttle", streamer.name, "--off").stdout

    for value in (b"c", b"d" * 10 * MOST_BYTES, b"e"):
        put(at_source, table, value)
    judge.await_more(3)
    loaded = load_file(source, at_source, table, ROW)
    put(at_source, table, b"f")
    judge.await_more(4)
    (place,) = (number for number, found in partitions_of(streamer, table).items() if "row" in found[0])
    for number, found in partitions_of(streamer, table).items():
        if number == place:
            changes = [*found[:3], found[4], found[6]]
            assert [one["cells"][0]["value"][:1] for one in changes] == ["a", "b", "c", "e", "f"]
            require_claim(found[3], folder)
            assert [one["position"] for one in found] == sorted(one["position"] for one in found)
            found = found[5:6]
        (event,) = found
        assert TableEvent.model_validate(event).event.kind == "bulk_load"
        assert {(file["family"], file["name"]) for file in event["event"]["files"]} == loaded


def require_claim(value: dict[str, Any], folder: Path) -> None:
    """The message names a file that has the same message with its cells."""
    claim = ClaimedChange.model_validate(value).claim
    path = Path(claim.path)
    content = path.read_bytes()
    assert path.is_relative_to(folder)
    assert (claim.bytes, claim.sha256) == (len(content), sha256(content).hexdigest())
    whole = json.loads(content)
    Change.model_validate(whole)
    (cell,) = whole.pop("cells")
    assert cell["value"] == "d" * 10 * MOST_BYTES
    assert whole == {key: one for key, one in value.items() if key != "claim"}
    assert [file for file in folder.rglob("*") if file.is_file()] == [path]

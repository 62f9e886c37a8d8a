"""Rows first, then changes: a consumer that applies them in order has what the source shows, without gap or overlap."""

from __future__ import annotations

import base64
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from integration.migration.moves import unique
from integration.streams.judging import SPLIT_KEYS, STEMS, Client, Journal, Writer, wait_until, writing
from integration.streams.streamers import PARTITIONS, Lay, Streamer
from integration.streams.test_stream import move_some
from kafka_reading import read
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.hbase import mutate as change
from walferry.hbase.client import HBaseClient

pytestmark = pytest.mark.cluster

VERSIONS = 1000


class Column(NamedTuple):
    row: bytes
    family: str
    qualifier: bytes


class Message(NamedTuple):
    """What a consumer sees, in the order of its partition."""

    partition: int
    snapshot: str | None
    event: dict[str, Any] | None
    row: bytes
    position: tuple[int, int, int]
    cells: list[tuple[Column, str, int, bytes | None]]
    """column, kind, timestamp and value"""


@pytest.fixture
def make_table(at_source: HBaseClient) -> Callable[[], str]:
    """Creates a table of five regions with a name of its own."""

    def make() -> str:
        # A compaction that drops markers would let later puts of old timestamps show that they hide.
        name, family = unique("s"), {"VERSIONS": str(VERSIONS), "KEEP_DELETED_CELLS": "TRUE"}
        at_source.create_table(name, {"f": family, "g": family}, SPLIT_KEYS)
        return name

    return make


def messages(streamer: Streamer, table: str) -> list[Message]:
    """All messages of a table, in the order of each partition."""
    found = []
    for one in read(streamer.address, f"{streamer.name}.{table}", PARTITIONS, timeout_s=60):
        value = json.loads(one.value or b"")
        row = base64.b64decode(value.get("row", ""))
        cells = [
            (
                Column(row, cell["family"], base64.b64decode(cell["qualifier"])), cell["kind"], cell["timestamp"],
                base64.b64decode(cell["value"]) if "value" in cell else None,
            )
            for cell in value.get("cells", ())
        ]  # fmt: skip
        found.append(
            Message(
                one.partition, value.get("snapshot"), value.get("event"), row, tuple(value.get("position", ())), cells
            )
        )
    return found


def shown(found: list[Message]) -> dict[tuple[Column, int], bytes]:
    """What a consumer shows that applies all messages by HBase's rules."""
    total: dict[tuple[Column, int], bytes] = {}
    for partition in range(PARTITIONS):
        mine = [one for one in found if one.partition == partition]
        emptied = [number for number, one in enumerate(mine) if one.event and one.event["kind"] == "truncate"]
        total |= of_cells(mine[emptied[-1] if emptied else 0 :])
    return total


def of_cells(found: list[Message]) -> dict[tuple[Column, int], bytes]:
    puts: dict[Column, dict[int, bytes]] = defaultdict(dict)
    versions: set[tuple[Column, int]] = set()
    columns: dict[Column, int] = {}
    families: dict[tuple[bytes, str], int] = {}
    of_families: set[tuple[bytes, str, int]] = set()
    for one in found:
        for column, kind, at, value in one.cells:
            family = (column.row, column.family)
            if kind == "put":
                puts[column][at] = value or b""
            elif kind == "delete_version":
                versions.add((column, at))
            elif kind == "delete_column":
                columns[column] = max(at, columns.get(column, -1))
            elif kind == "delete_family":
                families[family] = max(at, families.get(family, -1))
            else:
                of_families.add((*family, at))
    return {
        (column, at): value
        for column, of_column in puts.items()
        for at, value in of_column.items()
        if at > max(columns.get(column, -1), families.get((column.row, column.family), -1))
        and (column, at) not in versions
        and (column.row, column.family, at) not in of_families
    }


def scanned(client: HBaseClient, table: str) -> dict[tuple[Column, int], bytes]:
    """What HBase shows."""
    found = {}
    for block in client.scan(table, max_versions=VERSIONS):
        for cell in cells_to_arrow(index_cells(np.frombuffer(block, np.uint8))).to_pylist():
            column = Column(cell["row"], cell["family"].decode(), cell["qualifier"])
            found[column, cell["timestamp"]] = cell["value"]
    return found


def require_copy(streamer: Streamer, client: HBaseClient, table: str) -> list[Message]:
    """Wait until the messages show what the source shows; require positions that rise. Returns the messages."""
    expected, found = scanned(client, table), list[Message]()

    def is_equal() -> bool:
        found[:] = messages(streamer, table)
        return shown(found) == expected

    try:
        wait_until(is_equal, "the consumer does not show what the source shows", 60)
    except AssertionError:
        ours = shown(found)
        missing = [key for key in expected if ours.get(key) != expected[key]]
        more = [key for key in ours if key not in expected]
        column, at = [*missing, *more][0]
        history = [
            (one.snapshot, one.position, value)
            for one in found for other, _, when, value in one.cells if (other, when) == (column, at)
        ]  # fmt: skip
        raise AssertionError(
            f"missing {len(missing)}, more {len(more)}; {column} at {at} should be {expected.get((column, at))!r}, and "
            f"was {history}"
        ) from None
    require_rising(found)
    return found


def require_rising(found: list[Message]) -> None:
    last: dict[bytes, tuple[int, int, int]] = {}
    for one in found:
        if one.cells:
            assert one.position > last.get(one.row, (-1, -1, -1)), one
            last[one.row] = one.position


def require_no_overlap(found: list[Message], name: str) -> None:
    """No change after the snapshot has a cell that is in it."""
    held: dict[bytes, set[Any]] = {}
    for one in found:
        if one.snapshot == name:
            assert one.row not in held, f"{one.row!r} was sent twice"
            held[one.row] = set(one.cells)
        elif one.cells and one.snapshot is None:
            both = held.get(one.row, set()) & set(one.cells)
            assert not both, f"{one.row!r} has these in the snapshot, too: {both}"


def names(found: list[Message]) -> list[str]:
    """The snapshots, in their order."""
    return list(dict.fromkeys(one.snapshot for one in found if one.snapshot))


def fill(source: MiniCluster, table: str, count: int, size: int = 100) -> None:
    """Rows that nobody writes to later."""
    with Client(source.address) as client:
        for begin in range(0, count, 500):
            rows = [STEMS[n % 5] + b"-filled-%06d" % n for n in range(begin, min(count, begin + 500))]
            client.mutate(
                table, [change.put(row, [change.Cell(row, b"f", b"v", row * (size // len(row)), 5)]) for row in rows]
            )


def test_rows_come_first_and_changes_follow_without_a_gap_or_an_overlap(
    source: MiniCluster, at_source: HBaseClient, make_table: Callable[[], str], lay: Lay
) -> None:
    table, journal = make_table(), Journal()
    fill(source, table, 3000)
    at_source.flush_table(table)
    with Client(source.address) as client:
        Writer(client, table, journal, "before").write_all_kinds()
    streamer = lay(table, snapshot=True, resolved=1)
    with writing(source, table, journal):
        time.sleep(1)
        streamer.start()
        wait_until(lambda: names(messages(streamer, table)), "no rows come")
        at_source.split_region(at_source.regions(table)[0], b"b")
        time.sleep(2)
    found = require_copy(streamer, at_source, table)
    (name,) = names(found)
    require_no_overlap(found, name)
    events = [one.event for one in found if one.event and one.event["kind"].startswith("snapshot")]
    assert [event["kind"] for event in events] == ["snapshot_begins", "snapshot_ends"] * PARTITIONS
    rows = sum(one.snapshot == name for one in found)
    assert {event["rows"] for event in events[1::2]} == {rows}
    written_ms = int(time.time() * 1000)

    def is_told() -> bool:
        told = [one.event["time"] for one in messages(streamer, table) if one.event and "time" in one.event]
        return len([moment for moment in told if moment > written_ms]) >= PARTITIONS

    wait_until(is_told, "the resolved time does not pass")
    assert not [snapshot.name for snapshot in at_source.snapshots() if snapshot.table == table]


@pytest.mark.long
def test_kills_while_rows_are_sent_repeat_none_and_lose_none(
    source: MiniCluster, at_source: HBaseClient, make_table: Callable[[], str], lay: Lay
) -> None:
    table, journal = make_table(), Journal()
    fill(source, table, 2000, 3000)
    streamer = lay(table, snapshot=True, throttle={"write_bytes": 250_000})
    with writing(source, table, journal):
        streamer.start()
        count = 0
        for _ in range(2):
            count = await_rows(streamer, table, count)
            wait_until(lambda: "first the rows that the table has" in status(streamer), "it does not tell its progress")
            streamer.kill()
            move_some(at_source, table, random.Random(count), 1)
            streamer.launch("resume", streamer.name)
        assert 0 < count < 2000
        assert streamer.command("throttle", streamer.name, "--off").returncode == 0
    found = require_copy(streamer, at_source, table)
    (name,) = names(found)
    require_no_overlap(found, name)
    assert sum(b"-filled-" in one.row for one in found if one.snapshot) == 2000


def test_changes_and_a_split_of_a_table_whose_rows_wait_are_sent_once_also_after_a_kill(
    source: MiniCluster, at_source: HBaseClient, make_table: Callable[[], str], lay: Lay
) -> None:
    first, second = sorted((make_table(), make_table()))
    fill(source, first, 2000, 3000)
    streamer = lay(first, second, snapshot=True, throttle={"write_bytes": 700_000})
    streamer.start()
    await_rows(streamer, first, 0)
    fill(source, second, 100)
    at_source.split_region(at_source.regions(second)[0], b"b")
    assert streamer.command("throttle", streamer.name, "--off").returncode == 0
    wait_until(lambda: b'"step":"done"' in position(streamer, f"snapshot {second}"), "its rows are not sent")
    streamer.kill()
    streamer.launch("resume", streamer.name)
    with Client(source.address) as client:
        client.mutate(second, [change.put(b"last", [change.Cell(b"last", b"f", b"q", b"v")])])
    wait_until(lambda: b"last" in [one.row for one in messages(streamer, second)], "the last change does not come")
    found = require_copy(streamer, at_source, second)
    assert sum(b"-filled-" in one.row for one in found) == 100, "each row once, from the snapshot or the log"


@pytest.mark.long
def test_the_rows_of_one_table_are_sent_again_while_the_other_goes_on(
    source: MiniCluster, at_source: HBaseClient, make_table: Callable[[], str], lay: Lay
) -> None:
    first, second = make_table(), make_table()
    journals = {first: Journal(), second: Journal()}
    streamer = lay(first, second)
    streamer.start()
    with writing(source, first, journals[first]), writing(source, second, journals[second]):
        time.sleep(2)
        at_source.flush_table(first)
        refused = streamer.command("send-again", streamer.name, "--table", "other", "--reason", "x")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
        asked = streamer.command("send-again", streamer.name, "--table", first, "--reason", "an index was lost")
        assert asked.returncode == 0, asked.stderr
        move_some(at_source, first, random.Random(1), 2)
        wait_until(lambda: names(messages(streamer, first)), "no rows come")
        at_source.split_region(at_source.regions(first)[0], b"b")
        time.sleep(1)
    for table in journals:
        found = require_copy(streamer, at_source, table)
        if table == first:
            (name,) = names(found)
            require_no_overlap(found, name)
            before = {one.row for one in found[: [one.snapshot for one in found].index(name)] if one.cells}
            assert before & {one.row for one in found if one.snapshot}
        else:
            assert names(found) == []
    at_source.disable_table(first)
    at_source.truncate_table(first)
    with writing(source, first, journals[first]):
        time.sleep(1)
    require_copy(streamer, at_source, first)


def position(streamer: Streamer, key: str) -> bytes:
    """A record of the position topic; b"" if there is none."""
    records = read(streamer.address, f"walferry.{streamer.name}.positions", 1)
    return {(one.key or b"").decode(): one.value or b"" for one in records}.get(key, b"")


def status(streamer: Streamer) -> str:
    """What `walferry status` says."""
    return streamer.command("status", streamer.name).stdout


def await_rows(streamer: Streamer, table: str, more_than: int) -> int:
    """Wait until more rows of snapshots were sent; how many there are then."""
    found = 0

    def are_there() -> bool:
        nonlocal found
        found = sum(bool(one.snapshot) for one in messages(streamer, table))
        return found > more_than

    wait_until(are_there, "no more rows come")
    return found

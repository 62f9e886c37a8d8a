"""A stream that gets more tables goes on with them, and one that begins a new epoch leaves the old positions alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count

import pytest

from integration.migration.moves import unique
from integration.streams.judging import wait_until
from integration.streams.streamers import PARTITIONS, Lay, Streamer
from kafka_reading import Seen, read
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell

pytestmark = pytest.mark.cluster


class Numbers:
    """Puts 1, 2, 3, … to a row of a table, and knows which of them are in its topic."""

    def __init__(self, client: HBaseClient, streamer: Streamer, table: str) -> None:
        self._client, self._streamer, self._table = client, streamer, table
        self._next = count(1)
        self.last = 0

    def put(self, times: int = 3) -> None:
        """Put the next numbers."""
        for _ in range(times):
            self.last = next(self._next)
            self._client.put(self._table, [Cell(b"row", b"f", b"q", b"%d" % self.last)])

    def seen(self, epoch: int = 1) -> list[int]:
        """The numbers that messages of an epoch have, in their order."""
        values = [json.loads(one.value or b"") for one in self.messages(epoch)]
        return [int(cell["value"]) for value in values for cell in value.get("cells", ())]

    def messages(self, epoch: int) -> list[Seen]:
        """The messages of an epoch, by their header."""
        messages = read(self._streamer.address, f"{self._streamer.name}.{self._table}", PARTITIONS)
        return [one for one in messages if dict(one.headers)["epoch"] == b"%d" % epoch]  # type: ignore[call-overload]

    def require_all_since(self, first: int, epoch: int = 1) -> None:
        """Wait until the last number is there, and require that each one from a number on is there once, in order."""
        wait_until(lambda: self.last in self.seen(epoch), f"{self.last} of {self._table} does not come")
        assert self.seen(epoch) == list(range(first, self.last + 1))


def put_until(done: Callable[[], object], what: str, *numbers: Numbers) -> None:
    """Put numbers until something is so."""

    def put() -> object:
        for one in numbers:
            one.put(1)
        return done()

    wait_until(put, what)


def test_a_table_joins_at_a_fence_of_its_own_and_a_new_epoch_begins_at_a_new_one(
    at_source: HBaseClient, lay: Lay
) -> None:
    first, second = unique("s"), unique("s")
    for table in (first, second):
        at_source.create_table(table, {"f": {}})
    streamer = lay(first, bytes_as="utf8")
    old, new = (Numbers(at_source, streamer, table) for table in (first, second))
    streamer.start()
    old.put()
    new.put()
    old.require_all_since(1)
    streamer.kill()
    old.put()
    new.put()
    before = new.last
    streamer.write_spec(tables=[first, second])
    streamer.launch("stream", "stream.yaml")
    put_until(new.seen, "the stream of the second table does not begin", old, new)
    began = new.seen()[0]
    assert began > before
    old.require_all_since(1)
    new.require_all_since(began)

    assert streamer.command("abort", streamer.name, "--reason", "a new epoch").returncode == 0
    assert streamer.ended()[0] == 0
    sent = {one: one.seen() for one in (old, new)}
    old.put()
    new.put()
    before = old.last
    streamer.write_spec(epoch=2)
    streamer.launch("stream", "stream.yaml")
    put_until(lambda: old.seen(2), "the new epoch does not begin", old)
    new.put()
    at_source.modify_table(at_source.describe(first).with_attribute("COMPACTION_ENABLED", "false"))
    old.put()
    began = old.seen(2)[0]
    assert began > before
    old.require_all_since(began, 2)
    new.require_all_since(new.last - 2, 2)
    assert {one: one.seen() for one in (old, new)} == sent
    for one in (old, new):
        assert {json.loads(message.value or b"")["epoch"] for message in one.messages(2)} == {2}
    assert sum(b'"event":{"kind":"schema"' in (message.value or b"") for message in old.messages(2)) == PARTITIONS

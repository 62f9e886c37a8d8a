"""A run that receives into Kafka, whose processes take its table from each other, with Kafka in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from unit.receive.call_builder import REGION, Sent, received
from unit.receive.memory_kafka import MemoryKafka
from unit.receive.two_clusters import KAFKA_KEYS
from walferry.clock import steady_s
from walferry.formats.cells import encode_cell
from walferry.ledger import Ledger
from walferry.receive import into_kafka
from walferry.receive.into_kafka import Topics
from walferry.receive.kafka_run import KafkaReceiveRun
from walferry.receive.kafka_spec import ResolvedKafkaReceiveSpec
from walferry.receive.start import open_receive
from walferry.receive.topic_table import TopicTable
from walferry.replay.rights.lease import HeldLease
from walferry.run.spec import TablePair

SOURCE = UUID(int=5)
TABLE = "shop:orders"
PAIR = TablePair(source=TABLE, target=TABLE)
Key = tuple[int, str]
"""number and region of an edit"""


class Process:
    """A process of the run, which holds the table until it is closed."""

    def __init__(self, topics: Topics, opened: ExitStack) -> None:
        self.topics, self._opened = topics, opened
        self.table: TopicTable = opened.enter_context(topics.opened(PAIR))

    def close(self) -> None:
        self._opened.close()

    def send(self, *edits: int | Key | Sent, deadline_s: float = 20) -> None:
        batch = received(*(self._entry(edit) for edit in edits)).batch
        self.topics.apply(self.table, batch, np.arange(len(batch)), steady_s() + deadline_s)

    def _entry(self, edit: int | Key | Sent) -> Sent:
        if isinstance(edit, Sent):
            return edit
        number, region = (edit, REGION) if isinstance(edit, int) else edit
        return Sent([put(b"r%d" % number)], region, TABLE, number, clusters=[(0, 7), (0, 5)])


class World:
    """A run, its ledger, and Kafka; leases in memory, which a new process takes from the one before."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger, self.kafka, self.opened = ledger, MemoryKafka(), ExitStack()
        self._leases = 0
        monkeypatch.setattr(into_kafka, "prepare", self.kafka.prepare)
        monkeypatch.setattr("walferry.streams.kafka.sink.Sink.open", self.kafka.open)
        monkeypatch.setattr("walferry.replay.rights.lease.held_leases", self._held)
        monkeypatch.setattr(into_kafka, "LOOK_SECONDS", 0.0)
        self.begin()

    def begin(self, **keys: Any) -> None:
        """Begin a run, or go on with it."""
        spec = ResolvedKafkaReceiveSpec.model_validate(KAFKA_KEYS | {"bytes_as": "utf8"} | keys)
        self.run_id = open_receive(self.ledger, spec, "kim").run_id
        self.received = self.ledger.of(self.run_id).received

    def process(self) -> Process:
        run = KafkaReceiveRun(self.ledger, self.run_id, "p1")
        run.__dict__["source"] = SimpleNamespace(
            cluster_uuid=lambda: SOURCE, cluster_id=lambda: "west", address=run.spec.source_address()
        )
        run.__dict__["_zookeeper"] = SimpleNamespace(client=None, close=lambda: None)
        opened = ExitStack()
        self.opened.push(opened)
        return Process(Topics(run), opened)

    @contextmanager
    def _held(self, zk: object, names: list[str], **_: Any) -> Iterator[dict[str, HeldLease]]:
        self._leases += 1
        (name,) = names
        yield {name: HeldLease(name, self._leases)}

    def sums(self) -> tuple[int, ...]:
        """Entries that were sent, repeated, late, and calls."""
        (total,) = self.received.totals()
        return total.entries, total.repeated, total.late, total.calls

    def rows(self) -> int:
        return len(list(self.received.contents(TABLE)))


def put(row: bytes, value: bytes = b"v") -> bytes:
    return encode_cell(row, b"d", b"q", 1, 4, value)


class Call:
    """A call in a thread of its own."""

    def __init__(self, process: Process, *edits: Any, deadline_s: float = 20) -> None:
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._send, args=(process, edits, deadline_s), daemon=True)
        self.thread.start()

    def _send(self, process: Process, edits: Any, deadline_s: float) -> None:
        try:
            process.send(*edits, deadline_s=deadline_s)
        except BaseException as error:
            self.error = error


def together(process: Process, *edits: Any) -> list[Call]:
    """Calls that a transaction takes together, each with one edit, once they have ended."""
    with process.table._turn:
        calls = []
        for edit in edits:
            calls.append(Call(process, edit))
            until(lambda: len(process.table._waiting) == len(calls))
    for call in calls:
        call.thread.join(5)
    assert not any(call.thread.is_alive() for call in calls)
    return calls


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

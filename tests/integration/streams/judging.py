"""Writers that keep a journal of what they wrote, and a judge: a plain consumer of Kafka that compares."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import random
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from kafka_reading import Seen, read
from walferry.embedded.cluster import MiniCluster
from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate as change
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import RegionNotServedError

DEADLINE_S = 120.0
FAMILIES = (b"f", b"g")
SPLIT_KEYS = (b"d", b"h", b"m", b"q")
STEMS = (b"a", b"e", b"j", b"n", b't\xff\x00"\\')


@dataclass(frozen=True)
class Change:
    """One cell as the log should have it."""

    kind: str
    family: bytes
    qualifier: bytes = b""
    value: bytes | None = None
    timestamp: int | None = None
    """None: the server's"""

    def is_seen_as(self, other: Change) -> bool:
        """Whether a consumer sees this cell so."""
        return self == Change(
            other.kind, other.family, other.qualifier, other.value,
            None if self.timestamp is None else other.timestamp,
        )  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What one call of a client changed in a row."""

    changes: list[Change]
    is_repeated: bool
    """the client did not know how it ended and has sent it again: the log may have it, or parts of it, several times or
    in another order"""


@dataclass
class Journal:
    """What was written to each row of a table, in order."""

    rows: dict[bytes, list[Call]] = field(default_factory=lambda: defaultdict(list))

    @property
    def changes(self) -> int:
        """How many cells a consumer must see, at least."""
        return sum(len(call.changes) for calls in self.rows.values() for call in calls)


class Client(HBaseClient):
    """A client that tells whether it may have sent an edit twice."""

    attempts = repeats = 0
    is_cautious = False
    """one refused edit of a batch hides how the others ended, so every edit counts that was sent again"""

    def __enter__(self) -> Client:
        return self

    def location_failed(self, table: str, error: TransientError, attempt: int) -> None:
        self.attempts += 1
        self.repeats += self.is_cautious or not isinstance(error, RegionNotServedError)  # which has changed nothing
        super().location_failed(table, error, attempt)


Edit = tuple[bytes, pb.MutationProto, list[Change]]


class Writer:
    """Writes to rows that nobody else writes to: edits of every kind, one call after the other."""

    def __init__(self, client: Client, table: str, journal: Journal, name: str, *, all_kinds: bool = True) -> None:
        """`all_kinds`: also those whose effect on the log differs if they are sent twice."""
        self._client, self._table, self._journal, self._name = client, table, journal, name
        self._dice = random.Random(name)
        self._numbers = itertools.count(1)
        self._rows = [stem + f"-{name}-{number}".encode() for stem in STEMS for number in range(3)]
        self._sums: dict[bytes, tuple[int, bytes]] = defaultdict(lambda: (0, b""))
        once = [self._increment, self._delete_row, self._delete_newest] if all_kinds else []
        self._kinds = [
            self._put, self._put, self._put_families, self._put_old, self._put_at_equal_times, self._put_rows,
            self._put_rows, self._delete, *once,
        ]  # fmt: skip

    def write(self, times: int = 1) -> None:
        """Write something to a row, so many times in quick succession."""
        row = self._dice.choice(self._rows)
        for _ in range(times):
            self._dice.choice(self._kinds)(row)

    def write_all_kinds(self) -> None:
        """Write something of each kind to the same row."""
        for kind in dict.fromkeys(self._kinds):
            kind(self._rows[0])
        for _ in range(4):
            self._delete(self._rows[0])

    def _send(self, *edits: Edit) -> None:
        before, deadline = self._tries(edits), time.monotonic() + DEADLINE_S
        while True:
            try:
                self._client.mutate(self._table, [mutation for _, mutation, _ in edits])
                break
            except TransientError:
                if time.monotonic() > deadline:
                    raise
                self._client.repeats += 1
        by_row: dict[bytes, list[Change]] = defaultdict(list)
        for row, _, changes in edits:
            by_row[row] += changes
        for row, changes in by_row.items():
            self._journal.rows[row].append(Call(changes, self._tries(edits) > before))

    def _tries(self, edits: Sequence[Edit]) -> int:
        """Rises when what the log has of these edits is not certain. If a region closes in the middle of a batch, the
        client sends the refused edits again, those of one row perhaps behind later ones."""
        is_ordered = len({row for row, _, _ in edits}) == len(edits)
        return self._client.repeats if is_ordered else self._client.repeats + self._client.attempts

    def _value(self) -> bytes:
        return f"{self._name}-{next(self._numbers)}".encode()

    def _put_of(self, row: bytes, *cells: tuple[bytes, bytes, int | None]) -> Edit:
        """Put unique values to columns (family, qualifier) at timestamps."""
        values = [self._value() for _ in cells]
        made = [change.Cell(row, f, q, v, ts) for (f, q, ts), v in zip(cells, values, strict=True)]
        return row, change.put(row, made), [Change("put", c.family, c.qualifier, c.value, c.timestamp) for c in made]

    def _put(self, row: bytes) -> None:
        self._send(self._put_of(row, (b"f", b"q", None)))

    def _put_families(self, row: bytes) -> None:
        self._send(self._put_of(row, (b"f", b"a", None), (b"f", b"b", 7), (b"g", b"\xfe\n", None), (b"g", b"", 2**62)))

    def _put_old(self, row: bytes) -> None:
        """Empty values, at timestamps of long ago."""
        at = next(self._numbers)
        cell = change.Cell(row, b"g", b"empty", b"", at)
        self._send((row, change.put(row, [cell]), [Change("put", b"g", b"empty", b"", at)]))

    def _put_at_equal_times(self, row: bytes) -> None:
        at = int(time.time() * 1000)
        for _ in range(3):
            self._send(self._put_of(row, (b"f", b"q", at)))
        self._send(*(self._put_of(row, (b"f", b"q", at)) for _ in range(3)))

    def _put_rows(self, row: bytes) -> None:
        """Several rows in one batch, one of them twice, with others in between."""
        others = self._dice.sample([other for other in self._rows if other != row], 4)
        self._send(*(self._put_of(one, (b"f", b"q", None), (b"g", b"q", 5)) for one in (row, *others, row)))

    def _delete(self, row: bytes) -> None:
        at = next(self._numbers)
        made: list[tuple[pb.MutationProto, Change]] = [
            (change.delete_version(row, b"f", b"q", at), Change("delete_version", b"f", b"q", None, at)),
            (change.delete_column(row, b"g", b"q", at), Change("delete_column", b"g", b"q", None, at)),
            (change.delete_family(row, b"g", at), Change("delete_family", b"g", b"", None, at)),
            (change.delete_family_version(row, b"f", at), Change("delete_family_version", b"f", b"", None, at)),
        ]
        mutation, changed = made[at % len(made)]
        self._send((row, mutation, [changed]))

    def _delete_row(self, row: bytes) -> None:
        self._send((row, change.delete_row(row), [Change("delete_family", family) for family in FAMILIES]))

    def _delete_newest(self, row: bytes) -> None:
        self._send((row, change.delete_version(row, b"f", b"q"), [Change("delete_version", b"f", b"q")]))

    def _increment(self, row: bytes) -> None:
        """Increment and append, in a row of their own: their results depend on what was there."""
        row += b"-sum"
        number, text = self._sums[row]
        self._send(
            (row, change.increment(row, b"f", b"n", 3), [Change("put", b"f", b"n", struct.pack(">q", number + 3))])
        )
        more = self._value()
        self._send((row, change.append(row, b"g", b"t", more), [Change("put", b"g", b"t", text + more)]))
        self._sums[row] = number + 3, text + more


@contextmanager
def writing(
    source: MiniCluster,
    table: str,
    journal: Journal,
    *,
    writers: int = 2,
    pause_s: float = 0.01,
    all_kinds: bool = True,
    times: int = 1,
) -> Iterator[None]:
    """Writers write to the table until the block ends, each so many times to a row before they turn to another one."""
    over = threading.Event()
    started = sum(1 for _ in journal.rows)

    def write(number: int) -> None:
        with Client(source.address) as client:
            client.is_cautious = not all_kinds
            writer = Writer(client, table, journal, f"w{number}-{started}", all_kinds=all_kinds)
            while not over.is_set():
                writer.write(times)
                time.sleep(pause_s)

    with ThreadPoolExecutor(writers) as threads:
        running = [threads.submit(write, number) for number in range(writers)]
        try:
            yield
        finally:
            over.set()
    for one in running:
        one.result()


class Judge:
    """A consumer that reads committed messages of a topic, and compares them with a journal."""

    def __init__(self, address: str, topic: str, partitions: int, bytes_as: str = "base64") -> None:
        """`address`: of the broker. It reads from the topic's beginning."""
        self.topic = topic
        self._address, self._partitions, self._bytes_as = address, partitions, bytes_as
        self._seen: list[Seen] = []
        settings = {
            "bootstrap.servers": address,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "logger": logging.getLogger("judge"),
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])

    def close(self) -> None:
        """Let the consumer go."""
        self._consumer.close()

    def seen(self) -> list[Seen]:
        """The messages so far, without events."""
        while messages := self._consumer.consume(1000, 0.3):
            for one in messages:
                partition = one.partition()
                if one.error() is None and b'"cells":' in (one.value() or b""):
                    assert partition is not None
                    self._seen.append(Seen(partition, one.key(), one.value(), one.headers(), one.timestamp()[1]))
            if len(messages) < 1000:
                break
        return self._seen

    def await_more(self, than: int | None = None) -> int:
        """Wait until there are more messages than so many, or than now; how many there are then."""
        than = len(self.seen()) if than is None else than
        wait_until(lambda: len(self.seen()) > than, f"no more messages come to {self.topic}")
        return len(self._seen)

    def require(self, journal: Journal, *, table: str, by_position: bool = False) -> None:
        """Wait until all of the journal was seen, and require that it was seen in its order, and nothing beside.
        `by_position`: the order of the positions counts, not that of the messages."""
        deadline = time.monotonic() + DEADLINE_S
        while sum(len(self._changes(one)) for one in self.seen()) < journal.changes and time.monotonic() < deadline:
            time.sleep(0.2)
        began = time.monotonic()
        while True:  # what was sent twice counts twice, so the last changes may still be on their way
            try:
                self._require_now(journal, table, by_position)
                return
            except AssertionError:
                if time.monotonic() > began + DEADLINE_S / 4:
                    raise
            time.sleep(1)

    def _require_now(self, journal: Journal, table: str, by_position: bool) -> None:
        rows: dict[bytes, list[Seen]] = defaultdict(list)
        for one in read(self._address, self.topic, self._partitions, timeout_s=DEADLINE_S):
            value = json.loads(one.value or b"")
            if "cells" in value:
                assert value["table"] == table
                rows[self._bytes(value["row"])].append(one)
        for row, calls in journal.rows.items():
            if by_position:
                rows[row].sort(key=lambda one: int(dict(one.headers)["version"]))  # type: ignore[call-overload]
            self._require_positions(row, rows[row])
            changes = [changed for one in rows[row] for changed in self._changes(one)]
            require_order(row, calls, changes)
        assert set(rows) == set(journal.rows)

    def _require_positions(self, row: bytes, messages: Sequence[Seen]) -> None:
        """All in one partition, with one key, and with positions and versions that rise."""
        assert len({(one.partition, one.key) for one in messages}) == 1, f"{row!r} is in several partitions"
        positions, versions = [], []
        for one in messages:
            value, headers = json.loads(one.value or b""), dict(one.headers)  # type: ignore[call-overload]
            assert json.loads(one.key or b"") == {"table": value["table"], "row": value["row"]}
            positions.append(value["position"])
            versions.append(int(headers["version"]))
            assert headers["position"].decode() == ".".join(map(str, value["position"]))
            assert (int(headers["epoch"]), value["sequence_number"]) == (value["epoch"], value["position"][1])
        for rising in (positions, versions):
            falls = [pair for pair in itertools.pairwise(rising) if pair[0] >= pair[1]]
            assert not falls, f"{row!r}: {falls[:3]}"

    def _changes(self, one: Seen) -> list[Change]:
        cells = json.loads(one.value or b"")["cells"]
        return [
            Change(
                cell["kind"], cell["family"].encode(), self._bytes(cell["qualifier"]),
                self._bytes(cell["value"]) if "value" in cell else None, cell["timestamp"],
            )
            for cell in cells
        ]  # fmt: skip

    def _bytes(self, given: Any) -> bytes:
        if isinstance(given, dict):
            return base64.b64decode(given["base64"])
        return given.encode() if self._bytes_as == "utf8" else base64.b64decode(given)


def require_order(row: bytes, calls: Sequence[Call], seen: Sequence[Change]) -> None:
    """Require that the changes of a row were seen as its calls made them: those of repeated calls at least once."""
    at = 0
    for number, call in enumerate(calls):
        begin = at
        if call.is_repeated:
            while at < len(seen) and any(one.is_seen_as(seen[at]) for one in call.changes):
                at += 1
            fine = all(any(one.is_seen_as(other) for other in seen[begin:at]) for one in call.changes)
        else:
            at += len(call.changes)
            fine = at <= len(seen) and all(map(Change.is_seen_as, call.changes, seen[begin:at]))
        assert fine, f"{row!r}: call {number} of {len(calls)} was {call}, seen was {seen[begin : begin + 5]}"
    assert at == len(seen), f"{row!r}: nobody wrote {seen[at : at + 5]}"


def wait_until(done: Callable[[], object], what: str, seconds: float = DEADLINE_S) -> None:
    """Wait until something is so. A server that is just starting may not be able to say it."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(TransientError):
            if done():
                return
        assert time.monotonic() < deadline, what
        time.sleep(0.3)

"""Where a stream's changes go, and the delivery of messages to Kafka's topics: whole, by claim check, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from posixpath import dirname
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from walferry.formats.cells import Int32s, Int64s
from walferry.formats.wal import EntryBatch
from walferry.storage import FileSystem, temporary
from walferry.streams.message.changes import Form, Messages, messages
from walferry.streams.message.events import Message
from walferry.streams.ordering.stays import Opened, Taken

OVERHEAD_BYTES = 512
"""of a message, beside key and value: its headers, and what Kafka adds"""


class Committer(Protocol):
    """Commits what was sent together with the positions that it reaches (`streams.kafka.sink.Sink`,
    `streams.history.sink.HistorySink`). What it has committed it may keep for a while before it is written."""

    @property
    def positions(self) -> Mapping[str, bytes]:
        """What the last commit left, by key."""

    @property
    def keeps_changes(self) -> bool:
        """Whether changes that were committed are not written yet: after a kill, they would be read again."""

    @property
    def keeps_positions(self) -> bool:
        """The same of changes or positions."""

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        """Commit what was sent and these positions; None removes one. Returns how much was sent."""

    def write(self) -> None:
        """Write all that was committed."""


class Sender(Protocol):
    """Sends messages in the open transaction (`streams.kafka.sink.Sink`)."""

    def send(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]] | None
    ) -> None:
        """Send a message in the transaction, which begins with the first one."""


class Made(Protocol):
    """The changes of entries, as they are delivered: one for each run of cells of one row in an entry."""

    @property
    def entry(self) -> Int64s:
        """int64[n]: the number of each one's entry in its batch."""

    @property
    def size(self) -> int:
        """Bytes of all of them."""

    def __len__(self) -> int: ...

    def name(self, number: int) -> str:
        """What a person is told of one."""


@dataclass(frozen=True)
class Topic:
    """Where a table's messages go."""

    name: str
    partitions: int
    most_bytes: int
    """of one message"""


@dataclass(frozen=True)
class Claims:
    """A folder for messages that are larger than their topic takes; the topic gets a message that names the file."""

    files: FileSystem
    folder: str
    """without a trailing slash"""
    by_content: bool = False
    """whether the name of a file also tells its content: else a message of one position is always the same"""

    def put(self, name: str, content: bytes) -> str:
        """Keep a message, and return its path. The same path always has the same content, so it is kept once."""
        if self.by_content:
            stem, _, kind = name.rpartition(".")
            name = f"{stem}.{sha256(content).hexdigest()[:32]}.{kind}"
        path = f"{self.folder}/{name}"
        if self.files.status(path) is None:
            with temporary(self.files, dirname(path)) as begun:
                self.files.write(begun, [content])
                try:
                    self.files.rename(begun, path)
                except FileExistsError:  # another attempt has kept it meanwhile
                    self.files.delete(begun)
        return path


@dataclass(frozen=True)
class Fitting:
    """Which messages go as they are, and which do not."""

    claims: Mapping[int, bytes]
    """the messages that stand for large ones, by their numbers"""
    refused: Mapping[int, str]
    """why messages cannot be sent, by their numbers"""


M = TypeVar("M", bound=Made)


class Destination(Protocol[M]):
    """Where changes go: to topics (`Delivery`), or into files (`streams.history.delivery.HistoryDelivery`)."""

    def parts(self, passed: Sequence[Taken | Opened]) -> Iterable[Sequence[Taken | Opened]]:
        """What a pass has put in order, in parts; each is made and sent before the next one is asked for."""

    def make(self, form: Form, batch: EntryBatch, picked: npt.NDArray[np.intp], incarnation: Int32s) -> M:
        """Make the changes of the edits with these numbers in the batch, with the incarnation of each one's region."""

    def fit(self, form: Form, batch: EntryBatch, made: M) -> Fitting:
        """Find those that cannot be sent as they are."""

    def send(self, batch: EntryBatch, made: M, claims: Mapping[int, bytes]) -> None:
        """Send changes, none of which is refused."""

    def to_all(self, table: str, message: Message) -> int:
        """Send an event of a table. Returns how often."""


AnyDestination = Destination[Any]
"""a destination whose changes only it looks into"""


def claimed(content: bytes, path: str) -> bytes:
    """The value that stands for a large one, which is in a file: without its cells and its image."""
    value = json.loads(content)
    del value["cells"]
    value.pop("image", None)
    value["claim"] = {"path": path, "bytes": len(content), "sha256": sha256(content).hexdigest()}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Delivery:
    """Delivers messages of tables to a sink. A `Destination`."""

    def __init__(self, topics: Mapping[str, Topic], sink: Sender, claims: Claims | None = None) -> None:
        """`topics`: by table. `claims`: None refuses messages that are larger than their topic takes."""
        self._topics = topics
        self._sink = sink
        self._claims = claims

    def parts(self, passed: Sequence[Taken | Opened]) -> Iterable[Sequence[Taken | Opened]]:
        """All of it at once."""
        return [passed]

    def make(self, form: Form, batch: EntryBatch, picked: npt.NDArray[np.intp], incarnation: Int32s) -> Messages:
        """The messages of edits."""
        return messages(form, batch, picked, incarnation)

    def fit(self, form: Form, batch: EntryBatch, made: Messages) -> Fitting:
        """Find the messages that cannot be sent, and put those that are too large into the folder of claims."""
        reasons, claims = dict(made.refused), dict[int, bytes]()
        sizes, limits = self._sizes(batch, made)
        for number in np.flatnonzero(sizes > limits).tolist():
            if number in reasons:
                continue
            limit = int(limits[number])
            claim = self._claimed(form, batch, made, number)
            if claim is None or len(claim) + len(made.key(number)) + OVERHEAD_BYTES > limit:
                reasons[number] = f"{_too_large(int(sizes[number]), limit)}, or set large_messages"
            else:
                claims[number] = claim
        return Fitting(claims, reasons)

    def are_whole(self, batch: EntryBatch, made: Messages) -> bool:
        """Whether all messages can be sent as they are."""
        sizes, limits = self._sizes(batch, made)
        return not made.refused and bool((sizes <= limits).all())

    def _sizes(self, batch: EntryBatch, made: Messages) -> tuple[Int64s, Int64s]:
        """The bytes of each message, and what its topic takes."""
        sizes = np.diff(made.key_ends) + np.diff(made.value_ends) + OVERHEAD_BYTES
        limits = np.array([self._topic(name).most_bytes for name in batch.tables] or [0])
        return sizes, limits[batch.table[made.entry]]

    def send(self, batch: EntryBatch, made: Messages, claims: Mapping[int, bytes]) -> None:
        """Send messages, some of them as claims."""
        tables = batch.table[made.entry]
        topics = [self._topic(name) for name in batch.tables]
        counts = np.array([topic.partitions for topic in topics] or [1])
        partitions = (made.hash % counts[tables]).tolist()
        send = self._sink.send
        for number, (table, partition) in enumerate(zip(tables.tolist(), partitions, strict=True)):
            value = claims.get(number) or made.value(number)
            send(topics[table].name, partition, made.key(number), value, made.headers(number))

    def to_all(self, table: str, message: Message) -> int:
        """Send an event to every partition of a table's topic. Returns the number of messages."""
        topic = self._topics[table]
        for partition in range(topic.partitions):
            self._sink.send(topic.name, partition, message.key, message.value, message.headers)
        return topic.partitions

    def too_large(self, table: str, message: Message) -> str | None:
        """Why the topic of a table does not take an event, if it has too many bytes."""
        size, limit = len(message.key) + len(message.value) + OVERHEAD_BYTES, self._topics[table].most_bytes
        return _too_large(size, limit) if size > limit else None

    def _claimed(self, form: Form, batch: EntryBatch, made: Messages, number: int) -> bytes | None:
        """The message that stands for a large one, which is in a file; None without a folder for it."""
        if self._claims is None:
            return None
        content = made.value(number)
        table, region = batch.table_and_region(int(made.entry[number]))
        name = dict(made.headers(number))["position"].decode()
        if form.snapshot is not None:  # all rows of its region have the same position
            name = f"{form.snapshot.name}.{sha256(made.key(number)).hexdigest()}"
        path = self._claims.put(f"{self._topics[table].name}/{form.epoch}/{region}/{name}.json", content)
        return claimed(content, path)

    def _topic(self, table: bytes) -> Topic:
        return self._topics.get(table.decode(), _NO_TOPIC)


def _too_large(size: int, limit: int) -> str:
    return f"the message has {size} bytes, and its topic takes {limit}: raise the topic's max.message.bytes"


_NO_TOPIC = Topic("", 1, 2**31)

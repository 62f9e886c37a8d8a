"""Sends what a pass has put in order: as messages, by claim check, or not at all.

An entry is sent whole or not at all. If a message of it cannot be sent, its region is held from there on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

import numpy as np

from walferry.errors import DamagedInputError
from walferry.formats.markers import Marker
from walferry.hbase.descriptors import TableDescriptor
from walferry.storage import FileSystem
from walferry.streams.message import events
from walferry.streams.message.changes import Form, Messages, messages
from walferry.streams.ordering.stays import LogPlace, Opened, Taken

log = logging.getLogger(__name__)

OVERHEAD_BYTES = 512
"""of a message, beside key and value: its headers, and what Kafka adds"""


class Sender(Protocol):
    """Sends messages in transactions (`streams.kafka.sink.Sink`)."""

    def send(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]] | None
    ) -> None:
        """Send a message in the transaction, which begins with the first one."""

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        """Record positions in the transaction and commit it. Returns the number of messages."""


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

    def put(self, name: str, content: bytes) -> str:
        """Keep a message, and return its path. The same name always has the same content, so it is kept once."""
        path = f"{self.folder}/{name}"
        if self.files.status(path) is None:
            begun = f"{path}.begun"
            self.files.write(begun, [content], overwrite=True)
            self.files.rename(begun, path)
        return path


@dataclass(frozen=True)
class Refused:
    """An entry that cannot be sent, and why; its region is held from there on."""

    file: str
    offset: int
    offset_end: int
    table: str
    region: str
    sequence_number: int
    reason: str
    data: bytes


@dataclass
class Sent:
    """What was sent of a pass."""

    messages: int = 0
    bytes: int = 0
    """of the messages' values"""
    cells: int = 0
    """of the entries sent; filters may have left some of them out"""
    refused: list[Refused] = field(default_factory=list)
    held: dict[str, dict[str, LogPlace]] = field(default_factory=dict)
    """for each region that is held from now on, where in each WAL group"""
    last: dict[str, int] = field(default_factory=dict)
    """the number of the last entry sent of each region"""


class Sending:
    """Sends entries as messages. `schemas`, the digest of each table's descriptor as sent last, changes with it."""

    def __init__(
        self,
        form: Form,
        topics: Mapping[str, Topic],
        sink: Sender,
        *,
        describe: Callable[[str], TableDescriptor | None],
        tells_new_history: bool,
        schemas: Mapping[str, str],
        claims: Claims | None = None,
        left_out: Collection[tuple[str, int]] = (),
    ) -> None:
        """`topics`: by table. `describe`: the present descriptor of a table, None if it does not exist.
        `tells_new_history`: an incarnation can only mean that the table was truncated, or created again.
        `left_out`: entries, by file and offset, that a person has decided to leave out."""
        self._form = form
        self._topics = topics
        self._sink = sink
        self._describe = describe
        self._tells_new_history = tells_new_history
        self.schemas = dict(schemas)
        self._claims = claims
        self._left_out = frozenset(left_out)

    def send(self, passed: Sequence[Taken | Opened], incarnation: Callable[[str], int]) -> Sent:
        """Send what a pass has passed on, in its order. `incarnation`: of a region."""
        sent = Sent()
        described: dict[str, TableDescriptor | None] = {}
        for one in passed:
            if isinstance(one, Opened):
                if one.region not in sent.held:
                    self._opened(one, described, sent)
                continue
            for part in _by_kind(self._without(one, sent)):
                self._send_part(part, incarnation, sent)
        return sent

    def _send_part(self, one: Taken, incarnation: Callable[[str], int], sent: Sent) -> None:
        """Send entries that are all edits, or one marker."""
        one = _without_held(one, sent.held)
        if not len(one.picked):
            return
        of_code = {code: incarnation(one.batch.regions[code].decode()) for code in _regions(one)}
        if not one.batch.edits[one.picked[0]]:
            self._marker(one, of_code, sent)
            return
        while len(one.picked):
            codes = one.batch.region[one.picked]
            made = messages(self._form, one.batch, one.picked, np.array([of_code[c] for c in codes.tolist()], np.int32))
            claims, refused = self._fit(one, made)
            if refused is None:
                self._send_all(one, made, claims, sent)
                return
            one = self._held(one, refused, sent)

    def _held(self, one: Taken, refused: Refused, sent: Sent) -> Taken:
        """Hold the region of an entry. Returns the entries without those of the region from there on."""
        sent.refused.append(refused)
        sent.held[refused.region] = {one.group: LogPlace(one.number, refused.offset)}
        mine = one.batch.region[one.picked] == one.batch.regions.index(refused.region.encode())
        return one.only(one.picked[~mine | (one.batch.sequence_number[one.picked] < refused.sequence_number)])

    def _fit(self, one: Taken, made: Messages) -> tuple[dict[int, bytes], Refused | None]:
        """The messages that go by claim check, as they are sent, and the first entry that cannot be sent."""
        batch, reasons, claims = one.batch, dict(made.refused), dict[int, bytes]()
        sizes = np.diff(made.key_ends) + np.diff(made.value_ends) + OVERHEAD_BYTES
        limits = np.array([self._topic(name).most_bytes for name in batch.tables] or [0])
        for number in np.flatnonzero(sizes > limits[batch.table[made.entry]]).tolist():
            if number in reasons:
                continue
            limit = int(limits[batch.table[made.entry[number]]])
            claimed = self._claimed(one, made, number)
            if claimed is None or len(claimed) + len(made.key(number)) + OVERHEAD_BYTES > limit:
                reasons[number] = (
                    f"the message has {int(sizes[number])} bytes, and its topic takes {limit}: raise the topic's "
                    "max.message.bytes, or set large_messages"
                )
            else:
                claims[number] = claimed
        if not reasons:
            return claims, None
        number = min(reasons)
        return claims, _refused(one, int(made.entry[number]), reasons[number])

    def _claimed(self, one: Taken, made: Messages, number: int) -> bytes | None:
        """The message that stands for a large one, which is in a file; None without a folder for it."""
        if self._claims is None:
            return None
        content = made.value(number)
        table, region = one.batch.table_and_region(int(made.entry[number]))
        position = dict(made.headers(number))["position"].decode()
        topic = self._topics[table].name
        path = self._claims.put(f"{topic}/{self._form.epoch}/{region}/{position}.json", content)
        value = json.loads(content)
        del value["cells"]
        value["claim"] = {"path": path, "bytes": len(content), "sha256": sha256(content).hexdigest()}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def _send_all(self, one: Taken, made: Messages, claims: Mapping[int, bytes], sent: Sent) -> None:
        tables = one.batch.table[made.entry]
        topics = [self._topic(name) for name in one.batch.tables]
        counts = np.array([topic.partitions for topic in topics] or [1])
        partitions = (made.hash % counts[tables]).tolist()
        send = self._sink.send
        for number, (table, partition) in enumerate(zip(tables.tolist(), partitions, strict=True)):
            value = claims.get(number) or made.value(number)
            send(topics[table].name, partition, made.key(number), value, made.headers(number))
        sent.messages += len(made)
        sent.bytes += int(made.value_ends[-1])
        sent.cells += int(one.batch.cell_count[one.picked].sum())
        _note_last(one, sent)

    def _marker(self, one: Taken, incarnations: Mapping[int, int], sent: Sent) -> None:
        entry = int(one.picked[0])
        table, _ = one.batch.table_and_region(entry)
        reason = "a marker of a kind that this version of walferry does not know"
        if one.batch.marker[entry] == Marker.BULK_LOAD:
            try:
                incarnation = incarnations[int(one.batch.region[entry])]
                loaded = events.bulk_load(self._form, one.batch, entry, incarnation, one.file)
            except DamagedInputError as error:
                reason = error.message
            else:
                self._to_all(table, loaded, sent)
                _note_last(one, sent)
                return
        self._held(one, _refused(one, entry, reason), sent)

    def _opened(self, one: Opened, described: dict[str, TableDescriptor | None], sent: Sent) -> None:
        """Send the events of a region that has opened."""
        if one.begins and self._tells_new_history:
            self._to_all(
                one.table, events.new_history(self._form, one.table, one.region, one.number, one.incarnation), sent
            )
        if one.table not in described:
            described[one.table] = self._describe(one.table)
        descriptor = described[one.table]
        if descriptor is None or (digest := events.schema_digest(descriptor)) == self.schemas.get(one.table):
            return
        self.schemas[one.table] = digest
        changed = events.schema(self._form, descriptor, one.region, one.number, one.incarnation)
        self._to_all(one.table, changed, sent)

    def _to_all(self, table: str, message: events.Message, sent: Sent) -> None:
        """Send an event to every partition of a table's topic."""
        topic = self._topics[table]
        for partition in range(topic.partitions):
            self._sink.send(topic.name, partition, message.key, message.value, message.headers)
        sent.messages += topic.partitions

    def _topic(self, table: bytes) -> Topic:
        return self._topics.get(table.decode(), _NO_TOPIC)

    def _without(self, one: Taken, sent: Sent) -> Taken:
        """The entries without those that a person has decided to leave out."""
        offsets = [offset for name, offset in self._left_out if name == one.file]
        leave = np.isin(one.batch.offset[one.picked], offsets) if offsets else None
        if leave is None or not leave.any():
            return one
        log.warning("%d entries of %s are left out, as a person has decided", int(leave.sum()), one.file)
        _note_last(one.only(one.picked[leave]), sent)
        return one.only(one.picked[~leave])


_NO_TOPIC = Topic("", 1, 2**31)


def _by_kind(one: Taken) -> Iterator[Taken]:
    """The entries in their order, in parts: edits together, each marker by itself."""
    markers = np.flatnonzero(~one.batch.edits[one.picked])
    for some in np.split(one.picked, np.unique(np.concatenate([markers, markers + 1]))):
        if len(some):
            yield one.only(some)


def _regions(one: Taken) -> list[int]:
    return [int(code) for code in np.unique(one.batch.region[one.picked])]


def _note_last(one: Taken, sent: Sent) -> None:
    """Note the last numbers of regions; they rise within a file."""
    for code in _regions(one):
        numbers = one.batch.sequence_number[one.picked[one.batch.region[one.picked] == code]]
        name = one.batch.regions[code].decode()
        sent.last[name] = max(int(numbers[-1]), sent.last.get(name, -1))


def _refused(one: Taken, entry: int, reason: str) -> Refused:
    batch = one.batch
    table, region = batch.table_and_region(entry)
    return Refused(
        one.file, int(batch.offset[entry]), int(batch.offset_end[entry]), table, region,
        int(batch.sequence_number[entry]), reason, batch.buffer[batch.start[entry] : batch.end[entry]].tobytes(),
    )  # fmt: skip


def _without_held(one: Taken, held: dict[str, dict[str, LogPlace]]) -> Taken:
    """The entries without those of held regions; notes where those are."""
    if not held:
        return one
    keep = np.ones(len(one.picked), bool)
    for code in _regions(one):
        places = held.get(one.batch.regions[code].decode())
        if places is not None:
            mine = one.batch.region[one.picked] == code
            first = one.only(one.picked[mine]).first()
            places[one.group] = min(first, places.get(one.group, first))
            keep &= ~mine
    return one.only(one.picked[keep])

"""A table whose edits go to a topic of Kafka: in transactions, each with several calls, and each call once.

A transaction has the messages of its calls, and the position that they reach: the number of the ledger's newest row of
the table. The rows are written first. So whoever opens the table after a crash, or after a commit of which nobody knows
how it ended, finds in Kafka which rows hold (`into_kafka`), and takes the others back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from walferry.clock import steady_s
from walferry.errors import DamagedInputError, TransientError, WalferryError
from walferry.formats.wal import EntryBatch
from walferry.ledger.received import ReceivedCall
from walferry.receive.applying import late_text, received_call, remember
from walferry.receive.holding import Holding, OutOfTimeError, not_held
from walferry.receive.merging import merged_rows
from walferry.receive.seen import Applied, Mask, Picked
from walferry.streams.delivery import Committer, Delivery
from walferry.streams.fenced import FencedError
from walferry.streams.message import events
from walferry.streams.message.changes import DECODER_FAILED, Form, Messages
from walferry.streams.message.events import Message

log = logging.getLogger(__name__)

MOST_BYTES, LEAST_BYTES = 4 << 20, 256 << 10
"""of the cells in a transaction, unless one entry alone has more"""
LONG_S = 3.0
"""the next transactions after one that took longer have half as many bytes: Kafka aborts those of 15 s, and until then
readers wait"""
_QUICK_S = 0.5


class UnsendableError(WalferryError):
    """A message cannot be sent; facts `table`, `region`, `number`, `reason`. Its call is refused until it can be."""


@dataclass
class _Call:
    """Entries of a call that wait for a transaction."""

    batch: EntryBatch
    picked: Picked
    deadline: float
    is_done: bool = False
    error: Exception | None = None


class _Messages(NamedTuple):
    """The messages of entries of a batch, and the claims that stand for large ones."""

    batch: EntryBatch
    made: Messages
    claims: Mapping[int, bytes]


@dataclass(frozen=True)
class _Made:
    """What a call has for a transaction: messages and events in the order of its entries."""

    call: _Call
    parts: list[_Messages | Message]
    """an event is for all partitions"""
    applied: Applied
    row: ReceivedCall


class TableSink(Committer, Protocol):
    """Commits what was sent to a table's topic (`streams.kafka.sink.Sink`)."""

    @property
    def is_spent(self) -> bool:
        """Whether it is of no more use, perhaps after a commit that succeeded."""


@dataclass
class TopicTable(Holding):
    """A table under its lease, and its part of Kafka."""

    sink: TableSink
    delivery: Delivery
    form: Form
    position: Callable[[int], bytes]
    """the value of the position for the number of a row"""
    number: int
    """of the newest row that was committed"""
    noted: Callable[[], None]
    """called after a commit"""
    merges: bool
    """whether edits of one row become one message"""
    refused: Callable[[], bool]
    """called after a message could not be sent; whether the topic has changed since the sink was opened"""
    _waiting: deque[_Call] = field(default_factory=deque, kw_only=True)
    _turn: threading.Lock = field(default_factory=threading.Lock, kw_only=True)
    _most_bytes: int = field(default=MOST_BYTES, kw_only=True)

    def send(self, batch: EntryBatch, picked: Picked, deadline: float) -> None:
        """Send entries, in several transactions if they are many. Returns when all are committed.

        Raises UnsendableError if a message cannot be sent, and NotHeldError if the table is being given back.
        """
        with self.used():
            for part in _in_parts(batch, picked, self._most_bytes):
                self._send_with_others(_Call(batch, part, deadline))

    def _send_with_others(self, mine: _Call) -> None:
        """Wait for a transaction with the call. Whoever has the turn sends what waits, also for others: a sink is for
        one thread at a time."""
        self._waiting.append(mine)
        with self._turn:
            while not mine.is_done:
                if self.stale:
                    raise not_held(self.pair.target)
                self._transact(self._take())
        if mine.error is not None:
            raise mine.error

    def _take(self) -> list[_Call]:
        """The calls that waited longest, as many as a transaction takes. Those that are too old fail."""
        taken: list[_Call] = []
        size = 0
        while self._waiting:
            call = self._waiting[0]
            size += int(_sizes(call.batch, call.picked).sum())
            if taken and size > self._most_bytes:
                break
            taken.append(self._waiting.popleft())
            if steady_s() > call.deadline:
                taken.pop()
                _end(call, OutOfTimeError(f"the edits of {self.pair.target} were not all sent in time"))
        return taken

    def _transact(self, calls: list[_Call]) -> None:
        """Send calls in one transaction. One with a message that cannot be sent fails alone; else they fail together,
        and the table is given back: the next one to open it finds out what was committed. All of them have ended
        afterwards, whatever is raised."""
        made = []
        try:
            for call in calls:
                try:
                    made.append(self._make(call))
                except Exception as error:
                    _end(call, error)
            if made:
                self._commit_or_fail(made)
            if len(made) < len(calls) and self.refused():
                log.info("the topic of %s has changed: it is opened again", self.pair.source)
                self.stale = True
        except BaseException:
            self.stale = True
            for call in calls:
                _end(call, not_held(self.pair.target))
            raise

    def _commit_or_fail(self, made: list[_Made]) -> None:
        """Commit calls, and end them, with the error if there is one."""
        told: Exception | None = None
        try:
            self._commit(made)
        except FencedError as error:
            log.warning("table %s is given back: %s", self.pair.target, error)
            told = not_held(self.pair.target)
        except Exception as error:
            told = error
            self.fault = str(error)
        self.stale |= told is not None or self.sink.is_spent
        for one in made:
            _end(one.call, told)

    def _make(self, call: _Call) -> _Made:
        """The messages of what is new in a call. Raises UnsendableError."""
        batch, picked = call.batch, call.picked
        judged = self.seen.judge(batch, picked)
        if judged.late.any():
            log.warning("%s: %s; they are sent, and the header `version` says so", self.pair.source,
                        late_text(batch, picked, judged))  # fmt: skip
        new = ~judged.repeated
        chosen, late = picked[new], judged.late[new]
        applied = Applied.of(batch, chosen, judged.prints[new])
        row = received_call(self.pair.source, batch, chosen, applied, len(picked) - len(chosen), int(late.sum()))
        return _Made(call, list(self._parts(batch, chosen, late)), applied, row)

    def _parts(self, batch: EntryBatch, chosen: Picked, late: Mask) -> Iterator[_Messages | Message]:
        """Messages and events, in the order of the entries."""
        markers = np.flatnonzero(~batch.edits[chosen])
        borders = np.unique(np.concatenate([markers, markers + 1]))
        for some, are_late in zip(np.split(chosen, borders), np.split(late, borders), strict=True):
            if not len(some):
                continue
            if not batch.edits[some[0]]:
                yield self._loaded(batch, int(some[0]))
            else:
                yield self._messages(batch, some, are_late)

    def _messages(self, batch: EntryBatch, some: Picked, late: Mask) -> _Messages:
        """The messages of edits. Merged ones are made one by one if a message would be too large, or is refused. Those
        that are `late` are never merged: what is merged has the version of the last one."""
        if self.merges:
            merged = merged_rows(batch, some, late)
            made = self.delivery.make(self.form, merged, np.arange(len(merged)), np.zeros(len(merged), np.int32))
            if self.delivery.are_whole(merged, made):
                return _Messages(merged, made, {})
        made = self.delivery.make(self.form, batch, some, np.zeros(len(some), np.int32))
        try:
            fitting = self.delivery.fit(self.form, batch, made)
        except OSError as error:
            raise TransientError(f"a large message of {self.pair.source} is not in its folder: {error}") from error
        if fitting.refused:
            number = min(fitting.refused)
            reason = fitting.refused[number]
            log.warning("%s: message %s cannot be sent: %s", self.pair.source, made.name(number), reason)
            if reason.startswith(DECODER_FAILED):
                reason = f"{DECODER_FAILED}; the log of this process says at which column, and how"
            raise _unsendable(batch, int(made.entry[number]), reason)
        return _Messages(batch, made, fitting.claims)

    def _loaded(self, batch: EntryBatch, entry: int) -> Message:
        """The event of a bulk load."""
        try:
            event = events.bulk_load(self.form, batch, entry, 0, "a call of the source")
        except DamagedInputError as error:
            raise _unsendable(batch, entry, error.message) from error
        reason = self.delivery.too_large(self.pair.source, event)
        if reason is not None:
            raise _unsendable(batch, entry, reason)
        return event

    def _commit(self, made: list[_Made]) -> None:
        """Record calls, then send and commit them, then remember them."""
        table = self.pair.source
        with self.recording:
            numbers = self.ledger.applied([one.row for one in made], self.check, {table: self.number})
        new = [one for one in made if len(one.applied)]
        if not new:
            return
        began_s = steady_s()
        for one in new:
            self._send(one)
        self.sink.commit({table: self.position(numbers[table])})
        self.number = numbers[table]
        took_s = steady_s() - began_s
        self.noted()
        remember(self, *(one.applied for one in new))
        if took_s > LONG_S:
            self._most_bytes = max(LEAST_BYTES, self._most_bytes // 2)
        elif took_s < _QUICK_S:
            self._most_bytes = min(MOST_BYTES, 2 * self._most_bytes)

    def _send(self, one: _Made) -> None:
        for part in one.parts:
            if isinstance(part, Message):
                self.delivery.to_all(self.pair.source, part)
            else:
                self.delivery.send(*part)


def _end(call: _Call, error: Exception | None = None) -> None:
    """End a call, unless it has ended."""
    if not call.is_done:
        call.is_done, call.error = True, error


def _sizes(batch: EntryBatch, picked: Picked) -> np.ndarray:
    """The bytes of the cells of entries."""
    return batch.end[picked] - batch.cells_start[picked]


def _in_parts(batch: EntryBatch, picked: Picked, most_bytes: int) -> Iterator[Picked]:
    """The entries in their order, in parts of at most so many bytes, or one entry."""
    before = np.cumsum(_sizes(batch, picked)) // most_bytes
    yield from np.split(picked, np.flatnonzero(np.diff(before)) + 1)


def _unsendable(batch: EntryBatch, entry: int, reason: str) -> UnsendableError:
    """The error, which the board shows: it names no row, and quotes no value."""
    table, region = batch.table_and_region(entry)
    number = int(batch.sequence_number[entry])
    return UnsendableError(
        f"edit {number} of region {region} of {table} cannot be sent to Kafka: {reason}",
        table=table, region=region, number=number, reason=reason,
    )  # fmt: skip

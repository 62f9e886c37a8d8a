"""The Kafka side of a change stream: messages and the positions they reach, committed together.

A consumer that reads committed messages sees each once, because

- the changes and the positions up to which they go are in the same transaction;
- a new sink first fences every older one of its transactional id and only then reads the positions;
- a sink that does not know how a commit ended is thrown away: the next one's positions tell.

One thing a client of librdkafka must do itself: it does not know Kafka's epoch for each transaction (KIP-890; of 2.16,
librdkafka's issue 5423 is open), so that a request to end a transaction that was delayed in a broken connection could
end the next one. A sink whose connections broke while a transaction ended therefore begins no other transaction: the
new sink has a new epoch, and the brokers refuse the delayed request.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from walferry.clock import steady_s
from walferry.errors import TransientError
from walferry.streams.fenced import FencedError
from walferry.streams.kafka.errors import (
    FENCED,
    LONGEST_WAIT_S,
    ClientLog,
    MessageTooLargeError,
    kafka_error,
    repeat,
)
from walferry.streams.kafka.positions import Owner, read_positions
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.kafka.topics import StreamTopics, Topic, check_unchanged, partition_counts

Headers = list[tuple[str, bytes]]

TRANSACTION_TIMEOUT_S = 15.0
"""The coordinator aborts a transaction that is open for longer, within 10 more seconds. Until then, readers of
committed messages wait: so long may a killed process hold them up. Commit within a third of it."""
_BATCH_BYTES = 1_000_000
_MESSAGE_OVERHEAD, _HEADER_OVERHEAD = 128, 10
"""bytes in a batch beside keys, values and headers, at most: the batch's own head, lengths as varints"""
_DEFAULTS = {"linger.ms": "5", "compression.type": "lz4"}
_QUEUED_KBYTES = 64 * 1024
"""messages in memory before `send` waits"""


@dataclass(frozen=True)
class Shard:
    """One writer of a stream. `cluster_id`: of the HBase cluster whose changes the stream carries."""

    cluster_id: str
    stream: str
    number: int = 0

    @property
    def transactional_id(self) -> str:
        """Who opens a sink under it fences those who did before."""
        return f"walferry-{self.cluster_id}-{self.stream}-{self.number}"

    @property
    def owner(self) -> Owner:
        """Whose positions it reads and writes."""
        return Owner(self.cluster_id, self.stream)


class Sink:
    """Writes the messages of one shard. A context manager, for one thread; made by `Sink.open`.

    After any error but MessageTooLargeError it is of no more use. After TransientError, open another one and go on from
    its positions: whether a commit whose end is unknown has happened can be seen there, nowhere else. No call
    waits longer than about 30 s for the brokers.

    The last one to open a sink of a shard has it: that only one process tries is for its caller to see to.
    """

    def __init__(
        self, settings: KafkaSettings, shard: Shard, topics: StreamTopics, commit_s: float | None = None
    ) -> None:
        """Use `open`: this one neither connects nor reads."""
        self._settings, self._shard, self._topics, self._commit_s = settings, shard, topics, commit_s
        self._headers = shard.owner.headers
        self._bounds = {topic.name: (topic.partitions, topic.max_message_bytes) for topic in _all(topics)}
        self._log = ClientLog(settings)
        self._began_s: float | None = None
        self._count = 0
        self._spent = ""
        self._fenced = False
        self._closed = False
        self.positions: dict[str, bytes] = {}
        """what the last commit left, by key; those of all shards as of the opening, with own commits since"""
        try:
            self._producer = Producer(_configuration(settings, shard, topics) | self._log.configuration())
        except KafkaException as raised:
            raise kafka_error(raised.args[0], "setting up the client", settings) from None
        self._produce: Callable[..., None] = self._producer.produce

    @classmethod
    def open(
        cls, settings: KafkaSettings, shard: Shard, topics: StreamTopics, *, expected: bool = False,
        commit_s: float | None = None,
    ) -> Self:  # fmt: skip
        """Fence every older sink of the shard, then read the positions.

        `topics`: what `topics.prepare` found. `expected`: positions have been written before. `commit_s`: how long a
        commit waits for the brokers, if not LONGEST_WAIT_S.

        Raises UsageError for a login, right or setting that the brokers refuse, for a topic that has changed since
        `prepare`, and for positions that are another stream's or lost; TransientError if the brokers do not answer.
        """
        sink = cls(settings, shard, topics, commit_s)
        try:
            sink._fence()
            sink.positions = read_positions(settings, topics.positions.name, shard.owner, expected=expected)
        except BaseException:
            sink.close()
            raise
        return sink

    def send(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers | None = None) -> None:
        """Add a message to the open transaction, or begin one.

        It waits while the queue is full. Raises MessageTooLargeError, and nothing has happened; FencedError
        and TransientError as described for the class.
        """
        partitions, limit = self._bounds[topic]
        if not 0 <= partition < partitions:
            raise ValueError(f"topic {topic} has no partition {partition}")
        size = _MESSAGE_OVERHEAD + len(key) + (0 if value is None else len(value))
        if headers:
            for name, content in headers:
                size += len(name) + len(content) + _HEADER_OVERHEAD
        if size > limit:
            raise _too_large(topic, size, limit)
        if self._began_s is None:
            self._begin()
        try:
            if headers:
                self._produce(topic, value, key, partition, headers=headers)
            else:
                self._produce(topic, value, key, partition)
        except BufferError:
            self._send_slowly(topic, partition, key, value, headers)
        except KafkaException as raised:
            self._fail(raised.args[0], "sending")
        self._count += 1

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        """Commit what was sent, with the positions that changed by it; None removes one. Returns how many were sent.

        Does nothing if there is neither. Raises FencedError; TransientError: whether the commit has happened
        is then to be seen in the positions of the next sink; MessageTooLargeError for a position, before anything is
        written.
        """
        self._check_usable()
        sent = self._count
        topic = self._topics.positions.name
        for key, value in changed.items():
            self._check_position(key, value)
        for key, value in changed.items():
            self.send(topic, 0, key.encode(), value, self._headers)
        if self._began_s is None:
            return 0
        with self._ending("committing"):
            doing = "committing (whether it happened, the positions of the next sink tell)"
            repeat(self._producer.commit_transaction, doing, self._log, serve=self._serve, longest_s=self._commit_s)
        for key, value in changed.items():
            if value is None:
                self.positions.pop(key, None)
            else:
                self.positions[key] = value
        return sent

    @property
    def is_spent(self) -> bool:
        """Whether it is of no more use; it may be after a commit that succeeded."""
        return bool(self._spent)

    keeps_changes = keeps_positions = False
    """what was committed is with the brokers"""

    def write(self) -> None:
        """Nothing is kept back."""

    def abort(self) -> None:
        """Drop what was sent since the last commit; afterwards it can be sent again, by this sink."""
        if self._began_s is None:
            return
        with self._ending("aborting"):
            repeat(self._producer.abort_transaction, "aborting", self._log, serve=self._serve)

    def close(self) -> None:
        """Let the producer go; an open transaction is aborted if the brokers answer in 5 s. Else the next sink does."""
        if self._closed:
            return
        self._closed = True
        if self._began_s is not None and not self._spent:
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(5)
        self._spent = self._spent or "it is closed"
        self._began_s = None
        del self._produce, self._producer  # its connections end with the last reference

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fence(self) -> None:
        doing = f"opening transactional id {self._shard.transactional_id}"
        try:
            repeat(self._producer.init_transactions, doing, self._log, serve=self._serve)
            check_unchanged(self._partition_counts, self._topics)
        except KafkaException as raised:
            self._fail(raised.args[0], doing)

    def _partition_counts(self) -> dict[str, int]:
        def ask(wait_s: float) -> dict[str, int]:
            return partition_counts(self._producer.list_topics(timeout=wait_s))

        return repeat(ask, "listing topics", self._log, serve=self._serve)

    def _check_usable(self) -> None:
        if self._fenced:
            raise self._fenced_error()
        if self._spent:
            raise TransientError(f"this sink is of no more use: {self._spent}; open another one")

    def _check_position(self, key: str, value: bytes | None) -> None:
        topic = self._topics.positions
        size = _MESSAGE_OVERHEAD + len(key.encode()) + len(value or b"")
        size += sum(len(name) + len(content) + _HEADER_OVERHEAD for name, content in self._headers)
        if size > topic.max_message_bytes:
            raise _too_large(topic.name, size, topic.max_message_bytes)

    def _begin(self) -> None:
        self._check_usable()
        try:
            self._producer.begin_transaction()
        except KafkaException as raised:
            self._fail(raised.args[0], "beginning a transaction")
        self._began_s = steady_s()
        self._count = 0

    def _send_slowly(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers | None
    ) -> None:
        """Wait for room in the queue: the brokers are slower than the caller, or away."""
        deadline = steady_s() + LONGEST_WAIT_S
        while True:
            self._serve(0.05)
            try:
                return self._produce(topic, value, key, partition, headers=headers or [])
            except BufferError:
                if steady_s() >= deadline:
                    waited = f"sending, the queue is full for {LONGEST_WAIT_S:.0f} s"
                    self._fail(self._log.reason(KafkaError(KafkaError._QUEUE_FULL)), waited)
            except KafkaException as raised:
                self._fail(raised.args[0], "sending")

    @contextlib.contextmanager
    def _ending(self, doing: str) -> Iterator[None]:
        """Around the end of a transaction: afterwards none is open, or the sink is spent."""
        self._serve()
        started_s = time.monotonic()
        try:
            yield
        except KafkaException as raised:
            self._fail(raised.args[0], doing)
        except BaseException as error:  # an interrupt, too: how the transaction ended is unknown
            self._spent = f"{doing} failed: {error}"
            raise
        self._began_s = None
        self._count = 0
        with contextlib.suppress(KafkaException):  # the next transaction meets it again
            self._producer.poll(0)
        if self._log.is_disturbed(started_s):
            self._spent = "a connection broke while a transaction ended, so a delayed request could end the next one"

    def _serve(self, wait_s: float = 0) -> None:
        """Let the client call its log. Raises what has ended the producer."""
        try:
            self._producer.poll(wait_s)
        except KafkaException as raised:
            self._fail(raised.args[0], "sending")

    def _fail(self, error: KafkaError, doing: str) -> NoReturn:
        """Raise what an error of the client means for the caller; the sink is spent, its transaction aborted."""
        if error.code() in (KafkaError._STATE, KafkaError._FATAL) and self._began_s is not None:
            error = self._reason(error)
        age_s = 0.0 if self._began_s is None else steady_s() - self._began_s
        self._spent = f"{doing} failed: {self._settings.mask(error.str())}"
        if error.txn_requires_abort():
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(5)
        self._began_s = None
        if error.code() not in FENCED:
            if error.code() == KafkaError._INCONSISTENT and self._log.has_told(time.monotonic() - age_s):
                # librdkafka's text tells only how many messages failed.
                doing = f"{doing} ({self._settings.mask(self._log.reason(error).str())})"
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and self._log.denied_topic:
                doing = f"writing to topic {self._log.denied_topic}"
            raise kafka_error(error, doing, self._settings)
        if age_s >= TRANSACTION_TIMEOUT_S:
            raise TransientError(
                f"the brokers have ended a transaction of {self._shard.transactional_id} that was open for {age_s:.0f} "
                f"s; they do so after {TRANSACTION_TIMEOUT_S:.0f} s",
                transactional_id=self._shard.transactional_id,
            )
        self._fenced = True
        raise self._fenced_error()

    def _fenced_error(self) -> FencedError:
        return FencedError(
            f"Kafka has fenced this process, since another one has begun to write as {self._shard.transactional_id}: "
            "this one must end; what it had not committed is not visible",
            stream=self._shard.stream,
            transactional_id=self._shard.transactional_id,
        )

    def _reason(self, error: KafkaError) -> KafkaError:
        """Why the transaction failed earlier, which `produce` does not say: to commit it is refused with the reason."""
        try:
            self._producer.commit_transaction(0.1)
        except KafkaException as raised:
            reason: KafkaError = raised.args[0]
            return reason
        return error


def _configuration(settings: KafkaSettings, shard: Shard, topics: StreamTopics) -> dict[str, str | int | bool]:
    given = settings.client_settings()
    limits = [topic.max_message_bytes for topic in _all(topics)]
    least_queue = 2 * max(limits) // 1024 + 1
    queued = max(int(given.get("queue.buffering.max.kbytes", _QUEUED_KBYTES)), least_queue)
    return {
        **_DEFAULTS,
        **given,
        "queue.buffering.max.kbytes": queued,
        "batch.size": min(int(given.get("batch.size", _BATCH_BYTES)), *limits),
        "transactional.id": shard.transactional_id,
        "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
        "enable.idempotence": True,
        "acks": "all",
        "message.max.bytes": max(1000, *limits),
        "delivery.report.only.error": True,  # others would only be counted
        "allow.auto.create.topics": False,
        "log.connection.close": True,
    }


def _all(topics: StreamTopics) -> list[Topic]:
    return [*topics.changes.values(), *topics.upserts.values(), topics.positions]


def _too_large(topic: str, size: int, limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"a message of {size} bytes is too large for topic {topic}, which takes {limit}: raise the topic's "
        "max.message.bytes, and the brokers' and consumers' limits with it",
        topic=topic,
        size=size,
        limit=limit,
    )

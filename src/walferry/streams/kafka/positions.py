"""The position topic of a change stream: how far its messages go, by key; the last record of each key counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Message
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import OffsetSpec

from walferry.errors import TransientError, UsageError
from walferry.streams.kafka.admin import ANSWER_S, admin_client, answer
from walferry.streams.kafka.errors import LONGEST_WAIT_S, ClientLog, kafka_error, repeat
from walferry.streams.kafka.settings import KafkaSettings

_log = logging.getLogger(__name__)

_CLUSTER, _STREAM = "walferry-cluster", "walferry-stream"
_GROUP = "walferry"
"""librdkafka wants a group's name of every consumer. None is joined and no offset is committed, so that the user needs
no right on it; librdkafka asks for its coordinator nevertheless, and says if that is refused."""
_AT_ONCE, _FILL_S = 1000, 0.1
"""so many records are taken at once, or what comes in so many seconds"""

_FETCH_WAIT_MS = 20
"""a broker that has nothing more to give says so after this time"""


@dataclass(frozen=True)
class Owner:
    """Whose positions a topic has: the stream, and the id of the HBase cluster whose changes it carries."""

    cluster_id: str
    stream: str

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers of each of its records."""
        return [(_CLUSTER, self.cluster_id.encode()), (_STREAM, self.stream.encode())]


def read_positions(settings: KafkaSettings, topic: str, owner: Owner, *, expected: bool) -> dict[str, bytes]:
    """All committed positions, of every shard of the stream, by key; removed ones are left out.

    Call it after the producer has fenced older ones. It reads up to the end that the topic had at the call, past
    transactions that are still open at that moment: it waits for their end. `expected`: positions were written before.
    Raises UsageError if there are none then, or if the records are another stream's; TransientError if the end is not
    reached in 30 s.
    """
    log = ClientLog(settings)
    records = _own_records(settings, topic, owner, log)
    _tell_features(log)
    values = {key: record.value() for key, record in records.items()}
    positions = {key: value for key, value in values.items() if value is not None}
    if expected and not positions:
        raise lost(topic)
    return positions


def require_owner(settings: KafkaSettings, topic: str, owner: Owner) -> None:
    """Raise UsageError if a topic, which exists, has committed records of another stream, or of something other than
    walferry; TransientError as `read_positions` does."""
    _own_records(settings, topic, owner, ClientLog(settings))


def lost(positions: str) -> UsageError:
    """The error for positions that were written before and are gone."""
    return UsageError(
        f"the positions of the stream in topic {positions} are lost, though they were written before: stop, and ask "
        "who deleted the topic or its records; restore it, or begin a new epoch of the stream with new topics",
        topic=positions,
    )


def _own_records(settings: KafkaSettings, topic: str, owner: Owner, log: ClientLog) -> dict[str, Message[bytes, bytes]]:
    """The last committed record of each key. Raises UsageError if one is not the owner's."""
    end = _end(settings, topic)
    records = _records(settings, topic, end, log) if end else {}
    for record in records.values():
        _check_owner(record, topic, owner)
    return records


def _end(settings: KafkaSettings, topic: str) -> int:
    """The offset after the last record, committed or not."""
    log = ClientLog(settings)
    admin = admin_client(settings, log)
    asked = {Place(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]

    def ask(wait_s: float) -> int:
        uncommitted = IsolationLevel.READ_UNCOMMITTED
        return int(answer(admin.list_offsets(asked, isolation_level=uncommitted, request_timeout=ANSWER_S)).offset)

    return repeat(ask, f"asking for the end of topic {topic}", log, serve=lambda: admin.poll(0))


def _records(settings: KafkaSettings, topic: str, end: int, log: ClientLog) -> dict[str, Message[bytes, bytes]]:
    """The last committed record of each key."""
    common = settings.common_settings()
    debug = ",".join(filter(None, (common.get("debug"), "feature")))
    ours = {
        "group.id": _GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "debug": debug,
    }
    consumer = Consumer(common | ours | log.configuration())
    try:
        doing = f"opening topic {topic}"
        # Else `assign` waits a second for the topic's partition.
        repeat(lambda wait_s: consumer.list_topics(topic, wait_s), doing, log, serve=lambda: consumer.poll(0))
        consumer.assign([Place(topic, 0, OFFSET_BEGINNING)])
        return _read(consumer, topic, end, log)
    finally:
        consumer.close()


def _read(consumer: Consumer, topic: str, end: int, log: ClientLog) -> dict[str, Message[bytes, bytes]]:
    records = {}
    doing = f"reading the positions in topic {topic}"
    quiet_since = time.monotonic()
    reached = 0
    while reached < end:
        for message in consumer.consume(_AT_ONCE, _FILL_S):
            error = message.error()
            offset = message.offset()
            if error is None:
                records[_key(message, topic)] = message
                quiet_since = time.monotonic()
                reached = (offset or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = offset or 0
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                log.failed(error)
        if log.refusal is not None:
            raise kafka_error(log.refusal, doing, log.settings)
        if reached < end and time.monotonic() - quiet_since > LONGEST_WAIT_S:
            if log.last is not None:
                raise kafka_error(log.reason(log.last), doing, log.settings)
            raise TransientError(
                f"{doing}: only {reached} of {end} offsets in {LONGEST_WAIT_S:.0f} s: a transaction of another process "
                "is still open there",
                topic=topic,
            )
    return records


def _key(record: Message[bytes, bytes], topic: str) -> str:
    try:
        return (record.key() or b"").decode()
    except UnicodeDecodeError:
        raise _foreign(topic, "something other than walferry") from None


def _check_owner(record: Message[bytes, bytes], topic: str, owner: Owner) -> None:
    headers = dict(_headers(record))
    if _CLUSTER not in headers or _STREAM not in headers:
        raise _foreign(topic, "something other than walferry")
    found = Owner(headers[_CLUSTER].decode(errors="replace"), headers[_STREAM].decode(errors="replace"))
    if found != owner:
        raise _foreign(topic, f"stream {found.stream} of cluster {found.cluster_id}")


def _headers(record: Message[bytes, bytes]) -> list[tuple[str, bytes]]:
    headers = record.headers() or []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, value) for name, value in pairs if isinstance(value, bytes)]


def _foreign(topic: str, whose: str) -> UsageError:
    return UsageError(
        f"topic {topic} belongs to {whose}: set another positions topic for this stream", topic=topic, owner=whose
    )


def _tell_features(log: ClientLog) -> None:
    """Tell which brokers these are, as far as the requests that they know show it; nothing if that cannot be seen."""
    versions = log.api_versions
    if "AddPartitionsToTxn" not in versions or "Produce" not in versions:
        return
    if versions["AddPartitionsToTxn"] < 4:
        _log.warning(
            "the brokers are older than Kafka 3.6: a late message of a process that was killed may leave a transaction "
            "open and hold up readers of committed messages until somebody aborts it (kafka-transactions.sh)"
        )
    else:
        _log.info("the brokers are Kafka %s", "4.0 or newer" if versions["Produce"] >= 12 else "3.6 to 3.9")

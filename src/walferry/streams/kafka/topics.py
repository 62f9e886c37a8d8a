"""The topics of a change stream: that they are there and fit for it, before the first message is sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, ResourceType

from walferry.errors import TransientError, UsageError
from walferry.streams.kafka.admin import ANSWER_S, admin_client, answer
from walferry.streams.kafka.errors import LONGEST_WAIT_S, ClientLog, repeat
from walferry.streams.kafka.new_topics import Creation
from walferry.streams.kafka.positions import Owner, lost, require_owner
from walferry.streams.kafka.settings import KafkaSettings

_log = logging.getLogger(__name__)

SETTLE_S = 5.0
"""a broker that has just started may not know every topic yet"""
_NO_TOPICS: Mapping[str, int | None] = {}
_OF_POSITIONS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": "3600000"}
"""only segments that are complete are compacted, and whoever opens a sink reads all that is left"""


class Use(Enum):
    """What a topic is for."""

    CHANGES = "changes"
    UPSERTS = "upserts"
    POSITIONS = "positions"


@dataclass(frozen=True)
class Topic:
    """A topic as its cluster has it."""

    name: str
    partitions: int
    max_message_bytes: int
    """of a batch of messages, compressed"""


@dataclass(frozen=True)
class StreamTopics:
    """The topics of a stream, checked: the change topics by name, and the one that its positions are in."""

    changes: Mapping[str, Topic]
    positions: Topic
    upserts: Mapping[str, Topic] = field(default_factory=dict)


def prepare(
    settings: KafkaSettings,
    changes: Mapping[str, int | None],
    positions: str,
    *,
    create: Creation | None = None,
    owner: Owner | None = None,
    expected: bool = False,
    upserts: Mapping[str, int | None] = _NO_TOPICS,
) -> StreamTopics:
    """Check every topic of a stream, and create those that are missing if `create` says how.

    `changes`: the change topics, each with the partition count that was recorded when the stream began, None before.
    `owner`: whose positions there may be, None if that is not to be looked at; another's are refused before a topic is
    created. `expected`: positions have been written before, so their topic must be there. `upserts`: the upsert topics,
    as `changes`. Raises UsageError, which says what to do, for a topic that is missing, compacted (positions, upserts:
    not compacted), another's or has another partition count, and for brokers that are unknown or refuse the user;
    TransientError if no broker answers.
    """
    log = ClientLog(settings)
    admin = admin_client(settings, log)
    given = {**changes, **upserts}
    wanted = {name: _of_rows(name, create, "compact" if name in upserts else "delete") for name in given}
    wanted[positions] = _of_positions(positions, create)
    written = [name for name, recorded in given.items() if recorded is not None] + [positions] * expected
    known = settled(lambda: _partitions(admin, log), wanted if create is None else written)
    missing = [name for name in wanted if name not in known]
    if expected and positions in missing:
        raise lost(positions)
    _check_kept(given, known)
    if owner is not None and positions in known:
        _described(admin, positions, known[positions], log, use=Use.POSITIONS)
        require_owner(settings, positions, owner)
    if missing:
        if create is None:
            raise _unknown(missing[0], _use(missing[0], positions, upserts))
        for name in missing:
            _create(admin, wanted[name], log)
        known = _await(admin, missing, log)
    found = {name: _described(admin, name, known[name], log, use=_use(name, positions, upserts)) for name in wanted}
    for name, recorded in given.items():
        check_count(name, found[name].partitions, recorded)
    _require_room([found[name] for name in upserts], [found[name] for name in changes])
    return StreamTopics(
        {name: found[name] for name in changes}, found[positions], {name: found[name] for name in upserts}
    )


def look(
    settings: KafkaSettings,
    changes: Mapping[str, int | None],
    positions: str,
    *,
    create: Creation | None = None,
    owner: Owner | None = None,
    upserts: Mapping[str, int | None] = _NO_TOPICS,
) -> dict[str, int]:
    """As `prepare`, but create nothing. Returns the partitions of the topics that exist."""
    log = ClientLog(settings)
    admin = admin_client(settings, log)
    known = _partitions(admin, log)
    given = {**changes, **upserts}
    _check_kept(given, known)
    missing = [name for name in (*given, positions) if name not in known]
    if missing and create is None:
        raise _unknown(missing[0], _use(missing[0], positions, upserts))
    there = {
        name: _described(admin, name, known[name], log, use=_use(name, positions, upserts))
        for name in (*given, positions) if name in known
    }  # fmt: skip
    found = {name: topic.partitions for name, topic in there.items()}
    for name, recorded in given.items():
        if name in found:
            check_count(name, found[name], recorded)
    _require_room(
        [topic for name, topic in there.items() if name in upserts],
        [topic for name, topic in there.items() if name in changes],
    )
    if owner is not None and positions in found:
        require_owner(settings, positions, owner)
    return found


def _use(name: str, positions: str, upserts: Collection[str]) -> Use:
    return Use.POSITIONS if name == positions else Use.UPSERTS if name in upserts else Use.CHANGES


def _require_room(upserts: Collection[Topic], changes: Collection[Topic]) -> None:
    """Raise UsageError if an upsert topic may not take an image that a change topic takes."""
    most = max((topic.max_message_bytes for topic in changes), default=0)
    for topic in upserts:
        if topic.max_message_bytes < most:
            raise UsageError(
                f"topic {topic.name} takes messages of {topic.max_message_bytes} bytes, and changes may have {most}: "
                "raise its max.message.bytes to that",
                topic=topic.name,
            )


def _check_kept(changes: Mapping[str, int | None], known: Collection[str]) -> None:
    for name, recorded in changes.items():
        if recorded is not None and name not in known:
            raise UsageError(
                f"topic {name}, which the stream began with, is gone, and the changes in it: ask who deleted it; "
                "restore it, or begin a new epoch of the stream with a new topic",
                topic=name,
            )


def check_count(name: str, partitions: int, recorded: int | None) -> None:
    """Raise UsageError if a topic has another partition count than recorded (None: not yet)."""
    if recorded is not None and partitions != recorded:
        raise UsageError(
            f"topic {name} has {partitions} partitions, but the stream began with {recorded}: the changes of a row "
            "would no longer be in one partition, in order; begin a new epoch of the stream with a new topic",
            topic=name,
            partitions=partitions,
            recorded=recorded,
        )


def check_unchanged(ask: Callable[[], dict[str, int]], topics: StreamTopics) -> None:
    """Raise UsageError if a topic is no longer there, or no longer has the partitions that `prepare` found.

    `ask`: asks the brokers for their `partition_counts`.
    """
    known = settled(ask, [*topics.changes, *topics.upserts, topics.positions.name])
    for topic in (*topics.changes.values(), *topics.upserts.values()):
        if not known.get(topic.name):
            raise _unknown(topic.name, Use.UPSERTS if topic.name in topics.upserts else Use.CHANGES)
        check_count(topic.name, known[topic.name], topic.partitions)
    if topics.positions.name not in known:
        raise lost(topics.positions.name)


def settled(ask: Callable[[], dict[str, int]], names: Collection[str]) -> dict[str, int]:
    """Partition counts by topic, asked for until all of `names` are there, for at most 5 s."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        known = ask()
        if known.keys() >= set(names) or time.monotonic() >= deadline:
            return known
        time.sleep(0.2)


def partition_counts(metadata: ClusterMetadata) -> dict[str, int]:
    """The partition count of each topic that the user may see."""
    return {name: len(topic.partitions) for name, topic in metadata.topics.items()}


def _partitions(admin: AdminClient, log: ClientLog) -> dict[str, int]:
    metadata = repeat(
        lambda wait_s: admin.list_topics(timeout=wait_s),
        "listing topics",
        log,
        serve=lambda: admin.poll(0),
        first_contact=True,
    )
    return partition_counts(metadata)


def _of_rows(name: str, create: Creation | None, policy: str) -> NewTopic | None:
    return (
        None
        if create is None
        else NewTopic(name, create.partitions, create.replication, config={"cleanup.policy": policy})
    )


def _of_positions(name: str, create: Creation | None) -> NewTopic | None:
    return None if create is None else NewTopic(name, 1, create.replication, config=_OF_POSITIONS)


def _create(admin: AdminClient, topic: NewTopic | None, log: ClientLog) -> None:
    assert topic is not None

    def create(wait_s: float) -> None:
        try:
            answer(admin.create_topics([topic], request_timeout=ANSWER_S))
        except KafkaException as raised:
            code = raised.args[0].code()
            if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                raise UsageError(
                    f"Kafka at {log.settings.bootstrap}: the user may not create topic {topic.topic}: grant Create on "
                    "it, or create it yourself and leave create_topics out",
                    topic=topic.topic,
                ) from None
            if code != KafkaError.TOPIC_ALREADY_EXISTS:  # an earlier attempt, or another process
                raise

    repeat(create, f"creating topic {topic.topic}", log, serve=lambda: admin.poll(0))
    _log.info("created topic %s with %d partitions", topic.topic, topic.num_partitions)


def _await(admin: AdminClient, names: list[str], log: ClientLog) -> dict[str, int]:
    """Wait until the brokers know new topics."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while True:
        known = _partitions(admin, log)
        missing = [name for name in names if not known.get(name)]
        if not missing:
            return known
        if time.monotonic() >= deadline:
            raise TransientError(
                f"topic {missing[0]} was created, but the brokers do not know it yet", topic=missing[0]
            )
        time.sleep(0.1)


def _described(admin: AdminClient, name: str, partitions: int, log: ClientLog, *, use: Use) -> Topic:
    """Read a topic's configuration. Raises UsageError if the topic does not fit its use."""
    resource = ConfigResource(ResourceType.TOPIC, name)

    def describe(wait_s: float) -> dict[str, Any]:
        return answer(admin.describe_configs([resource], request_timeout=ANSWER_S))

    entries = repeat(describe, f"reading the configuration of topic {name}", log, serve=lambda: admin.poll(0))
    policies = {one.strip() for one in str(entries["cleanup.policy"].value).split(",")}
    if use is Use.POSITIONS:
        if policies != {"compact"} or partitions != 1:
            raise UsageError(
                f"topic {name} cannot keep the stream's positions: it has {partitions} partitions and cleanup.policy="
                f"{','.join(sorted(policies))}; it needs 1 partition and cleanup.policy=compact",
                topic=name,
            )
    elif use is Use.UPSERTS:
        if policies != {"compact"}:
            raise UsageError(
                f"topic {name} has cleanup.policy={','.join(sorted(policies))}, and an upsert topic keeps the last "
                "image of each row: set cleanup.policy=compact",
                topic=name,
            )
    elif "compact" in policies:
        raise UsageError(
            f"topic {name} has cleanup.policy={','.join(sorted(policies))}: compaction would remove changes before "
            "they are read; set cleanup.policy=delete",
            topic=name,
        )
    return Topic(name, partitions, int(entries["max.message.bytes"].value))


def _unknown(name: str, use: Use) -> UsageError:
    count = "1 partition" if use is Use.POSITIONS else "N partitions"
    policy = "" if use is Use.CHANGES else " and cleanup.policy=compact"
    return UsageError(
        f"unknown topic {name}: create it with {count}{policy}, or set create_topics: true; a user without the right "
        "Describe on it does not see it either",
        topic=name,
    )

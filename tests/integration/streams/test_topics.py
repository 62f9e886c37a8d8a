"""On a real broker: a stream does not begin with topics that would lose its changes or positions."""

from __future__ import annotations

import os
import time

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from walferry.embedded.kafka import Broker
from walferry.errors import UsageError
from walferry.streams.kafka.new_topics import Creation, positions_topic
from walferry.streams.kafka.positions import Owner
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.kafka.sink import Shard, Sink
from walferry.streams.kafka.topics import look, prepare


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    named = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=named)])[name].result(30)


def test_missing_topics_are_created_as_the_stream_needs_them(settings: KafkaSettings, topic: str) -> None:
    made = prepare(settings, {topic: None}, positions_topic(topic), create=Creation(3, 1))
    assert (made.changes[topic].partitions, made.positions.partitions) == (3, 1)
    assert made.changes[topic].max_message_bytes == 1048588
    assert prepare(settings, {topic: 3}, positions_topic(topic), expected=True) == made


def test_a_position_topic_is_created_so_that_compaction_keeps_it_small(
    settings: KafkaSettings, admin: AdminClient, topic: str
) -> None:
    prepare(settings, {topic: None}, positions_topic(topic), create=Creation(1, 1))
    resource = ConfigResource(ResourceType.TOPIC, positions_topic(topic))
    found = admin.describe_configs([resource])[resource].result(30)
    kept = [found[name].value for name in ("cleanup.policy", "segment.bytes", "segment.ms")]
    assert kept == ["compact", "16777216", "3600000"]


def test_a_missing_topic_is_named_with_the_way_to_create_it(
    settings: KafkaSettings, admin: AdminClient, topic: str
) -> None:
    with pytest.raises(UsageError, match=rf"unknown topic {topic}: create it with N partitions, or set create_topics"):
        prepare(settings, {topic: None}, positions_topic(topic))
    create(admin, topic)
    with pytest.raises(UsageError, match=r"positions: create it with 1 partition and cleanup.policy=compact"):
        prepare(settings, {topic: None}, positions_topic(topic))


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_change_topic_is_refused(
    settings: KafkaSettings, admin: AdminClient, topic: str, policy: str
) -> None:
    create(admin, topic, cleanup_policy=policy)
    with pytest.raises(UsageError, match="compaction would remove changes"):
        prepare(settings, {topic: None}, positions_topic(topic), create=Creation(1, 1))


def test_an_upsert_topic_is_created_compacted_and_is_refused_if_it_would_lose_rows_or_takes_too_little(
    settings: KafkaSettings, admin: AdminClient, topic: str
) -> None:
    wrong, small = f"{topic}-wrong", f"{topic}-small"
    rows: dict[str, int | None] = {f"{topic}-rows": None}
    made = prepare(settings, {topic: None}, positions_topic(topic), create=Creation(2, 1), upserts=rows)
    assert made.upserts[f"{topic}-rows"].partitions == 2
    create(admin, wrong, cleanup_policy="compact,delete")
    create(admin, small, cleanup_policy="compact", max_message_bytes="5000")
    for check in (prepare, look):
        check(settings, {topic: 2}, positions_topic(topic), upserts={f"{topic}-rows": 2})
        with pytest.raises(UsageError, match="an upsert topic keeps the last image of each row"):
            check(settings, {topic: 2}, positions_topic(topic), upserts={wrong: None})
        with pytest.raises(UsageError, match="takes messages of 5000 bytes, and changes may have 1048588: raise its "):
            check(settings, {topic: 2}, positions_topic(topic), upserts={small: None})


@pytest.mark.parametrize(("policy", "partitions"), [("delete", 1), ("compact,delete", 1), ("compact", 2)])
def test_a_position_topic_that_could_lose_positions_is_refused(
    settings: KafkaSettings, admin: AdminClient, topic: str, policy: str, partitions: int
) -> None:
    create(admin, positions_topic(topic), partitions, cleanup_policy=policy)
    with pytest.raises(UsageError, match=r"it needs 1 partition and cleanup.policy=compact"):
        prepare(settings, {topic: None}, positions_topic(topic), create=Creation(1, 1))


def test_another_partition_count_than_recorded_is_refused_with_both(
    settings: KafkaSettings, admin: AdminClient, topic: str
) -> None:
    made = prepare(settings, {topic: None}, positions_topic(topic), create=Creation(2, 1))
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    with pytest.raises(UsageError, match=r"has 5 partitions, but the stream began with 2.*new epoch"):
        prepare(settings, {topic: 2}, positions_topic(topic))
    with pytest.raises(UsageError, match=r"has 5 partitions, but the stream began with 2"):
        Sink.open(settings, Shard("source", topic), made)


def test_a_position_topic_that_was_there_and_is_gone_stops_the_stream(settings: KafkaSettings, topic: str) -> None:
    with pytest.raises(UsageError, match="are lost, though they were written before: stop, and ask"):
        prepare(settings, {topic: None}, positions_topic(topic), create=Creation(1, 1), expected=True)


def test_a_change_topic_that_was_there_and_is_gone_is_not_created_anew(
    settings: KafkaSettings, admin: AdminClient, topic: str
) -> None:
    prepare(settings, {topic: None}, positions_topic(topic), create=Creation(1, 1))
    admin.delete_topics([topic])[topic].result(30)
    for check in (prepare, look):
        with pytest.raises(UsageError, match=f"topic {topic}, which the stream began with, is gone"):
            check(settings, {topic: 1}, positions_topic(topic), create=Creation(1, 1))


def test_a_position_topic_with_records_of_another_stream_is_refused_before_anything_is_made(
    settings: KafkaSettings, admin: AdminClient, topic: str
) -> None:
    positions = positions_topic(topic)
    shard = Shard("source", topic)
    with Sink.open(settings, shard, prepare(settings, {topic: None}, positions, create=Creation(1, 1))) as writer:
        writer.commit({"region": b"7"})
    for check in (look, prepare):
        check(settings, {topic: 1}, positions, owner=shard.owner)
        for other in (Owner("another", topic), Owner("source", "another")):
            with pytest.raises(UsageError, match=f"topic {positions} belongs to stream {topic} of cluster source"):
                check(settings, {f"{topic}-new": None}, positions, create=Creation(1, 1), owner=other)
    assert f"{topic}-new" not in admin.list_topics(timeout=10).topics


def test_a_limit_of_the_topic_is_read(settings: KafkaSettings, admin: AdminClient, topic: str) -> None:
    create(admin, topic, max_message_bytes="5000")
    made = prepare(settings, {topic: None}, positions_topic(topic), create=Creation(1, 1))
    assert made.changes[topic].max_message_bytes == 5000
    wide = KafkaSettings(bootstrap=settings.bootstrap, client={"batch.size": "900000"})
    with Sink.open(wide, Shard("source", topic), made) as writer:
        for _ in range(100):
            writer.send(topic, 0, b"row", os.urandom(4000))
        assert writer.commit({}) == 100


def test_a_host_that_no_name_server_knows_is_the_user_s_to_correct() -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"unknown host: no name server knows no-such-host.invalid:9092"):
        prepare(KafkaSettings(bootstrap="no-such-host.invalid:9092"), {}, "positions")
    assert time.monotonic() - started < 15


def test_a_setting_that_the_client_does_not_know_is_the_user_s_to_correct(broker: Broker) -> None:
    with pytest.raises(UsageError, match=r'No such configuration property: "sasl.such"'):
        prepare(KafkaSettings(bootstrap=broker.address, client={"sasl.such": "x"}), {}, "positions")

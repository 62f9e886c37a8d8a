"""On a real broker: consumers that read committed messages see each once, whatever happens to the sink."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from booting import CHEAP_JVM
from kafka_reading import read
from walferry.embedded.kafka import Broker
from walferry.errors import TransientError, UsageError
from walferry.streams.fenced import FencedError
from walferry.streams.kafka import errors as kafka_errors
from walferry.streams.kafka import sink, topics
from walferry.streams.kafka.errors import MessageTooLargeError
from walferry.streams.kafka.new_topics import Creation, positions_topic
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.kafka.sink import Shard, Sink
from walferry.streams.kafka.topics import StreamTopics

PARTITIONS = 3


@pytest.fixture
def prepared(settings: KafkaSettings, topic: str) -> StreamTopics:
    return prepare(settings, topic)


@pytest.fixture
def opened(settings: KafkaSettings, topic: str, prepared: StreamTopics) -> Iterator[Callable[..., Sink]]:
    """Opens sinks of one shard; all are closed at the end."""
    made: list[Sink] = []

    def open_sink(client: dict[str, str] | None = None, *, expected: bool = False) -> Sink:
        with_client = KafkaSettings(bootstrap=settings.bootstrap, client=client or {})
        made.append(Sink.open(with_client, Shard("source", topic), prepared, expected=expected))
        return made[-1]

    yield open_sink
    for one in made:
        one.close()


def prepare(settings: KafkaSettings, topic: str) -> StreamTopics:
    return topics.prepare(settings, {topic: None}, positions_topic(topic), create=Creation(PARTITIONS, 1))


def values(address: str, topic: str, *, committed: bool = True) -> list[bytes | None]:
    """Of partition 0."""
    seen = read(address, topic, PARTITIONS, committed=committed)
    return [one.value for one in seen if one.partition == 0]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def send(to: Sink, topic: str, messages: list[bytes]) -> None:
    for one in messages:
        to.send(topic, 0, b"row", one)


def test_both_consumers_see_a_message_as_it_was_sent(broker: Broker, topic: str, opened: Callable[..., Sink]) -> None:
    writer = opened()
    writer.send(topic, 2, b"row", b"value", [("table", b"t"), ("kind", b"put")])
    writer.send(topic, 1, b"gone", None)
    assert writer.commit({"region": b"7"}) == 2
    assert sorted(broker.consume(topic, 2, timeout_s=20)) == [
        "Partition:1\tNO_HEADERS\tgone\tnull",
        "Partition:2\ttable:t,kind:put\trow\tvalue",
    ]
    seen = sorted(read(broker.address, topic, PARTITIONS), key=lambda one: one.partition)
    assert [(one.partition, one.key, one.value, one.headers) for one in seen] == [
        (1, b"gone", None, None),
        (2, b"row", b"value", [("table", b"t"), ("kind", b"put")]),
    ]


def test_the_partition_that_is_given_is_the_one_used(broker: Broker, topic: str, opened: Callable[..., Sink]) -> None:
    writer = opened()
    for number in range(30):
        writer.send(topic, number % PARTITIONS, b"same row", b"%d" % number)
    writer.commit({})
    seen = read(broker.address, topic, PARTITIONS)
    assert sorted((one.partition, one.value) for one in seen) == sorted(
        (number % PARTITIONS, b"%d" % number) for number in range(30)
    )
    for wrong in (-1, PARTITIONS):
        with pytest.raises(ValueError, match="no partition"):
            writer.send(topic, wrong, b"row", b"value")


def test_positions_read_back_are_those_of_the_last_commit(opened: Callable[..., Sink]) -> None:
    first = opened()
    assert first.positions == {}
    assert first.commit({"a": b"1", "b": b"1", "ü": b""}) == 0
    first.commit({"a": b"2", "b": None})
    first.send(next(iter(first._topics.changes)), 0, b"row", b"value")
    first.abort()
    assert first.positions == {"a": b"2", "ü": b""}
    assert opened(expected=True).positions == {"a": b"2", "ü": b""}


def test_a_commit_of_nothing_begins_no_transaction(broker: Broker, topic: str, opened: Callable[..., Sink]) -> None:
    writer = opened()
    assert writer.commit({}) == 0
    writer.abort()
    assert read(broker.address, topic, PARTITIONS, committed=False) == []


def test_what_was_aborted_is_not_seen_and_can_be_sent_again(
    broker: Broker, topic: str, opened: Callable[..., Sink]
) -> None:
    writer = opened()
    send(writer, topic, numbered(0, 10))
    writer.commit({"at": b"10"})
    send(writer, topic, numbered(10, 20))
    writer.abort()
    send(writer, topic, numbered(10, 30))
    assert writer.commit({"at": b"30"}) == 20
    assert values(broker.address, topic) == numbered(0, 30)


def test_a_second_sink_ends_the_first_and_nothing_of_its_open_transaction_shows(
    broker: Broker, topic: str, opened: Callable[..., Sink]
) -> None:
    first = opened()
    send(first, topic, numbered(0, 10))
    first.commit({"at": b"10"})
    send(first, topic, [b"never"] * 10)
    first.send(positions_topic(topic), 0, b"at", b"20", first._headers)  # as far as a commit gets that does not end
    await_uncommitted(broker, topic, 20)
    while len(read(broker.address, positions_topic(topic), 1, committed=False)) < 2:
        time.sleep(0.1)
    second = opened()
    assert second.positions == {"at": b"10"}
    with pytest.raises(FencedError, match="another one has begun to write as walferry-source-") as caught:
        first.commit({"at": b"20"})
    assert caught.value.stream == topic
    with pytest.raises(FencedError):
        first.send(topic, 0, b"row", b"never")
    send(second, topic, numbered(10, 20))
    second.commit({"at": b"20"})
    assert values(broker.address, topic) == numbered(0, 20)
    assert b"never" in values(broker.address, topic, committed=False)


def test_an_idle_sink_that_was_taken_over_learns_it_when_it_goes_on(topic: str, opened: Callable[..., Sink]) -> None:
    first = opened()
    first.commit({"at": b"1"})
    opened()
    with pytest.raises(FencedError):
        first.commit({"at": b"2"})
    assert opened().positions == {"at": b"1"}


CHILD = """
import sys, time
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.kafka.sink import Shard, Sink
from walferry.streams.kafka.new_topics import positions_topic
from walferry.streams.kafka.topics import prepare
address, topic = sys.argv[1:]
settings = KafkaSettings(bootstrap=address)
sink = Sink.open(settings, Shard("source", topic), prepare(settings, {topic: None}, positions_topic(topic)))
for number in range(100):
    sink.send(topic, 0, b"row", b"%d" % number)
sink.commit({"at": b"100"})
for number in range(100, 200):
    sink.send(topic, 0, b"row", b"%d" % number)
time.sleep(60)
"""


def await_uncommitted(broker: Broker, topic: str, messages: int) -> None:
    deadline = time.monotonic() + 30
    while len(values(broker.address, topic, committed=False)) < messages:
        assert time.monotonic() < deadline, "the messages have not reached the broker"
        time.sleep(0.1)


def test_after_kill_9_in_a_transaction_the_next_sink_goes_on_where_the_last_commit_was(
    broker: Broker, topic: str, opened: Callable[..., Sink]
) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, broker.address, topic]) as child:
        try:
            await_uncommitted(broker, topic, 200)
        finally:
            child.kill()
    started = time.monotonic()
    writer = opened(expected=True)
    assert time.monotonic() - started < 10, "the transaction of the killed process holds up the next one"
    assert writer.positions == {"at": b"100"}
    send(writer, topic, numbered(100, 250))
    writer.commit({"at": b"250"})
    assert values(broker.address, topic) == numbered(0, 250)
    lines = broker.consume(topic, 250, timeout_s=20)
    assert [line.rpartition("\t")[2] for line in lines] == [str(number) for number in range(250)]


def test_a_transaction_that_is_open_for_too_long_is_no_take_over(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, topic: str, opened: Callable[..., Sink]
) -> None:
    monkeypatch.setattr(sink, "TRANSACTION_TIMEOUT_S", 1.0)
    writer = opened()
    send(writer, topic, [b"late"])
    await_uncommitted(broker, topic, 1)
    time.sleep(13)  # the coordinator looks every 10 s
    with pytest.raises(TransientError, match="was open for"):
        writer.commit({"at": b"1"})
    assert opened().positions == {}
    assert values(broker.address, topic) == []


def test_a_sink_whose_connection_broke_while_it_committed_begins_no_other_transaction(
    broker: Broker, topic: str, opened: Callable[..., Sink]
) -> None:
    """Its request to commit may still be under way, and would end the next transaction."""
    writer = opened({"socket.timeout.ms": "1000"})
    send(writer, topic, numbered(0, 10))
    await_uncommitted(broker, topic, 10)
    assert broker.server is not None
    pid = broker.server.pid
    os.kill(pid, signal.SIGSTOP)
    wake = threading.Timer(4, os.kill, (pid, signal.SIGCONT))
    wake.start()
    try:
        assert writer.commit({"at": b"10"}) == 10
    finally:
        wake.join()
    assert writer.positions == {"at": b"10"}
    with pytest.raises(TransientError, match="a connection broke"):
        send(writer, topic, [b"never"])
    again = opened(expected=True)
    assert again.positions == {"at": b"10"}
    send(again, topic, numbered(10, 20))
    again.commit({"at": b"20"})
    assert values(broker.address, topic) == numbered(0, 20)


def test_a_message_above_the_limit_is_refused_before_it_is_sent(
    broker: Broker, topic: str, opened: Callable[..., Sink], prepared: StreamTopics
) -> None:
    writer = opened()
    limit = prepared.changes[topic].max_message_bytes
    send(writer, topic, [b"before"])
    with pytest.raises(MessageTooLargeError, match=r"raise the topic's max.message.bytes") as caught:
        writer.send(topic, 0, b"row", bytes(limit))
    assert caught.value.limit == limit
    assert caught.value.size > limit
    with pytest.raises(MessageTooLargeError):
        writer.send(topic, 0, b"row", b"", [("big", bytes(limit))])
    with pytest.raises(MessageTooLargeError) as position:
        writer.commit({"at": bytes(prepared.positions.max_message_bytes)})
    assert position.value.topic == positions_topic(topic)
    largest = os.urandom(limit - 200)
    send(writer, topic, [largest, *[os.urandom(300_000) for _ in range(10)]])
    writer.commit({"at": b"1"})
    seen = values(broker.address, topic)
    assert seen[:2] == [b"before", largest]
    assert len(seen) == 12


def test_a_full_queue_makes_send_wait(broker: Broker, topic: str, opened: Callable[..., Sink]) -> None:
    writer = opened({"queue.buffering.max.messages": "50"})
    send(writer, topic, numbered(0, 1000))
    assert writer.commit({}) == 1000
    assert values(broker.address, topic) == numbered(0, 1000)


def test_positions_of_another_stream_are_refused(
    settings: KafkaSettings, topic: str, prepared: StreamTopics, opened: Callable[..., Sink]
) -> None:
    opened().commit({"at": b"1"})
    for shard in (Shard("source", "another"), Shard("another", topic)):
        with pytest.raises(UsageError, match=f"belongs to stream {topic} of cluster source"):
            Sink.open(settings, shard, prepared)


def test_records_of_something_else_in_the_position_topic_are_refused(
    settings: KafkaSettings, topic: str, prepared: StreamTopics
) -> None:
    with Producer({"bootstrap.servers": settings.bootstrap}) as other:
        other.produce(positions_topic(topic), b"value", b"\xff")
        other.flush(10)
    with pytest.raises(UsageError, match="belongs to something other than walferry"):
        Sink.open(settings, Shard("source", topic), prepared)


def test_positions_are_read_past_another_shard_s_open_transaction(
    settings: KafkaSettings, topic: str, prepared: StreamTopics
) -> None:
    with (
        Sink.open(settings, Shard("source", topic, 0), prepared) as first,
        Sink.open(settings, Shard("source", topic, 1), prepared) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        begun = threading.Event()

        def leave_open() -> None:
            second.send(positions_topic(topic), 0, b"b", b"1", second._headers)
            second._producer.flush(10)
            begun.set()
            time.sleep(2)
            second.commit({})

        ended = pool.submit(leave_open)
        begun.wait(30)
        first.commit({"a": b"1"})
        assert read(settings.bootstrap, positions_topic(topic), 1) == [], "the open transaction hides the later one"
        with Sink.open(settings, Shard("source", topic, 0), prepared, expected=True) as again:
            assert again.positions == {"a": b"1", "b": b"1"}
        ended.result()


def test_a_limit_that_was_lowered_since_is_told(
    settings: KafkaSettings, topic: str, opened: Callable[..., Sink]
) -> None:
    writer = opened()
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    lower = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[lower])
    admin.incremental_alter_configs([resource])[resource].result(30)
    send(writer, topic, [os.urandom(5000)])
    with pytest.raises(UsageError, match=r"max\.message\.bytes of a topic has been lowered"):
        writer.commit({"at": b"1"})
    assert opened().positions == {}


def test_a_failure_in_a_transaction_ends_the_sending_and_the_next_sink_finds_the_topic_gone(
    settings: KafkaSettings, topic: str, opened: Callable[..., Sink]
) -> None:
    writer = opened()
    send(writer, topic, [b"before"])
    writer.commit({"at": b"1"})
    assert not writer.is_spent
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 40

    def send_on() -> None:
        while time.monotonic() < deadline:
            send(writer, topic, [b"after"])
            writer.commit({"at": b"2"})

    with pytest.raises(TransientError, match=r"(?i)unknown (topic|partition)|timed out"):
        send_on()
    with pytest.raises(TransientError, match="of no more use"):
        send(writer, topic, [b"after"])
    assert writer.is_spent
    with pytest.raises(UsageError, match=f"unknown topic {topic}"):
        opened()


def test_positions_that_were_written_and_are_gone_stop_the_stream(opened: Callable[..., Sink]) -> None:
    with pytest.raises(UsageError, match="are lost"):
        opened(expected=True)


def test_a_broker_that_is_killed_while_messages_are_sent_loses_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
    with Broker.start(tmp_path) as own:
        settings = KafkaSettings(bootstrap=own.address, client={"queue.buffering.max.messages": "1000"})
        prepared = prepare(settings, topic)
        far, back = threading.Event(), threading.Event()

        def kill_and_boot() -> None:
            far.wait(60)
            own.kill()
            time.sleep(1)
            own.boot()
            back.set()

        def until(done: int) -> bool:
            if done >= 5_000:
                far.set()
            return back.is_set() and done >= 20_000

        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(kill_and_boot)
            failures = follow(settings, topic, prepared, until=until)
            ended.result()
        assert failures, "the kill was not noticed"
        seen = values(own.address, topic)
        assert seen == numbered(0, len(seen))
        assert len(seen) >= 20_000
        assert own.consume(topic, 2, timeout_s=20) == [
            "Partition:0\tNO_HEADERS\trow\t0",
            "Partition:0\tNO_HEADERS\trow\t1",
        ]


def follow(
    settings: KafkaSettings, topic: str, prepared: StreamTopics, *, until: Callable[[int], bool]
) -> list[TransientError]:
    """Send numbers as a stream would: after each failure from the positions of a new sink."""
    failures: list[TransientError] = []
    done = 0
    while not until(done):
        try:
            with Sink.open(settings, Shard("source", topic), prepared, expected=done > 0) as writer:
                done = int(writer.positions.get("at", b"0"))
                while not until(done):
                    send(writer, topic, numbered(done, done + 100))
                    writer.commit({"at": b"%d" % (done + 100)})
                    done += 100
        except TransientError as error:
            failures.append(error)
            assert len(failures) < 100
    return failures


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kafka_errors, sink):
        monkeypatch.setattr(module, "LONGEST_WAIT_S", 3.0)


@pytest.mark.usefixtures("quick")
def test_while_the_broker_is_away_each_wait_ends_with_an_error_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
    with Broker.start(tmp_path) as own, caplog.at_level(logging.DEBUG):
        settings = KafkaSettings(bootstrap=own.address, client={"queue.buffering.max.messages": "10"})
        prepared = prepare(settings, topic)
        first = Sink.open(settings, Shard("source", topic), prepared)
        second = Sink.open(settings, Shard("source", topic, 1), prepared)
        hasty = settings.model_copy(update={"client": {"message.timeout.ms": "1000"}})
        third = Sink.open(hasty, Shard("source", topic, 2), prepared)
        for sending in (second, third):
            send(sending, topic, [b"never"])
        own.kill()
        started = time.monotonic()
        with pytest.raises(TransientError):
            send(first, topic, numbered(0, 100))
        with pytest.raises(TransientError, match="whether it happened"):
            second.commit({"at": b"1"})
        with pytest.raises(TransientError, match=r"(?s)committing .*(refused|reset|closed|down).*failed delivery"):
            third.commit({"at": b"1"})
        for failing in (
            lambda: Sink.open(settings, Shard("source", topic), prepared),
            lambda: prepare(settings, topic),
        ):
            with pytest.raises(TransientError, match=own.address):
                failing()
        for used in (first, second, third):
            used.close()
        assert time.monotonic() - started < 25

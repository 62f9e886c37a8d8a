"""The Kafka broker that `walferry.embedded` boots is a real one: with transactions, and its data after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from walferry.embedded.kafka import Broker
from walferry.errors import WalferryError

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of one partition that no other test uses."""
    name = f"broker-{uuid4().hex}"
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(DEADLINE_S)
    return name


@pytest.fixture
def producer(broker: Broker, topic: str) -> Iterator[Producer]:
    """A producer with transactions."""
    with Producer({"bootstrap.servers": broker.address, "transactional.id": topic}) as made:
        made.init_transactions(DEADLINE_S)
        yield made


def test_of_two_transactions_only_the_committed_one_is_consumed(broker: Broker, topic: str, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"taken back", b"row")
    assert producer.flush(DEADLINE_S) == 0  # the broker has it
    producer.abort_transaction(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, "kept: ü, \u2028".encode(), b"row", headers={"table": b"orders", "region": b"1"})
    producer.produce(topic, b"kept, without a key")
    producer.commit_transaction(DEADLINE_S)
    assert broker.consume(topic, 3, timeout_s=5) == [
        "Partition:0\ttable:orders,region:1\trow\tkept: ü, \u2028",
        "Partition:0\tNO_HEADERS\tnull\tkept, without a key",
    ]


def test_what_was_committed_outlives_kill_9_of_the_broker(broker: Broker, topic: str, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"before")
    producer.commit_transaction(DEADLINE_S)
    killed = broker.server
    assert killed is not None
    broker.kill()
    assert not killed.is_alive()
    broker.boot()
    producer.begin_transaction()
    producer.produce(topic, b"after")
    producer.commit_transaction(DEADLINE_S)
    assert [line.split("\t")[-1] for line in broker.consume(topic, 2)] == ["before", "after"]


def test_a_program_of_kafkas_that_fails_is_reported_with_what_it_said(broker: Broker) -> None:
    with pytest.raises(WalferryError, match=r"(?s)TopicCommand .*failed with 1:.*missing.* does not exist"):
        broker.run(
            "org.apache.kafka.tools.TopicCommand",
            ["--bootstrap-server", broker.address, "--describe", "--topic", "missing"],
        )

"""Messages go to the partitions that Kafka's own Java producer takes for their keys, and consumers read their JSON."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from unit.streams.message.naive_messages import Cell, Entry, made
from walferry.embedded.kafka import Broker
from walferry.streams.message.changes import BytesAs, Form

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
PARTITIONS = 7


def test_javas_producer_sends_each_key_to_the_partition_of_its_message(broker: Broker) -> None:
    topic = f"partitions-{uuid4().hex}"
    client = AdminClient({"bootstrap.servers": broker.address})
    made_topic = client.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])
    made_topic[topic].result(DEADLINE_S)
    rows = [b"\t\r\n\0", b'"\\', "zeile ß \u2028\U0001f600".encode(), *(bytes(range(n)) * 2 for n in range(1, 256, 3))]
    messages = made(Form("prod", 1, BytesAs.UTF8), [Entry([Cell(row, value=row) for row in rows])])
    sent = [(messages.key(number).decode(), messages.value(number).decode()) for number in range(len(messages))]
    broker.run(
        "kafka.tools.ConsoleProducer",
        [f"--bootstrap-server={broker.address}", f"--topic={topic}", "--property=parse.key=true"],
        given="".join(f"{key}\t{value}\n" for key, value in sent),
    )
    received = [line.split("\t") for line in broker.consume(topic, len(sent))]
    assert {key: (partition, value) for partition, _, key, value in received} == {
        key: (f"Partition:{partition}", value)
        for (key, value), partition in zip(sent, messages.partitions(PARTITIONS).tolist(), strict=True)
    }
    assert len({partition for partition, *_ in received}) == PARTITIONS
    assert sorted(json.loads(key)["row"] for _, _, key, _ in received if "base64" not in key) == sorted(
        row.decode() for row in rows if row.isascii() or "ß".encode() in row
    )

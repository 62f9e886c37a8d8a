"""What a consumer that reads committed messages sees of a topic, by a plain client without walferry."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition


@dataclass(frozen=True)
class Seen:
    """One message as a consumer gets it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: object
    created_ms: int
    """when its producer was given it"""


def read(address: str, topic: str, partitions: int, *, committed: bool = True, timeout_s: float = 30) -> list[Seen]:
    """Every message of a topic up to the end that it has now, in the order of each partition."""
    settings = {
        "bootstrap.servers": address,
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "fetch.wait.max.ms": 10,  # the end of a partition is told after it
    }
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
        ends = [_end(consumer, place, timeout_s) for place in places]
        consumer.assign(places)
        seen: list[Seen] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + timeout_s
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"the end of {topic} is not reached"
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                partition = message.partition()
                assert partition is not None
                seen.append(Seen(partition, message.key(), message.value(), message.headers(), message.timestamp()[1]))
                if (message.offset() or 0) + 1 >= ends[partition]:  # while much is sent, no end is told
                    ended.add(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return seen
    finally:
        consumer.close()


_BEING_MADE = (KafkaError._UNKNOWN_PARTITION, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


def _end(consumer: Consumer, place: TopicPartition, timeout_s: float) -> int:
    """The end of a partition, also of one that is just being made."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _, end = consumer.get_watermark_offsets(place, timeout=timeout_s)
            return end
        except KafkaException as error:
            if error.args[0].code() not in _BEING_MADE or time.monotonic() > deadline:
                raise
            time.sleep(0.2)

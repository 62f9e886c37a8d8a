"""Kafka in memory: topics, positions, and sinks that fence each other and fail where a real broker cannot fail."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from walferry.errors import TransientError
from walferry.streams.fenced import FencedError
from walferry.streams.kafka.sink import Shard
from walferry.streams.kafka.topics import StreamTopics, Topic

TOO_LATE = "the brokers do not answer"


class MemoryKafka:
    """What was committed. `fails`: how the next commits end, "before" or "after" it has happened."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        """values, each with its partition and its header `version`"""
        self.positions: dict[str, bytes] = {}
        self.transactions = 0
        self.fails: list[str] = []
        self.epochs = Counter[str]()
        self.most_bytes = 1 << 20
        self.owners: list[object] = []
        """that `prepare` was asked for"""
        self.commit_s: float | None = None
        """how long a commit may wait, as `open` was told"""
        self.refuses: Exception | None = None
        """what `prepare` raises"""

    @property
    def numbers(self) -> list[int]:
        """The numbers of the edits in the messages, in order."""
        return [value["sequence_number"] for value in self.messages]

    def prepare(self, _: object, changes: Mapping[str, int | None], positions: str, **more: Any) -> StreamTopics:
        """As `streams.kafka.topics.prepare`."""
        assert all(count in (None, 2) for count in changes.values())
        assert not more["expected"] or self.positions
        self.owners.append(more["owner"])
        if self.refuses is not None:
            raise self.refuses
        return StreamTopics({name: Topic(name, 2, self.most_bytes) for name in changes}, Topic(positions, 1, 1 << 20))

    def open(self, _: object, shard: Shard, topics: StreamTopics, **more: Any) -> MemorySink:
        """As `streams.kafka.sink.Sink.open`."""
        self.commit_s = more["commit_s"]
        self.epochs[shard.transactional_id] += 1
        return MemorySink(self, shard.transactional_id)


class MemorySink:
    """A sink of this Kafka."""

    def __init__(self, kafka: MemoryKafka, transactional_id: str) -> None:
        self._kafka, self._id, self._epoch = kafka, transactional_id, kafka.epochs[transactional_id]
        self._sent: list[dict[str, Any]] = []
        self.positions = dict(kafka.positions)
        self.is_spent = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, topic: str, partition: int, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        self._sent.append(
            json.loads(value) | {"partition": partition, "version": int(dict(headers)["version"]), "topic": topic}
        )

    def commit(self, changed: Mapping[str, bytes]) -> int:
        if self._kafka.epochs[self._id] != self._epoch:
            raise FencedError("fenced")
        how = self._kafka.fails.pop(0) if self._kafka.fails else ""
        if how == "before":
            raise TransientError(TOO_LATE)
        self._kafka.messages += self._sent
        self._kafka.positions |= changed
        self._kafka.transactions += 1
        self._sent = []
        self.positions |= changed
        if how == "after":
            raise TransientError(TOO_LATE)
        return 0

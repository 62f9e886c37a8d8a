"""Kafka as the destination of a run: a topic for each table, written by the holder of the table's lease.

Each table has a transactional id. Who takes the lease opens it, and Kafka then refuses everything that an earlier
holder still sends, so nobody waits for the requests of a holder that vanished. Then it reads the position: the rows of
the ledger that are above it were not committed, and are taken back.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from kazoo.client import KazooClient

from walferry.amounts import amount
from walferry.clock import steady_s
from walferry.errors import UsageError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch
from walferry.ledger import RunRecord
from walferry.ledger.batches import Change
from walferry.receive.kafka_run import KafkaReceiveRun
from walferry.receive.kafka_spec import ResolvedKafkaReceiveSpec, number_of
from walferry.receive.seen import Picked, seen_of
from walferry.receive.topic_table import TopicTable
from walferry.replay.rights import lease
from walferry.replay.rights.applying import check_of
from walferry.run.spec import TablePair
from walferry.storage import open_file_system
from walferry.streams.delivery import Claims, Delivery, Topic
from walferry.streams.kafka.positions import Owner, lost
from walferry.streams.kafka.sink import Shard, Sink
from walferry.streams.kafka.topics import StreamTopics, look, prepare
from walferry.streams.stream_spec import SecretConnections, environment_secrets, kafka_settings

log = logging.getLogger(__name__)

LEASE_WAIT_SECONDS = 5.0
COMMIT_SECONDS = 12.0
"""that a commit waits for Kafka: the calls that wait for it then still have time to be refused with the reason, and the
client has not given up the messages, whose reports do not name it"""
LOOK_SECONDS = 10.0
"""after which a topic that did not take a message is looked at again"""
_PARTITIONS, _WRITTEN = "receive has partitions", "receive has a position"
"""notes of the run: the partitions of each topic; and that a table's position was written"""


@dataclass(frozen=True)
class Position:
    """How far a table is: the number of the ledger's newest row that was committed, of which run. A run of another
    ledger may have the same id, but not the same beginning."""

    run: str
    created_ms: int
    number: int

    @classmethod
    def before(cls, run: RunRecord) -> Position:
        """Before the first row of a run."""
        return cls(run.run_id, run.created_ms, 0)

    @classmethod
    def decode(cls, value: bytes) -> Position:
        """What `at` gave."""
        return cls(**json.loads(value))

    def is_of(self, run: RunRecord) -> bool:
        """Whether it is that run's."""
        return replace(self, number=0) == Position.before(run)

    def at(self, number: int) -> bytes:
        """The value for another number."""
        return json.dumps({"run": self.run, "created_ms": self.created_ms, "number": number}).encode()


class Topics:
    """A `Destination`."""

    calls_at_once = 16

    def __init__(self, run: KafkaReceiveRun) -> None:
        self._run = run
        self._recording = threading.Lock()
        self.run_id, self.pairs = run.run_id, run.tables
        self.source_id, self.sink_id = run.source.cluster_uuid(), run.presented_id()

    @property
    def zk(self) -> KazooClient:
        """The run's ZooKeeper."""
        return self._run.zk

    def lease_of(self, table: str) -> str:
        """Like no target table of a cluster in the same ZooKeeper, and no table of another run."""
        return f"kafka {self.sink_id} {table}"

    @contextmanager
    def opened(self, pair: TablePair) -> Iterator[TopicTable]:
        """Hold a table for a block: everybody who held it before is fenced."""
        table = pair.source
        with self._leased(table) as (guard, check):
            topics = self._topics(table, self._owner())
            with Sink.open(
                self._run.kafka(), self._shard(table), topics, expected=self._is_written(table),
                commit_s=COMMIT_SECONDS,
            ) as sink:  # fmt: skip
                yield self._table(pair, guard, check, sink, topics)

    def prepare(self, holding: TopicTable, wanted: Callable[[], bool], tell: Callable[[str], None]) -> bool:
        """Return: there is nothing to prepare."""
        return True

    def apply(self, holding: TopicTable, batch: EntryBatch, picked: Picked, deadline: float) -> Picked:
        """Send edits, and events of bulk loads, to the table's topic."""
        holding.send(without_source(batch, self.source_id), picked, deadline)
        return picked[:0]

    def under_way(self, regions: Collection[str]) -> None:
        """Nothing goes on beside the calls."""

    async def at_rest(self, regions: Collection[str]) -> None:
        """Return: nothing goes on beside the calls."""

    def close(self) -> None:
        """Do nothing: sinks are closed with their tables."""

    def _table(
        self, pair: TablePair, guard: Callable[[], None], check: Change, sink: Sink, topics: StreamTopics
    ) -> TopicTable:
        table, received = pair.source, self._run.ledger.received
        position = self._position(table, sink.positions.get(table))
        count = received.take_back(table, position.number, check)
        if count:
            what = amount(count, "recorded call was", "recorded calls were")
            log.warning("%s: %s not committed to Kafka, so the source sends them again", table, what)
        return TopicTable(
            pair, guard, check, received, seen_of(received, table), self._recording, sink,
            self._delivery(table, sink, topics), self._run.form(), position.at, position.number,
            _once(partial(self._run.ledger.notes.keep, _WRITTEN, {}, table)), self._run.spec.merge_rows,
            _Changed(topics, partial(self._topics, table, None)),
        )  # fmt: skip

    def _position(self, table: str, value: bytes | None) -> Position:
        """How far the table is by what Kafka has. Another run's position says nothing of this one, and must not be
        where this one's was."""
        run, is_written = self._run.record, self._is_written(table)
        if value is None and is_written:
            raise lost(self._run.spec.positions_topic)
        found = Position.before(run) if value is None else Position.decode(value)
        if found.is_of(run):
            return found
        if is_written:
            raise _others(table, self._run.spec.positions_topic, found, run)
        return Position.before(run)

    @contextmanager
    def _leased(self, table: str) -> Iterator[tuple[Callable[[], None], Change]]:
        """The lease of a table, recorded: a guard, and a check for the ledger."""
        run, name = self._run, self.lease_of(table)
        leases = run.ledger.leases
        with lease.held_leases(
            run.zk, [name], holder=lease.holder(run.run_id, run.actor), request_seconds=0,
            wait_seconds=LEASE_WAIT_SECONDS, newest=leases.newest, closed=run.zookeeper_address().zookeeper_login,
        ) as held:  # fmt: skip
            number = held[name].number
            leases.take(name, run.actor, number)
            yield partial(lease.check, run.zk, held[name]), check_of(run.ledger, {name: number})
            leases.release(name, number)

    def _delivery(self, table: str, sink: Sink, topics: StreamTopics) -> Delivery:
        spec, address = self._run.spec, self._run.source.address
        (topic,) = topics.changes.values()
        claims = None
        if spec.large_messages is not None:
            files, folder = open_file_system(spec.large_messages, user=address.user, security=address.security)
            claims = Claims(files, folder, by_content=True)  # an attempt that was not committed may have left another
        return Delivery({table: Topic(topic.name, topic.partitions, topic.max_message_bytes)}, sink, claims)

    def _topics(self, table: str, owner: Owner | None) -> StreamTopics:
        """The table's topic and that of the positions, checked or created, with the partitions of the first time.
        `owner`: whose positions there may be; None if they are not to be read."""
        run, topic = self._run, self._run.spec.topic_of(table)
        known = run.ledger.notes.get(_PARTITIONS, topic)
        found = prepare(
            run.kafka(), {topic: known["count"] if known else None}, run.spec.positions_topic,
            create=run.spec.creation, owner=owner, expected=self._is_written(table),
        )  # fmt: skip
        if known is None:
            run.ledger.notes.keep(_PARTITIONS, {"count": found.changes[topic].partitions}, topic)
        return found

    def _is_written(self, table: str) -> bool:
        return self._run.ledger.notes.get(_WRITTEN, table) is not None

    def _shard(self, table: str) -> Shard:
        """The transactional id of a table: the same for every run of the name, whatever its other tables."""
        owner = self._owner()
        return Shard(owner.cluster_id, owner.stream, number_of(table))

    def _owner(self) -> Owner:
        return owner_of(self._run.spec, self._run.source.cluster_id())


class _Changed:
    """Says whether a topic takes other messages than before, or cannot be used as it is; asks Kafka at most every
    LOOK_SECONDS."""

    def __init__(self, known: StreamTopics, ask: Callable[[], StreamTopics]) -> None:
        self._known, self._ask = known, ask
        self._asked_s = steady_s() - LOOK_SECONDS

    def __call__(self) -> bool:
        if steady_s() - self._asked_s < LOOK_SECONDS:
            return False
        self._asked_s = steady_s()
        try:
            return self._ask() != self._known
        except UsageError as error:
            log.warning("the topic cannot be used: %s", error)
            return True  # whoever opens the table shows why
        except WalferryError as error:
            log.warning("the topic is not looked at again: %s", error)
            return False


def _others(table: str, positions: str, found: Position, run: RunRecord) -> UsageError:
    which = f"run {found.run}" if found.run != run.run_id else f"a run {found.run} of another ledger"
    return UsageError(
        f"another run, or another ledger, has written to the positions of {table} in topic {positions}: they are those "
        f"of {which} now. Two runs cannot share a name: end this one if the other is to go on, else end both, and "
        "begin a new one with a higher epoch",
        table=table, topic=positions, run=found.run,
    )  # fmt: skip


def owner_of(spec: ResolvedKafkaReceiveSpec, cluster_id: str) -> Owner:
    """Whose positions a run has: like no stream's, whose names have no hyphen."""
    return Owner(cluster_id, f"receive-{spec.name}")


def examine_topics(
    spec: ResolvedKafkaReceiveSpec, cluster_id: str, secrets: SecretConnections = environment_secrets
) -> Mapping[str, Any]:
    """Examine the topics for a spec, and change nothing; `cluster_id` is the source's. Raises UsageError for what
    stands in the way. Facts: topics by table, positions, and the partitions of topics that exist."""
    topics = {table: spec.topic_of(table) for table in spec.tables}
    found = look(
        kafka_settings(spec, secrets), dict.fromkeys(topics.values()), spec.positions_topic, create=spec.creation,
        owner=owner_of(spec, cluster_id),
    )  # fmt: skip
    return {"topics": topics, "partitions": found, "positions": spec.positions_topic}


def without_source(batch: EntryBatch, source_id: UUID) -> EntryBatch:
    """The batch, whose entries do not name the source among the clusters that had them before: a server adds its own
    cluster to what it ships, and a stream's messages have only those before it."""
    return replace(batch, cluster_lists=[_without(raw, source_id) for raw in batch.cluster_lists])


def _without(raw: bytes, source_id: UUID) -> bytes:
    key = pb.WALKey()
    key.MergeFromString(raw)
    others = [one for one in key.cluster_ids if one.most_sig_bits << 64 | one.least_sig_bits != source_id.int]
    left: bytes = pb.WALKey(cluster_ids=others).SerializePartialToString()
    return left


def _once(work: Callable[[], object]) -> Callable[[], None]:
    """Do something at the first call that succeeds."""
    left = [work]

    def call() -> None:
        if left:
            left[0]()
            left.clear()

    return call

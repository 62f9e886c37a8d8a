"""Kafka as the destination of a stream: topics that fit, and messages in transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from walferry.hbase.server_pages import some_settings
from walferry.storage import open_file_system
from walferry.streams.beginning import descriptor_of
from walferry.streams.delivery import Claims, Delivery, Topic
from walferry.streams.image.delivery import ImageDelivery
from walferry.streams.image.proof import in_memory_of
from walferry.streams.image.rows import RowImages
from walferry.streams.image.upserts import Upserts
from walferry.streams.kafka.positions import Owner
from walferry.streams.kafka.sink import Shard, Sink
from walferry.streams.kafka.topics import StreamTopics, look, prepare
from walferry.streams.kafka.topics import Topic as KafkaTopic
from walferry.streams.opened import OpenedDestination
from walferry.streams.snapshot.taking import snapshot_table
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import ResolvedStreamSpec, SecretConnections, kafka_settings


def examine(spec: ResolvedStreamSpec, cluster_id: str, secrets: SecretConnections) -> dict[str, Any]:
    """Examine the topics for a spec, and change nothing. Raises UsageError.

    Facts: topics by table, positions, and the partitions of topics that exist.
    """
    owner = Owner(cluster_id, spec.name)
    found = look(
        kafka_settings(spec, secrets), _recorded(spec, None), spec.positions_topic, create=spec.creation, owner=owner,
        upserts=_recorded_upserts(spec, None),
    )  # fmt: skip
    topics = {table: spec.topic_of(table) for table in spec.tables}
    return {"topics": topics, "partitions": found, "positions": spec.positions_topic}


def plan(run: StreamRun) -> dict[str, Any]:
    """Examine or create the topics of a run. Raises UsageError for what stands in the way. Facts: partitions by topic,
    positions."""
    topics = _topics(run, _shard(run).owner)
    partitions = {name: topic.partitions for name, topic in {**topics.changes, **topics.upserts}.items()}
    return {"partitions": partitions, "positions": topics.positions.name}


@contextmanager
def opened(run: StreamRun) -> Iterator[OpenedDestination]:
    """A sink for a run, and its delivery."""
    topics = _topics(run)
    with Sink.open(run.kafka(), _shard(run), topics, expected=run.has_positions) as sink:
        claims = None
        if run.spec.large_messages is not None:
            address = run.source.address
            folder = open_file_system(run.spec.large_messages, user=address.user, security=address.security)
            claims = Claims(*folder)
        changes = _targets(topics.changes, run.topics)
        if run.spec.image == "none":
            yield OpenedDestination(sink, Delivery(changes, sink, claims), run.spec.resolved)
            return
        with closing(_row_images(run)) as rows:
            upserts = None
            if run.spec.upsert_topic is not None:
                upserts = Upserts(run.form(), _targets(topics.upserts, run.spec.upsert_topics), sink, claims)
            delivery = ImageDelivery(changes, sink, claims, rows, partial(snapshot_table, run), upserts)
            yield OpenedDestination(sink, delivery, run.spec.resolved, rows)


def _row_images(run: StreamRun) -> RowImages:
    return RowImages(
        run.source, run.form(), run.source_tables, partial(descriptor_of, run.source),
        in_memory=in_memory_of(some_settings(run.source)), are_required=run.spec.upsert_topic is not None,
    )  # fmt: skip


def _shard(run: StreamRun) -> Shard:
    """Who writes to Kafka. Its name is the spec's: a new run of the same name goes on where the last one ended."""
    return Shard(run.source.cluster_id(), run.spec.name)


def _recorded(spec: ResolvedStreamSpec, plan: Mapping[str, Any] | None) -> dict[str, int | None]:
    """The change topics, each with the partition count that the plan has recorded."""
    counts = plan["partitions"] if plan else {}
    return {spec.topic_of(table): counts.get(spec.topic_of(table)) for table in spec.tables}


def _recorded_upserts(spec: ResolvedStreamSpec, plan: Mapping[str, Any] | None) -> dict[str, int | None]:
    """The upsert topics, each with the partition count that the plan has recorded."""
    counts = plan["partitions"] if plan else {}
    return {topic: counts.get(topic) for topic in spec.upsert_topics.values()}


def _topics(run: StreamRun, owner: Owner | None = None) -> StreamTopics:
    """The topics, checked or created. `owner`: as of `prepare`; a sink looks itself."""
    spec, plan = run.spec, run.ledger.phases.facts("plan")
    return prepare(
        run.kafka(), _recorded(spec, plan), spec.positions_topic, create=spec.creation, owner=owner,
        expected=run.has_positions, upserts=_recorded_upserts(spec, plan),
    )  # fmt: skip


def _targets(topics: Mapping[str, KafkaTopic], names: Mapping[str, str]) -> dict[str, Topic]:
    return {
        table: Topic(name, topics[name].partitions, topics[name].max_message_bytes) for table, name in names.items()
    }

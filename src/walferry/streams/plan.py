"""What a stream needs before it begins: a source that can be read, and topics that fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.replay.keeping.obstacles import folder_obstacle, peer_obstacles
from walferry.run.run import file_system
from walferry.streams.kafka.positions import Owner
from walferry.streams.kafka.topics import StreamTopics, look, prepare
from walferry.streams.snapshot.taking import require_readable
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import KafkaConnections, ResolvedStreamSpec, environment_kafka, kafka_settings


def examine(spec: ResolvedStreamSpec, kafka: KafkaConnections = environment_kafka) -> dict[str, Any]:
    """Examine the source and Kafka for a spec, and change nothing. Raises UsageError that lists what stands in the way.

    Facts: version and cluster_id of the source, topics by table, positions, and the partitions of topics that exist,
    rows_first: bytes of the store files of tables whose rows are sent first.
    """
    with HBaseClient(spec.log_address()) as source:
        _require_source(spec, source)
        spec.decoder()
        owner = Owner(source.cluster_id(), spec.name)
        topics = look(
            kafka_settings(spec, kafka), _recorded(spec, None), spec.positions_topic, create=spec.creation, owner=owner
        )
        held = source.held_bytes() if spec.snapshot else {}
        return {
            "version": source.version(),
            "cluster_id": source.cluster_id(),
            "topics": {table: spec.topic_of(table) for table in spec.tables},
            "partitions": topics,
            "positions": spec.positions_topic,
            "rows_first": {table: held.get(table, 0) for table in spec.tables} if spec.snapshot else {},
        }


def plan_stream(run: StreamRun) -> dict[str, Any]:
    """The phase `plan`: examine the source, and examine or create the topics. Raises UsageError for what stands in the
    way; the run has then failed, so that a corrected spec can take its name."""

    def work() -> dict[str, Any]:
        _require_source(run.spec, run.source)
        run.spec.decoder()
        topics = topics_of(run, run.shard().owner)
        return {
            "version": run.source.version(),
            "cluster_id": run.source.cluster_id(),
            "partitions": {name: topic.partitions for name, topic in topics.changes.items()},
            "positions": topics.positions.name,
        }

    try:
        return run.once("plan", work)
    except TransientError:
        raise
    except WalferryError as error:
        run.ledger.end("failed", run.actor, str(error))
        raise


def _require_source(spec: ResolvedStreamSpec, source: HBaseClient) -> None:
    """Raise UsageError unless the source's files can be read, and HBase grants what a stream needs."""
    address, files = spec.source.address(), file_system(spec.source)
    if files.status(address.root_path) is None:
        raise UsageError(f"source: {address.root_path} does not exist on its file system; check rootdir and webhdfs")
    if missing := [table for table in spec.tables if not source.table_exists(table)]:
        raise UsageError(f"there is no table {', '.join(missing)} at the source", tables=missing)
    for table in spec.tables if spec.snapshot else ():
        require_readable(source.describe(table))
    if lacking := source.lacking_rights(("ADMIN",), spec.tables):
        raise UsageError(
            f"HBase does not grant {source.address.user} {', '.join(lacking)}; grant it, or name another `user`"
        )
    if (misplaced := folder_obstacle(source, files, address.wal_path)) is not None:
        raise UsageError(f"source: {misplaced}")
    if obstacles := list(peer_obstacles(source)):
        raise UsageError(f"a stream needs a replication peer, which keeps the log: {'; '.join(obstacles)}")


def _recorded(spec: ResolvedStreamSpec, plan: Mapping[str, Any] | None) -> dict[str, int | None]:
    """The change topics, each with the partition count that the plan has recorded."""
    counts = plan["partitions"] if plan else {}
    return {spec.topic_of(table): counts.get(spec.topic_of(table)) for table in spec.tables}


def topics_of(run: StreamRun, owner: Owner | None = None) -> StreamTopics:
    """The topics, checked or created. `owner`: as of `prepare`; a sink looks itself."""
    spec, plan = run.spec, run.ledger.phases.facts("plan")
    return prepare(
        run.kafka(), _recorded(spec, plan), spec.positions_topic, create=spec.creation, owner=owner,
        expected=has_sent(run),
    )  # fmt: skip


SENT = "stream has recorded positions"
"""a note of the run: its position topic is not empty"""


def has_sent(run: StreamRun) -> bool:
    """Whether positions of the run have been written."""
    return run.ledger.notes.get(SENT) is not None

"""Where a stream's changes go: to Kafka (`to_kafka`), or into Parquet files (`to_parquet`), as its spec says.

Only what is used is imported: Kafka's client is an extra.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from walferry.streams.opened import OpenedDestination
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import ResolvedStreamSpec, SecretConnections


def examine_destination(spec: ResolvedStreamSpec, cluster_id: str, secrets: SecretConnections) -> dict[str, Any]:
    """Examine where a stream is to go, and change nothing; `cluster_id` is the source's. Raises UsageError for what
    stands in the way. Returns facts for people."""
    if spec.parquet is not None:
        from walferry.streams import to_parquet

        return to_parquet.examine(spec, cluster_id, secrets)
    from walferry.streams import to_kafka

    return to_kafka.examine(spec, cluster_id, secrets)


def plan_destination(run: StreamRun) -> dict[str, Any]:
    """Examine or make where a run goes. Raises UsageError for what stands in the way. Returns facts for the ledger."""
    if run.spec.parquet is not None:
        from walferry.streams import to_parquet

        return to_parquet.plan(run)
    from walferry.streams import to_kafka

    return to_kafka.plan(run)


def open_destination(run: StreamRun) -> AbstractContextManager[OpenedDestination]:
    """Open where a run goes, for a block: older processes cannot write there any more."""
    if run.spec.parquet is not None:
        from walferry.streams import to_parquet

        return to_parquet.opened(run)
    from walferry.streams import to_kafka

    return to_kafka.opened(run)

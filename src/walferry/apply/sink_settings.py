"""How the target's region servers apply a replicated request, by their settings; a row's order depends on it (R4).

ReplicationSink applies a request's mutations in chunks of `hbase.rpc.rows.warning.threshold`, which run concurrently,
and gives up on a chunk after `replication.sink.client.ops.timeout`. So a request must be one chunk, and after a request
with an unknown outcome nothing may be sent before that time has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from walferry.apply.writer_protocol import Limits
from walferry.hbase.client import HBaseClient
from walferry.hbase.settings import number, some_settings
from walferry.hbase.thrift import TIMEOUT_SECONDS as THRIFT_SECONDS
from walferry.hbase.writer_kind import WriterKind

CHUNK = "hbase.rpc.rows.warning.threshold"
TIMEOUT = "replication.sink.client.ops.timeout"
REPLICATION = "hbase.replication"


@dataclass(frozen=True)
class SinkSettings:
    """The strictest settings among the servers asked. The defaults are HBase's."""

    mutations: int = 5_000
    timeout_seconds: float = 10.0
    replicates: bool = True
    """whether all take replicated edits at all (RSRpcServices.replicateWALEntry of 1.x)"""


def sink_settings(target: HBaseClient) -> SinkSettings | None:
    """The settings of the target's region servers; None when none of them provides them."""
    answers = some_settings(target)
    if not answers:
        return None
    default = SinkSettings()
    return SinkSettings(
        min(number(found, CHUNK, default.mutations) for found in answers),
        max(number(found, TIMEOUT, round(default.timeout_seconds * 1000)) for found in answers) / 1000,
        not target.release.replication_may_be_off or all(found.get(REPLICATION) != "false" for found in answers),
    )


def limits_of(kind: WriterKind, sink: SinkSettings | None) -> Limits:
    """The limits for a writer to a target with these settings; HBase's defaults are assumed for unknown ones."""
    if kind is WriterKind.THRIFT:
        return Limits(request_seconds=THRIFT_SECONDS)
    sink = sink or SinkSettings()
    usual = Limits()
    return Limits(
        mutations=max(1, min(usual.mutations, sink.mutations)),
        settle_seconds=max(usual.settle_seconds, sink.timeout_seconds),
    )

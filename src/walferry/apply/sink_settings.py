"""How the target's region servers apply a replicated request, by their own settings: what a row's order rests on (R4).

ReplicationSink hands a request's mutations on in chunks of `hbase.rpc.rows.warning.threshold`, which run concurrently,
and gives up on a chunk after `replication.sink.client.ops.timeout`. So a request must be one chunk, and after a request
whose outcome is unknown nothing may follow before that time has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from walferry.apply.writer import Limits
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import TIMEOUT_SECONDS as THRIFT_SECONDS
from walferry.hbase.way import Way

CHUNK = "hbase.rpc.rows.warning.threshold"
TIMEOUT = "replication.sink.client.ops.timeout"
MOST_ASKED = 5
"""servers; a cluster's are configured alike"""


@dataclass(frozen=True)
class SinkSettings:
    """The strictest of what the servers that were asked are configured with. The defaults are HBase's."""

    mutations: int = 5_000
    timeout_seconds: float = 10.0


def sink_settings(target: HBaseClient) -> SinkSettings | None:
    """Ask region servers of the target; None when none of them tells."""
    told = [found for server in target.servers()[:MOST_ASKED] if (found := target.settings(server)) is not None]
    if not told:
        return None
    default = SinkSettings()
    return SinkSettings(
        min(_number(found.get(CHUNK), default.mutations) for found in told),
        max(_number(found.get(TIMEOUT), round(default.timeout_seconds * 1000)) for found in told) / 1000,
    )


def limits_of(way: Way, sink: SinkSettings | None) -> Limits:
    """What a writer must keep to, towards a target with these settings; unknown ones are taken for HBase's defaults."""
    if way is Way.THRIFT:
        return Limits(request_seconds=THRIFT_SECONDS)
    sink = sink or SinkSettings()
    usual = Limits()
    return Limits(
        mutations=max(1, min(usual.mutations, sink.mutations)),
        settle_seconds=max(usual.settle_seconds, sink.timeout_seconds),
    )


def _number(text: str | None, default: int) -> int:
    """A setting that may be missing, or no number, which HBase would not start with."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default

"""The available writers. To add one, add its kind to `WriterKind` and a line to `WRITERS`.

`run.spec` and `migration.plan` check what a kind needs from the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import TaskContext

from walferry.apply.route import Route
from walferry.apply.rpc_writer import RpcWriter
from walferry.apply.thrift_writer import ThriftWriter
from walferry.apply.writer_protocol import WriteLimits, Writer
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.thrift import TIMEOUT_SECONDS as THRIFT_SECONDS
from walferry.hbase.writer_kind import WriterKind
from walferry.spark.clients import shared_client

if TYPE_CHECKING:
    from walferry.settings import Writing


def writer_to(route: Route) -> Writer:
    """A writer to the route's target. In a repeated Spark task, first waits for the previous attempt to end."""
    task = TaskContext.get()
    if task is not None:
        guard = route.guard.of_attempt(f"{task.stageId()}-{task.partitionId()}", task.attemptNumber())
        route = replace(route, guard=guard)
    return WRITERS[route.writer_kind](route)


def _rpc_writer(route: Route) -> Writer:
    least, most = route.source_id
    source_id = pb.UUID(least_sig_bits=least, most_sig_bits=most)
    return RpcWriter(shared_client(route.target), source_id, route.guard, route.limits)


def _thrift_writer(route: Route) -> Writer:
    return ThriftWriter(route.target, route.guard, route.limits)


def limits_of(kind: WriterKind, writing: Writing) -> WriteLimits:
    """The limits for a writer of this kind, from the driver's settings."""
    return WriteLimits(
        mutations=writing.request_mutations,
        bytes=writing.request_bytes,
        aim_bytes=writing.request_aim_bytes,
        lanes=writing.lanes,
        read_ahead=writing.read_ahead,
        ahead_bytes=writing.read_ahead_bytes,
        piece_bytes=writing.piece_bytes,
        here_bytes=writing.here_bytes,
        request_seconds=THRIFT_SECONDS if kind is WriterKind.THRIFT else writing.request_seconds,
        settle_seconds=writing.settle_seconds,
        claim_seconds=writing.claim_seconds,
    )


WRITERS: Mapping[WriterKind, Callable[[Route], Writer]] = {
    WriterKind.RPC: _rpc_writer,
    WriterKind.THRIFT: _thrift_writer,
}
"""the writer of each kind"""

"""Where edits come from, where they go, and under which guard."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pyspark import TaskContext

from walferry.apply.rpc_writer import RpcWriter
from walferry.apply.thrift_writer import ThriftWriter
from walferry.apply.writer import Limits, Writer
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.writer_kind import WriterKind
from walferry.spark.clients import shared_client, shared_files
from walferry.wal.files import WalFile
from walferry.wal.open import Wal, open_wal


@dataclass(frozen=True)
class Route:
    """Where edits come from, where they go, and under which guard. Sent to the executors."""

    source: ClusterAddress
    root: str
    """HBase's root folder on the source's file system"""
    source_id: tuple[int, int]
    """the source's cluster id: its least and most significant bits"""
    target: ClusterAddress
    tables: dict[str, str]
    """source table to target table"""
    guard: Callable[[Collection[str]], None]
    """raises unless the leases of these target tables are still held; called before every request"""
    limits: Limits = field(default_factory=Limits)
    writer_kind: WriterKind = WriterKind.RPC

    def writer(self) -> Writer:
        """A writer to the target. A task that Spark repeats first waits until its predecessor's requests have ended."""
        task = TaskContext.get()
        if task is not None and task.attemptNumber() > 0:
            time.sleep(self.limits.request_seconds + self.limits.settle_seconds)
        return WRITERS[self.writer_kind](self)

    def open(self, file: WalFile) -> Wal:
        """A file of the source, to be read to its true end."""
        return open_wal(shared_files(self.source), self.root, file)


def _rpc_writer(route: Route) -> Writer:
    least, most = route.source_id
    source_id = pb.UUID(least_sig_bits=least, most_sig_bits=most)
    return RpcWriter(shared_client(route.target), source_id, route.guard, route.limits)


def _thrift_writer(route: Route) -> Writer:
    return ThriftWriter(route.target, route.guard, route.limits)


WRITERS: Mapping[WriterKind, Callable[[Route], Writer]] = {
    WriterKind.RPC: _rpc_writer,
    WriterKind.THRIFT: _thrift_writer,
}
"""the writer of each kind"""

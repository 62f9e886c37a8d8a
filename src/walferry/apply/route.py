"""Where edits come from, where they go, and under which guard."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from walferry.apply.writer_protocol import Guard, WriteLimits
from walferry.hbase.address import ClusterAddress
from walferry.hbase.writer_kind import WriterKind
from walferry.spark.clients import shared_log_files
from walferry.wal.files import WalFile
from walferry.wal.open import BATCH_BYTES, Wal, open_wal


@dataclass(frozen=True)
class Route:
    """Where edits come from, where they go, and under which guard. Spark sends it to the executors."""

    source: ClusterAddress
    root: str
    """the folder with WALs/ and oldWALs/, on the file system of the source's log"""
    source_id: tuple[int, int]
    """the source's cluster id: its least and most significant bits"""
    target: ClusterAddress
    tables: dict[str, str]
    """source table to target table"""
    guard: Guard
    """raises unless the target tables' leases are still held; called before every part of a request"""
    limits: WriteLimits
    writer_kind: WriterKind = WriterKind.RPC

    def open(self, file: WalFile, batch_bytes: int = BATCH_BYTES) -> Wal:
        """Open a file of the source, to read it to its true end."""
        return open_wal(shared_log_files(self.source), self.root, file, batch_bytes=batch_bytes)


def mark_tables(route: Route, tables: Collection[str], why: str) -> None:
    """Mark all rows of the target tables of these source tables as dirty (`Guard.mark_dirty`)."""
    rows = {target: (b"", b"") for source, target in route.tables.items() if source in tables}
    route.guard.mark_dirty(rows, why)

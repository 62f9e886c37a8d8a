"""The two sides of a run: the cluster of each, and the names of tables there."""

from __future__ import annotations

from walferry.hbase.client import HBaseClient
from walferry.ledger.rows import ClusterSide
from walferry.run.cluster_ids import planned_id
from walferry.run.run import Run
from walferry.storage import FileSystem

SIDES: tuple[ClusterSide, ClusterSide] = ("source", "target")


def client_at(run: Run, side: ClusterSide) -> HBaseClient:
    """The cluster of a side."""
    return run.source if side == "source" else run.target


def log_at(run: Run, side: ClusterSide) -> tuple[FileSystem, str]:
    """Where the log of a side is: its file system, and the folder with WALs/ and oldWALs/."""
    if side == "source":
        return run.wal_files, run.wal_root
    return run.target_wal_files, run.target_wal_root


def elsewhere(run: Run, side: ClusterSide) -> str:
    """That a side's address leads to another cluster than the run's plan has found; "" if it does not."""
    now, planned = client_at(run, side).cluster_id(), planned_id(run.ledger, side)
    return "" if now == planned else f"its address leads to another cluster: {now}"


def name_at(run: Run, side: ClusterSide, table: str) -> str:
    """The name of a source table's copy on a side."""
    pair = run.pair(table)
    return pair.source if side == "source" else pair.target

"""The two sides of a run: the cluster of each, and the names of tables there."""

from __future__ import annotations

from walferry.hbase.client import HBaseClient
from walferry.ledger.rows import ClusterSide
from walferry.run.run import Run

SIDES: tuple[ClusterSide, ClusterSide] = ("source", "target")


def client_at(run: Run, side: ClusterSide) -> HBaseClient:
    """The cluster of a side."""
    return run.source if side == "source" else run.target


def name_at(run: Run, side: ClusterSide, table: str) -> str:
    """The name of a source table's copy on a side."""
    pair = run.pair(table)
    return pair.source if side == "source" else pair.target

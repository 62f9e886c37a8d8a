"""`walferry receive` in a process of its own, and the source's peer that leads to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import table_name
from walferry.hbase.peers import add_disabled_peer


def command(spec: Path) -> list[str]:
    """What begins one process of a spec, on a free port of this machine."""
    return [sys.executable, "-m", "walferry.cli", "receive", str(spec), "--host", "127.0.0.1", "--port", "0"]


def add_peer(source: HBaseClient, name: str, cluster_key: str, tables: Sequence[str]) -> None:
    """Have the source keep the log of these tables for a sink, by a disabled peer."""
    cfs = [pb.TableCF(table_name=table_name(table)) for table in tables]
    peer = pb.ReplicationPeer(clusterkey=cluster_key, replicate_all=False, table_cfs=cfs)
    add_disabled_peer(source, name, peer)

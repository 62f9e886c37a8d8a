"""What tests of read points need: the numbers in the logs, the answers of servers, and writes that wait for a sync."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from walferry.embedded.cluster import MiniCluster
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.mutate import Cell, put
from walferry.hbase.zookeeper import Server
from walferry.spark.clients import shared_files
from walferry.wal.files import list_live
from walferry.wal.open import Until, open_wal

FAMILIES = {"f": {"VERSIONS": "1"}, "g": {"VERSIONS": "1"}}


def numbers(cluster: MiniCluster, region: Region, *, of_edits: bool = True) -> list[int]:
    """The sequence numbers of a region's edits, or of all its entries, in the logs that are not archived, in order."""
    files = shared_files(cluster.address)
    found: list[int] = []
    for file in list_live(files, "/hbase"):
        for batch in open_wal(files, "/hbase", file, Until.NOW):
            ours = batch.of_regions({region.encoded})
            if of_edits:
                ours = ours & (batch.marker == Marker.NONE)
            found += batch.sequence_number[np.flatnonzero(ours)].tolist()
    return sorted(found)


def point(client: HBaseClient, region: Region, server: Server | None = None) -> int | None:
    """What a server, by default the region's own, answers for one region."""
    asked = server or region.server
    assert asked is not None
    (found,) = client.read_points([(asked.name, region)])
    return found


def write(client: HBaseClient, table: str, row: bytes = b"row") -> None:
    client.put(table, [Cell(row, b"f", b"q", b"v"), Cell(row, b"g", b"q", b"v")])


def write_asynchronously(client: HBaseClient, table: str) -> None:
    """Write a row with ASYNC_WAL."""
    mutation = put(b"asynchronous", [Cell(b"asynchronous", b"f", b"q", b"v")])
    mutation.durability = pb.MutationProto.ASYNC_WAL
    client.mutate(table, [mutation])


@contextmanager
def write_waiting(cluster: MiniCluster, client: HBaseClient, table: str) -> Iterator[None]:
    """A write that waits for the sync of its log during the block, since HDFS hangs, and is answered after it."""
    hdfs = cluster.pids["hdfs"]
    writer = threading.Thread(target=write, args=(client, table, b"waiting"))
    os.kill(hdfs, signal.SIGSTOP)
    try:
        writer.start()
        writer.join(timeout=2)
        assert writer.is_alive(), "the write does not wait for its sync"
        yield
        assert writer.is_alive(), "the write has not waited for its sync"
    finally:
        os.kill(hdfs, signal.SIGCONT)
    writer.join()

"""Bytes of an open log that a cluster loses itself: they were acknowledged from the memory of one data node."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import quote

import requests

from walferry.embedded.cluster import Cluster
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient

CHUNK, SUM, HEADER = 512, 4, 7
"""bytes of a block that a checksum stands for, of the checksum, and in front of the first one (BlockMetadataHeader)"""
PATIENCE_S = 20.0


def open_block(cluster: Cluster, name: str) -> Path:
    """The replica of the block that a region server, by the name of its process, is writing its log to."""
    port = cluster.ports.region_servers[int(name.rpartition("-")[2])]
    with HBaseClient(cluster.address) as client:
        server = next(server.name for server in client.servers() if server.port == port)
    folder = f"{cluster.address.webhdfs}/webhdfs/v1/hbase/WALs/{server}"
    user = {"user.name": "hbase"}
    listed = requests.get(folder, params={"op": "LISTSTATUS", **user}, timeout=30).json()["FileStatuses"]["FileStatus"]
    logs = sorted(
        (one["modificationTime"], one["pathSuffix"]) for one in listed if not one["pathSuffix"].endswith("meta")
    )
    path = f"{folder}/{quote(logs[-1][1])}"
    found = requests.get(path, params={"op": "GET_BLOCK_LOCATIONS", **user}, timeout=30).json()["LocatedBlocks"]
    number = found["lastLocatedBlock"]["block"]["blockId"]
    (replica,) = (cluster.directory / "hdfs" / "data").rglob(f"blk_{number}")
    return replica


def cut(replica: Path, lost_bytes: int) -> int:
    """Cut a replica of a stopped data node at a checksum, so that at least so many bytes are missing; how many are."""
    (sums,) = replica.parent.glob(f"{replica.name}_*.meta")
    length = replica.stat().st_size
    kept = max(0, length - lost_bytes) // CHUNK
    with replica.open("r+b") as data:
        data.truncate(kept * CHUNK)
    with sums.open("r+b") as data:
        data.truncate(HEADER + kept * SUM)
    return length - kept * CHUNK


def grown(replica: Path, least_bytes: int) -> Path:
    """The same replica, once it has so many bytes."""
    until = time.monotonic() + PATIENCE_S
    while replica.stat().st_size < least_bytes:
        if time.monotonic() > until:
            raise WalferryError(f"{replica} does not grow to {least_bytes} bytes")
        time.sleep(0.1)
    return replica

"""Bytes of an open log that a cluster loses itself: they were acknowledged from the memory of one data node."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import requests

from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient

CHUNK, SUM, HEADER = 512, 4, 7
"""bytes of a block that a checksum stands for, of the checksum, and in front of the first one (BlockMetadataHeader)"""
PATIENCE_S = 60.0


def folder_of(cluster: MiniCluster, name: str) -> str:
    """Where a region server, by the name of its process, keeps its logs, as WebHDFS names it."""
    port = cluster.ports.region_servers[int(name.rpartition("-")[2])]
    with HBaseClient(cluster.address) as client:
        server = next(server.name for server in client.servers() if server.port == port)
    return f"{cluster.address.webhdfs}/webhdfs/v1/hbase/WALs/{server}"


def newest(cluster: MiniCluster, folder: str) -> Path:
    """The replica of the last block of a server's newest log."""
    user = {"user.name": "hbase"}
    listed = requests.get(folder, params={"op": "LISTSTATUS", **user}, timeout=30).json()["FileStatuses"]["FileStatus"]
    names = [one["pathSuffix"] for one in listed if not one["pathSuffix"].endswith("meta")]
    path = f"{folder}/{quote(max(names, key=lambda name: int(name.rpartition('.')[2])))}"
    found = requests.get(path, params={"op": "GET_BLOCK_LOCATIONS", **user}, timeout=30).json()["LocatedBlocks"]
    (replica,) = (cluster.directory / "hdfs" / "data").rglob(f"blk_{found['lastLocatedBlock']['block']['blockId']}")
    return replica


def await_bytes(cluster: MiniCluster, folder: str, least_bytes: int) -> None:
    """Wait until the newest log has so many bytes; it is rolled every few seconds."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with suppress(ValueError, KeyError, OSError):  # it has no block yet, or was archived
            if newest(cluster, folder).stat().st_size >= least_bytes:
                return
        time.sleep(0.05)
    raise WalferryError(f"no log below {folder} grows to {least_bytes} bytes")


def cut(replica: Path, lost_bytes: int) -> int:
    """Cut a replica of a stopped data node at a checksum, so that at least so many bytes are missing; how many are.

    WalferryError if its block was ended: the name node knows its length then, and gives it to nobody without the rest.
    """
    if replica.parent.name != "rbw":
        raise WalferryError(f"{replica} is not the replica of a block that is being written")
    (sums,) = replica.parent.glob(f"{replica.name}_*.meta")
    length = replica.stat().st_size
    kept = max(0, length - lost_bytes) // CHUNK
    with replica.open("r+b") as data:
        data.truncate(kept * CHUNK)
    with sums.open("r+b") as data:
        data.truncate(HEADER + kept * SUM)
    return length - kept * CHUNK

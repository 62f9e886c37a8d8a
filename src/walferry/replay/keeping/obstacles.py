"""What stands in the way of keeping and reading a source's log, each as a sentence without its full stop."""

from __future__ import annotations

from collections.abc import Iterator

from walferry.hbase.client import HBaseClient
from walferry.hbase.server_pages import some_settings
from walferry.hbase.versions import By
from walferry.storage import FileSystem

REPLICATION = "hbase.replication"
WAL_DIR = "hbase.wal.dir"


def peer_obstacles(source: HBaseClient) -> Iterator[str]:
    """Why no replication peer can keep the source's log now, if so."""
    if not source.release.has_endpoint:
        yield (
            f"region servers of HBase {source.version()} may lack the class that the run's peer names, and could not "
            "start again while it is there; those of 1.5 to 1.7, and of 2.2 and newer, have it"
        )
    if source.release.queues is not By.ZOOKEEPER:
        yield (
            "the source keeps its replication queues in a table, which walferry cannot read yet, so it cannot check "
            "whether the WALs are kept"
        )
    if source.release.replication_may_be_off and _replication_is_off(source):
        yield f"{REPLICATION} is false at the source: its region servers keep nothing for a peer"
    if source.peers_may_change() is False:
        yield (
            "replication peers cannot be changed at the source now, so none can keep its WALs; allow it "
            "(peer_modification_switch true in HBase's shell)"
        )


def _replication_is_off(source: HBaseClient) -> bool:
    return any(found.get(REPLICATION) == "false" for found in some_settings(source))


def folder_obstacle(source: HBaseClient, files: FileSystem, root: str) -> str | None:
    """Why live servers keep their logs elsewhere than below `root`, if so: it may be the folder from before
    hbase.wal.dir was set.

    HBase writes recovered.edits, WALs/, oldWALs/ and corrupt/ below hbase.wal.dir since 1.4 (HBASE-17437).
    """
    servers = source.servers()
    if any(files.status(f"{root}/WALs/{server.name}") is not None for server in servers):
        return None
    known = next(filter(None, (source.settings(server) for server in servers)), {}).get(WAL_DIR)
    where = f"its {WAL_DIR} is {known}" if known else f"if {WAL_DIR} is set in its hbase-site.xml"
    return f"{root}/WALs has no folder of a live region server; {where}: set `waldir` to it"

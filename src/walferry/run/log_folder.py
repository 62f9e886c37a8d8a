"""Whether the servers of a cluster keep their logs where its address says.

If not, the log there looks like one without edits: the folder may be from before hbase.wal.dir was set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.server_pages import some_settings
from walferry.hbase.zookeeper import Server
from walferry.ledger.rows import ClusterSide
from walferry.storage import FileSystem
from walferry.wal.copies import log_files_of

WAL_DIR = "hbase.wal.dir"
ROOT_DIR = "hbase.rootdir"


def folder_obstacle(cluster: HBaseClient) -> str | None:
    """Why live servers keep their logs elsewhere than in the cluster's address, if so.

    The name of a live server's folder has its start code, so such a folder proves that the place is right, however the
    servers' settings spell it. HBase writes recovered.edits, WALs/, oldWALs/ and corrupt/ below hbase.wal.dir since 1.4
    (HBASE-17437).
    """
    return log_obstacle(cluster, log_files_of(cluster.address), ())


def log_obstacle(cluster: HBaseClient, files: FileSystem, tables: Iterable[str]) -> str | None:
    """As `folder_obstacle`; also why one server that has regions of these tables keeps its log elsewhere, if so.

    Servers are restarted one by one when hbase.wal.dir is set. A server without regions may have no folder: HBase
    before 2.2 makes it with the server's first log.
    """
    servers = cluster.servers()
    lacking = _without_folder(cluster, files, servers)
    if servers and len(lacking) == len(servers):
        return not_here(cluster, "folder of a live region server")
    serving = {server: table for table in tables for server in _serving(cluster, table)} if lacking else {}
    # Again, since a server that has just started may have got its folder before its regions.
    for server in _without_folder(cluster, files, [server for server in lacking if server in serving]):
        return not_here(cluster, f"folder of {server.name}, which has regions of {serving[server]}", server)
    return None


def _without_folder(cluster: HBaseClient, files: FileSystem, servers: Sequence[Server]) -> list[Server]:
    try:
        there = {status.name for status in files.list(f"{cluster.address.wal_path}/WALs")} if servers else set()
    except FileNotFoundError:
        there = set()
    return [server for server in servers if server.name not in there]


def _serving(cluster: HBaseClient, table: str) -> set[Server]:
    try:
        return {region.server for region in cluster.regions(table) if region.server is not None}
    except TableNotFoundError:
        return set()


def not_here(cluster: HBaseClient, what: str, server: Server | None = None) -> str:
    """That the folder of the cluster's logs lacks something, with what to put into the address: by the settings of a
    server, or of any."""
    address = cluster.address
    pages = some_settings(cluster) if server is None else [cluster.settings(server)]
    at = f" (WebHDFS: {address.wal_webhdfs})" if address.wal_webhdfs else ""
    return f"{address.wal_path}/WALs{at} has no {what}; {_advice(address, pages[0] if pages else None)}"


def require_log_folder(cluster: HBaseClient, side: ClusterSide) -> None:
    """Raise UsageError if live servers keep their logs elsewhere than in the cluster's address."""
    if (obstacle := folder_obstacle(cluster)) is not None:
        raise UsageError(f"{side}: {obstacle}", side=side)


def _advice(address: ClusterAddress, page: Mapping[str, str] | None) -> str:
    """What to put into the address, as far as a server's settings tell it."""
    if page is None:
        return (
            f"its region servers' settings (/conf) cannot be read: if {WAL_DIR} is set in its hbase-site.xml, set "
            "`waldir` to it, and `wal_webhdfs` if that is on another HDFS than the root folder"
        )
    wal_dir = page.get(WAL_DIR)
    if not wal_dir:
        if address.waldir is not None:
            return f"its region servers have no {WAL_DIR}: leave `waldir` out"
        at = page.get(ROOT_DIR)
        return f"its region servers have no {WAL_DIR}, and their {ROOT_DIR} is {at}: check `rootdir` and `webhdfs`"
    advice = f"its {WAL_DIR} is {wal_dir}: set `waldir` to it"
    wal, root = urlsplit(wal_dir), urlsplit(page.get(ROOT_DIR, ""))
    if not wal.netloc or (wal.scheme, wal.netloc) == (root.scheme, root.netloc):
        return advice
    return f"{advice}, and `wal_webhdfs` to {_webhdfs_of(wal.netloc, page) or 'the HTTP address of its NameNode'}"


def _webhdfs_of(nameservice: str, page: Mapping[str, str]) -> str | None:
    """What `wal_webhdfs` is for a nameservice, if a server's settings name the HTTP addresses of its name nodes."""
    scheme, key = "http", "dfs.namenode.http-address"
    if page.get("dfs.http.policy") == "HTTPS_ONLY":
        scheme, key = "https", "dfs.namenode.https-address"
    names = [name.strip() for name in page.get(f"dfs.ha.namenodes.{nameservice}", "").split(",")]
    found = [page.get(f"{key}.{nameservice}.{name}") for name in names if name]
    return ";".join(f"{scheme}://{one}" for one in found) if found and all(found) else None

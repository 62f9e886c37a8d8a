"""Whether the servers of a cluster keep their logs where its address says.

If not, the log there looks like one without edits: the folder may be from before hbase.wal.dir was set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from walferry.errors import TransientError, UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.zookeeper import Server
from walferry.ledger.rows import ClusterSide
from walferry.storage import FileSystem
from walferry.wal.copies import log_files_of

WAL_DIR = "hbase.wal.dir"
ROOT_DIR = "hbase.rootdir"


def log_obstacle(cluster: HBaseClient, tables: Iterable[str], files: FileSystem | None = None) -> str | None:
    """Why live servers keep their logs elsewhere than in the cluster's address, if so: all of them, or one that has
    regions of these tables.

    The name of a live server's folder has its start code, so such a folder proves that the place is right, however the
    servers' settings spell it. HBase writes recovered.edits, WALs/, oldWALs/ and corrupt/ below hbase.wal.dir since 1.4
    (HBASE-17437). Servers are restarted one by one when that is set. A server without regions may have no folder: HBase
    before 2.2 makes it with the server's first log. `files`: the file system of the log, if it is open already.
    """
    found = _obstacle(cluster, tables, files)
    return None if found is None else found.text


def require_log_folder(
    cluster: HBaseClient,
    side: ClusterSide,
    tables: Iterable[str],
    files: FileSystem | None = None,
    *,
    planned: bool = True,
) -> None:
    """Raise TransientError, since servers may be restarting, if there is a `log_obstacle`. If no plan has found the
    address to be right: UsageError if it is wrong by what a server says."""
    if (found := _obstacle(cluster, tables, files)) is not None:
        kind = UsageError if found.wrong_place and not planned else TransientError
        raise kind(f"{side}: {found.text}", side=side)


@dataclass(frozen=True)
class _Obstacle:
    """`wrong_place`: no live server has a folder, and the settings of one name another path than the address."""

    text: str
    wrong_place: bool = False


def _obstacle(cluster: HBaseClient, tables: Iterable[str], files: FileSystem | None) -> _Obstacle | None:
    files = log_files_of(cluster.address) if files is None else files
    # A process that was killed counts as live until its session ends, also beside the one that has taken its port.
    by_age = sorted(cluster.servers(), key=lambda server: server.start_code)
    servers = list({server.address: server for server in by_age}.values())
    lacking = _without_folder(cluster, files, servers)
    if servers and len(lacking) == len(servers):
        page = cluster.settings(servers[0])
        wrong = page is not None and _names_another_path(page, cluster.address.wal_path)
        return _Obstacle(_not_here(cluster.address, "folder of a live region server", page), wrong)
    serving = {server: table for table in tables for server in _serving(cluster, table)} if lacking else {}
    # Again, since a server that has just started may have got its folder before its regions.
    for server in _without_folder(cluster, files, [server for server in lacking if server in serving]):
        what = f"folder of {server.name}, which has regions of {serving[server]}"
        return _Obstacle(_not_here(cluster.address, what, cluster.settings(server)))
    return None


def _names_another_path(page: Mapping[str, str], path: str) -> bool:
    named = page.get(WAL_DIR) or page.get(ROOT_DIR)
    return named is not None and (urlsplit(named).path.rstrip("/") or "/") != path


def _without_folder(cluster: HBaseClient, files: FileSystem, servers: Sequence[Server]) -> list[Server]:
    try:
        there = {status.name for status in files.list(f"{cluster.address.wal_path}/WALs")} if servers else set()
    except FileNotFoundError:
        there = set()
    # HBase renames a dead server's folder, perhaps before its session ends.
    return [server for server in servers if there.isdisjoint((server.name, f"{server.name}-splitting"))]


def _serving(cluster: HBaseClient, table: str) -> set[Server]:
    try:
        return {region.server for region in cluster.regions(table) if region.server is not None}
    except TableNotFoundError:
        return set()


def _not_here(address: ClusterAddress, what: str, page: Mapping[str, str] | None) -> str:
    """That the folder of the logs lacks something, with what to put into the address by a server's settings."""
    at = f" (WebHDFS: {address.wal_webhdfs})" if address.wal_webhdfs else ""
    return f"{address.wal_path}/WALs{at} has no {what}; {_advice(address, page)}"


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

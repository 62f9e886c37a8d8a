"""What stands in the way of keeping and reading a source's log, each as a sentence without its full stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.server_pages import some_settings
from walferry.hbase.versions import By
from walferry.ledger.rows import ClusterSide
from walferry.replay.rights import znodes
from walferry.wal.copies import log_files_of

REPLICATION = "hbase.replication"
WAL_DIR = "hbase.wal.dir"
ROOT_DIR = "hbase.rootdir"


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
    secured = source.address.security is not None
    if secured and source.release.queues is By.ZOOKEEPER and (hidden := _hidden(source)) is not None:
        yield hidden
        return
    if source.peers_may_change() is False:
        yield (
            "replication peers cannot be changed at the source now, so none can keep its WALs; allow it "
            "(peer_modification_switch true in HBase's shell)"
        )


def _hidden(source: HBaseClient) -> str | None:
    """Why the source's ZooKeeper does not let the user see a peer's queues, or make a peer, if so."""
    try:
        # The first peer makes the nodes of queues, for the eyes that HBase lets see its other nodes, such as `running`.
        source.zookeeper.read("running")
        source.peer_queues("none")
        peers = f"{source.address.znode}/replication/peers/none"
        if source.release.peers is By.MASTER or znodes.may_change(source.zk, peers):
            return None
        what = "peers to"
    except AccessDeniedError:
        what = "the queues of peers to"
    return (
        f"the source's ZooKeeper shows {what} superusers of HBase only; add {source.address.user} to hbase.superuser "
        "in the hbase-site.xml of all its servers, and restart them one by one"
    )


def _replication_is_off(source: HBaseClient) -> bool:
    return any(found.get(REPLICATION) == "false" for found in some_settings(source))


def folder_obstacle(cluster: HBaseClient) -> str | None:
    """Why live servers keep their logs elsewhere than in the cluster's address, if so: it may name the folder from
    before hbase.wal.dir was set, whose log would look like one without edits.

    The name of a live server's folder has its start code, so such a folder proves that the place is right, however the
    servers' settings spell it. HBase writes recovered.edits, WALs/, oldWALs/ and corrupt/ below hbase.wal.dir since 1.4
    (HBASE-17437).
    """
    address, servers = cluster.address, cluster.servers()
    files, live = log_files_of(address), f"{address.wal_path}/WALs"
    if not servers or any(files.status(f"{live}/{server.name}") is not None for server in servers):
        return None
    pages = some_settings(cluster)
    at = f" (WebHDFS: {address.wal_webhdfs})" if address.wal_webhdfs else ""
    return f"{live}{at} has no folder of a live region server; {_advice(address, pages[0] if pages else None)}"


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

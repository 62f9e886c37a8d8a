"""What stands in the way of keeping a source's log by a peer, each as a sentence without its full stop."""

from __future__ import annotations

from collections.abc import Iterator

from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.server_pages import some_settings
from walferry.hbase.versions import By
from walferry.replay.rights import znodes

REPLICATION = "hbase.replication"


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
    secured = source.address.hbase_kerberos is not None
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
    if not source.address.zookeeper_login:
        return (
            f"the source's ZooKeeper shows {what} superusers of HBase only, and `zookeeper_service: none` says not to "
            "log in there; name the first part of ZooKeeper's principals, if it knows Kerberos"
        )
    return (
        f"the source's ZooKeeper shows {what} superusers of HBase only; add {source.address.user} to hbase.superuser "
        "in the hbase-site.xml of all its servers, and restart them one by one"
    )


def _replication_is_off(source: HBaseClient) -> bool:
    return any(found.get(REPLICATION) == "false" for found in some_settings(source))

"""Protect: a disabled replication peer keeps every WAL of the source until the run is over.

The peer uses HBase's own `VerifyWALEntriesReplicationEndpoint`, which needs no cluster at the other end and ships
nothing; a disabled peer's queue still holds each WAL back from the cleaner (ReplicationLogCleaner).
"""

from __future__ import annotations

import logging
import time
from typing import Any

from walferry.errors import TransientError
from walferry.migration.context import Migration
from walferry.wal.files import Place, list_wals, parse_wal_name

log = logging.getLogger(__name__)

ENDPOINT = "org.apache.hadoop.hbase.replication.VerifyWALEntriesReplicationEndpoint"
QUEUE_SECONDS = 60.0


def protect(migration: Migration) -> dict[str, Any]:
    """Add the peer and wait until the current WAL of every group stands in its queue. Facts: peer, groups."""

    def work() -> dict[str, Any]:
        peer = migration.peer
        migration.ledger.plan_object(migration.run_id, "source", "peer", peer)
        if peer not in migration.source.peers():
            migration.source.add_peer(peer, ENDPOINT, enabled=False)
        migration.ledger.object_made(migration.run_id, "source", "peer", peer)
        groups = _await_queues(migration, peer)
        return {"peer": peer, "groups": groups}

    return migration.once("protect", work)


def _await_queues(migration: Migration, peer: str) -> list[str]:
    # Adding a peer is asynchronous on the region servers: only the queue tells that a WAL is kept.
    deadline = time.monotonic() + QUEUE_SECONDS
    while True:
        queued = queued_files(migration, peer)
        current = {
            file.group: file.name
            for file in list_wals(migration.source_files, migration.source_root)
            if file.place is Place.LIVE
        }
        missing = {group: name for group, name in current.items() if name not in queued}
        if not missing:
            return sorted(current)
        if time.monotonic() > deadline:
            raise TransientError(
                f"after {QUEUE_SECONDS:.0f} s the peer {peer} does not keep WAL {next(iter(missing.values()))} yet; "
                "is hbase.replication on at every region server?",
                peer=peer,
                missing=sorted(missing.values()),
            )
        time.sleep(0.5)


def queued_files(migration: Migration, peer: str) -> set[str]:
    """Names of the WAL files (of user tables) that the peer's queues keep."""
    queues = migration.source.peer_queues(peer)
    return {name for files in queues.values() for name in files if parse_wal_name(name) is not None}


def release(migration: Migration, *, aborted: bool = False) -> dict[str, Any]:
    """Remove every object the run made on the clusters. Only at the end of a run or at an explicit abort.

    Source tables that the run set READONLY stay so after a cutover, to keep late writers out; an abort lifts it.
    """
    removed = []
    for item in migration.ledger.objects(migration.run_id):
        if item.state == "removed":
            continue
        client = migration.source if item.cluster == "source" else migration.target
        if item.kind == "peer" and item.name in client.peers():
            client.remove_peer(item.name)
        elif item.kind == "snapshot" and item.name in {snapshot.name for snapshot in client.snapshots()}:
            client.delete_snapshot(item.name)
        elif item.kind == "read-only table":
            if not aborted:
                continue
            if client.table_exists(item.name):
                client.set_read_only(item.name, False)
        migration.ledger.object_removed(migration.run_id, item.cluster, item.kind, item.name)
        removed.append(f"{item.cluster} {item.kind} {item.name}")
        log.info("removed %s %s at the %s", item.kind, item.name, item.cluster)
    return {"removed": removed}

"""Protect: a disabled replication peer keeps every WAL of the source until the run is over.

The peer uses HBase's own `VerifyWALEntriesReplicationEndpoint`, which needs no cluster at the other end and ships
nothing; a disabled peer's queue still holds each WAL back from the cleaner (ReplicationLogCleaner).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from typing import Any

from walferry.errors import GateShutError, TransientError, UsageError, WalferryError
from walferry.hbase.peers import PINNING_ENDPOINT
from walferry.ledger.rows import ClusterObject, ClusterSide, ObjectKind
from walferry.load import unhindered_s
from walferry.replay.durability import restore
from walferry.run.heartbeat import alive
from walferry.run.run import Run, RunEndedError
from walferry.run.state import label
from walferry.wal.files import Place, list_live, list_wals

log = logging.getLogger(__name__)

QUEUE_SECONDS = 60.0
LEASE_SECONDS = 90.0
"""how long the end of a run waits for a table's lease: longer than ZooKeeper keeps a killed process's"""
KEEP_HOURS = float(os.environ.get("WALFERRY_KEEP_HOURS", 24))
"""how long a run keeps WALs that it has applied: for windows to be replayed again, and to explain differences"""
FULL_QUEUE = 2_500
"""names in a peer's queue of one server, which may have twice as many before the peer is removed. A name has up to 110
bytes, and ZooKeeper sends 1 MB in one answer (`jute.maxbuffer`)."""


def protect(run: Run) -> dict[str, Any]:
    """Add the peer and wait until the current WAL of every group is in its queue. Facts: peer, groups."""

    def work() -> dict[str, Any]:
        return {"peer": run.peer, "groups": _add(run, run.peer)}

    return run.once("protect", work)


def _add(run: Run, peer: str) -> list[str]:
    """Add a peer, unless an earlier attempt did. Returns the groups whose logs it keeps from now on."""
    there = peer in run.source.peers()
    plan_own(run, "source", "peer", peer, there=there)
    if not there:
        run.source.add_peer(peer, PINNING_ENDPOINT, enabled=False)
    made(run, "source", "peer", peer)
    return _await_queues(run, peer)


def renew(run: Run, keep_hours: float = KEEP_HOURS) -> str | None:
    """Release the source's applied WALs, from time to time, for a run that goes on for long.

    A disabled peer's queue only grows. So after `keep_hours`, or once a server has FULL_QUEUE names in it, a second
    peer begins to keep the log. After as long again, once it alone keeps every file that is not applied yet, the first
    is removed: a file is kept for one to two times `keep_hours`. Returns the name of the removed peer, or None.
    Idempotent.
    """
    peers = _own_peers(run)
    if not peers:
        return None  # an abort has removed them
    older, newest = peers[0], peers[-1]
    if newest.state != "made":
        _add(run, newest.name)  # that was interrupted
        return None
    aged = time.time() * 1000 - newest.planned_ms >= keep_hours * 3_600_000
    queue = _longest_queue(run, newest.name)
    if not aged and queue < FULL_QUEUE:
        return None
    if newest is older:
        every = [o for o in run.ledger.objects.all() if o.kind == "peer"]
        # No first peer of a run ends like this, so the name is no other run's.
        _add(run, f"{run.peer}_R{len(every)}")
        return None
    name = newest.name
    fences = run.fences()
    listed = {file.name for file in list_wals(run.source_files, run.wal_root) if fences.starts_by(file)}
    left = listed - queued_files(run, name)
    if waiting := left - run.ledger.log.applied(left):
        if queue > 2 * FULL_QUEUE:
            log.warning(
                "the queues of peers %s and %s grow, since %d WALs are not applied yet, %s among them",
                older.name, name, len(waiting), min(waiting),
            )  # fmt: skip
        return None
    if older.name in run.source.peers():
        run.source.remove_peer(older.name)
    run.ledger.objects.removed("source", "peer", older.name)
    log.info("peer %s replaced %s, which kept only what is applied", name, older.name)
    return older.name


def _longest_queue(run: Run, peer: str) -> int:
    return max(map(len, run.source.peer_queues(peer).values()), default=0)


def _own_peers(run: Run) -> list[ClusterObject]:
    """The peers that the run has, or is about to add, oldest first."""
    objects = run.ledger.objects.all()
    return [o for o in objects if o.kind == "peer" and o.state != "removed"]


def plan_own(run: Run, cluster: ClusterSide, kind: ObjectKind, name: str, *, there: bool) -> None:
    """Record that the run is about to create an object. If it exists (`there`), it must be of an earlier attempt.

    Raises ForeignObjectError otherwise: a run with the same id in another ledger may have left it or use it.
    """
    planned = {(o.cluster, o.kind, o.name) for o in run.ledger.objects.all()}
    if there and (cluster, kind, name) not in planned:
        raise ForeignObjectError(
            f"{kind} {name} already exists at the {cluster}, not from this run: it may be of a run in another ledger. "
            f"Remove it if nobody uses it, or give this migration another name",
            cluster=cluster, kind=kind, name=name,
        )  # fmt: skip
    run.ledger.objects.plan(cluster, kind, name)


def made(run: Run, cluster: ClusterSide, kind: ObjectKind, name: str) -> None:
    """Record that an object was created.

    If the run was ended meanwhile, removes what the run has on the clusters and raises RunEndedError: the abort may
    have looked just before the object existed.
    """
    run.ledger.objects.made(cluster, kind, name)
    record = run.ledger.record
    if record.state != "running":
        release(run, aborted=record.state == "aborted")
        raise RunEndedError(f"run {run.run_id} was {record.state} while {kind} {name} was created", run=run.run_id)


class ForeignObjectError(UsageError):
    """An object that this run is about to create already exists; facts `cluster`, `kind`, `name`."""


def _await_queues(run: Run, peer: str) -> list[str]:
    # Adding a peer is asynchronous on the region servers: only the queue shows that a WAL is kept.
    deadline = unhindered_s() + QUEUE_SECONDS
    while True:
        queued = queued_files(run, peer)
        current = {
            file.group: file.name for file in list_live(run.source_files, run.wal_root) if file.place is Place.LIVE
        }
        missing = {group: name for group, name in current.items() if name not in queued}
        if not missing:
            return sorted(current)
        if unhindered_s() > deadline:
            raise TransientError(
                f"after {QUEUE_SECONDS:.0f} s the peer {peer} does not keep WAL {next(iter(missing.values()))} yet; "
                "is hbase.replication on at every region server?",
                peer=peer,
                missing=sorted(missing.values()),
            )
        time.sleep(0.5)


class PeerChangedError(WalferryError):
    """Somebody removed or enabled the run's peer, so that nothing keeps the WALs; fact `peer`."""


def require_peer(run: Run) -> None:
    """Raise PeerChangedError unless the run's peers are disabled, and the newest of them exists. Check this in each
    round: an enabled peer releases WALs at once, and without a peer the cleaner deletes them."""
    made = [o.name for o in _own_peers(run) if o.state == "made"]
    if not made:  # an abort has removed it in the meantime
        state = run.ledger.record.state
        raise PeerChangedError(f"run {run.run_id} is {state} and has no peer: nothing keeps its WALs", peer="")
    peers = run.source.peers()
    for peer in made:
        enabled, _ = peers.get(peer, (None, ""))
        # An older one may just have been removed, because the newest keeps all that is not applied (`renew`).
        if enabled or (enabled is None and peer == made[-1]):
            what = "enabled" if enabled else "removed"
            raise PeerChangedError(
                f"the replication peer {peer} was {what} at the source: nothing keeps its WALs now. If it happened "
                f"just now, disable it (disable_peer '{peer}') and run again; otherwise abort and start over",
                peer=peer,
            )


def queued_files(run: Run, *peers: str) -> set[str]:
    """Names of the WAL files in the queues of these peers, by default of all the run's."""
    queues = [run.source.peer_queues(peer) for peer in peers or [o.name for o in _own_peers(run)]]
    return {name for queue in queues for names in queue.values() for name in names}


def not_applied(run: Run, queued: Collection[str]) -> set[str]:
    """Those of the queued files that are not applied for every table of the run.

    A queue names all files that were ever put into it: those that were applied once are not looked up again.
    """
    new = set(queued) - run.source_log.applied
    applied = run.ledger.log.applied(new)
    run.source_log.applied = frozenset((run.source_log.applied & set(queued)) | applied)
    return new - applied


def release(run: Run, *, aborted: bool = False) -> dict[str, Any]:
    """Remove every object that the run created on the clusters. Only at the end of a run or at an explicit abort.

    Source tables that the run set READONLY stay so after a cutover, to keep late writers out; an abort lifts it. The
    DURABILITY of target tables is restored (`replay.durability`). An object that is planned and does not exist stays
    planned while a process works on a phase of the run, which may still create it and then removes it (`made`); if that
    process is killed in between, repeat the abort. Facts: removed, left.
    """
    removed, left = [], []
    underway = _phases_at_work(run)
    for item in run.ledger.objects.all():
        if item.state == "removed" or item.kind in ("table", "durability"):
            continue
        client = run.source if item.cluster == "source" else run.target
        there = True
        if item.kind == "peer":
            there = item.name in client.peers() and client.remove_peer(item.name)
        elif item.kind == "snapshot":
            there = item.name in {snapshot.name for snapshot in client.snapshots()}
            if there:
                client.delete_snapshot(item.name)
        elif item.kind == "read-only table":
            if not aborted:
                continue
            if client.table_exists(item.name):
                client.set_read_only(item.name, False)
        if not there and item.state == "planned" and underway:
            left.append(f"{item.cluster} {item.kind} {item.name}")
            log.warning(
                "%s %s is about to be created at the %s: the process that works on %s then removes it; if it is killed "
                "first, abort again", item.kind, item.name, item.cluster, ", ".join(underway),
            )  # fmt: skip
            continue
        run.ledger.objects.removed(item.cluster, item.kind, item.name)
        removed.append(f"{item.cluster} {item.kind} {item.name}")
        log.info("removed %s %s at the %s", item.kind, item.name, item.cluster)
    # Last, since it may wait for a lease.
    restored, others = restore(run, at_work=bool(underway), wait_seconds=LEASE_SECONDS)
    return {"removed": removed + restored, "left": left + others}


def _phases_at_work(run: Run) -> list[str]:
    """The phases on which a live process works. One that is only recorded as running may have been killed."""
    signs = alive(run.ledger)
    begun = [label(phase) for phase in run.ledger.phases.all() if phase.state == "running" and phase.phase != "release"]
    return [name for name in begun if name in signs]


def finish(run: Run, outcome: str) -> None:
    """Remove what the run created on the clusters, except the target tables, and end it as done.

    Raises GateShutError while edits are in quarantine: their WALs would be lost with the peer. An abort does not check.
    """
    if run.ledger.quarantine.items("held") or run.ledger.quarantine.holds():
        reason = f"edits wait in quarantine: `walferry quarantine list {run.run_id}`"
        raise GateShutError(f"the gate is shut: {reason}", reasons=[reason])
    run.once("release", lambda: release(run))
    run.ledger.end("done", run.actor, outcome)

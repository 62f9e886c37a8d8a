"""Protection by a disabled replication peer, whose queue keeps every WAL of the source until the run is over.

The peer uses HBase's own `VerifyWALEntriesReplicationEndpoint`, which needs no cluster at the other end and ships
nothing; a disabled peer's queue still holds each WAL back from the cleaner (ReplicationLogCleaner).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.errors import TransientError, WalferryError
from walferry.hbase.peers import PINNING_ENDPOINT
from walferry.ledger.rows import ClusterObject
from walferry.replay.keeping.objects import made, plan_own
from walferry.replay.keeping.retention import retention_now
from walferry.request_meter import unhindered_s
from walferry.run.progress.exposure import Exposure, note_exposure
from walferry.run.run import LogRun
from walferry.wal.files import Place, WalFile, list_live, list_wals

log = logging.getLogger(__name__)

QUEUE_SECONDS = 60.0
FULL_QUEUE = 2_500
"""once a peer's queue on one server has this many names, a second peer takes over; the queue may hold twice as many
before the first peer is removed. A name has up to 110 bytes, and ZooKeeper sends 1 MB in one answer
(`jute.maxbuffer`)."""
NAMES_EVERY_LOG = True
"""whether `kept` names every log that holds an edit, so that the archive need not be listed for other logs"""


def begin(run: LogRun) -> dict[str, Any]:
    """Add the peer and wait until the current WAL of every group is in its queue. Facts: peer, groups."""
    return {"peer": run.peer, "groups": _add(run, run.peer)}


def _add(run: LogRun, peer: str) -> list[str]:
    """Add a peer, unless an earlier attempt did. Returns the WAL groups whose logs the peer keeps from now on."""
    there = peer in run.source.peers()
    plan_own(run, "source", "peer", peer, there=there)
    if not there:
        run.source.add_peer(peer, PINNING_ENDPOINT, enabled=False)
    made(run, "source", "peer", peer)
    return _await_queues(run, peer)


def let_go(run: LogRun, keep_hours: float | None = None) -> str | None:
    """Release the source's applied WALs. Call this from time to time, since a run may last for weeks.

    A disabled peer's queue only grows. So after `keep_hours` (default: the run's setting), or once the queue has
    FULL_QUEUE names on a server, this adds a second peer. After the same time again, once the second peer keeps every
    file that is not applied yet, the first one is removed. So a file is kept for one to two times `keep_hours`. Returns
    the name of the removed peer, or None. Idempotent.
    """
    keep_hours = run.log_times.keep_hours if keep_hours is None else keep_hours
    peers = _own_peers(run)
    if not peers:
        return None  # an abort has removed the peers
    older, newest = peers[0], peers[-1]
    if newest.state != "made":
        _add(run, newest.name)  # an earlier attempt was interrupted
        return None
    aged = time.time() * 1000 - newest.planned_ms >= keep_hours * 3_600_000
    queue = _longest_queue(run, newest.name)
    if not aged and queue < FULL_QUEUE:
        return None
    if newest is older:
        every = [o for o in run.ledger.objects.all() if o.kind == "peer"]
        # No run's first peer has this suffix, so the name cannot clash with another run's.
        _add(run, f"{run.peer}_R{len(every)}")
        return None
    name = newest.name
    fences = run.fences()
    listed = {file.name for file in list_wals(run.wal_files, run.wal_root) if fences.starts_by(file)}
    left = listed - kept(run, name)
    if waiting := left - run.ledger.log.applied(left):
        if queue > 2 * FULL_QUEUE:
            log.warning(
                "the queues of peers %s and %s are growing: %s not applied yet, for example %s",
                older.name, name, amount(len(waiting), "WAL is", "WALs are"), min(waiting),
            )  # fmt: skip
        return None
    if older.name in run.source.peers():
        run.source.remove_peer(older.name)
    run.ledger.objects.removed("source", "peer", older.name)
    log.info("peer %s replaced %s, which kept only applied WALs", name, older.name)
    return older.name


def _longest_queue(run: LogRun, peer: str) -> int:
    return max(map(len, run.source.peer_queues(peer).values()), default=0)


def _own_peers(run: LogRun) -> list[ClusterObject]:
    """The peers that the run has, or is about to add, oldest first."""
    objects = run.ledger.objects.all()
    return [o for o in objects if o.kind == "peer" and o.state != "removed"]


def _await_queues(run: LogRun, peer: str) -> list[str]:
    # Adding a peer is asynchronous on the region servers: only the queue shows that a WAL is kept.
    deadline = unhindered_s() + QUEUE_SECONDS
    while True:
        queued = kept(run, peer)
        current = {file.group: file.name for file in list_live(run.wal_files, run.wal_root) if file.place is Place.LIVE}
        missing = {group: name for group, name in current.items() if name not in queued}
        if not missing:
            return sorted(current)
        if unhindered_s() > deadline:
            raise TransientError(
                f"after {QUEUE_SECONDS:.0f} s the peer {peer} does not keep WAL {next(iter(missing.values()))} yet. "
                "Enable hbase.replication on every region server, or use `protect: stage`",
                peer=peer,
                missing=sorted(missing.values()),
            )
        time.sleep(0.5)


class PeerChangedError(WalferryError):
    """Somebody removed or enabled the run's peer, so that nothing keeps the WALs; fact `peer`."""


def require(run: LogRun) -> None:
    """Raise PeerChangedError unless the run's peers are disabled and the newest one exists. Check this in each round:
    an enabled peer releases WALs at once, and without a peer the cleaner deletes them."""
    made = [o.name for o in _own_peers(run) if o.state == "made"]
    if not made:  # an abort has removed the peer
        state = run.ledger.record.state
        raise PeerChangedError(f"run {run.run_id} is {state} and has no peer: nothing keeps its WALs", peer="")
    peers = run.source.peers()
    for peer in made:
        enabled, _ = peers.get(peer, (None, ""))
        # `let_go` may just have removed an older peer, because the newest keeps every file that is not applied.
        if enabled or (enabled is None and peer == made[-1]):
            what = "enabled" if enabled else "removed"
            raise PeerChangedError(
                f"the replication peer {peer} was {what} at the source: nothing keeps its WALs now. If it happened "
                f"just now, disable it (disable_peer '{peer}') and run again; otherwise abort and start over",
                peer=peer,
            )


def kept(run: LogRun, *peers: str) -> set[str]:
    """Names of the WAL files in the queues of these peers; by default, of all the run's peers."""
    queues = [run.source.peer_queues(peer) for peer in peers or [o.name for o in _own_peers(run)]]
    return {name for queue in queues for names in queue.values() for name in names}


def why_missing(run: LogRun, name: str) -> str:
    """What probably happened to a file that is in the queue."""
    return f"HBase keeps it for the peer {run.peer}, so somebody removed it: the NameNode's audit log shows who"


def tend(run: LogRun) -> None:
    """Nothing to do: HBase maintains the peer's queue."""


def take_stock(run: LogRun, listed: Sequence[WalFile]) -> None:
    """Note how much of the source's disk is used by WALs that only the run's peers still keep: WALs past their time to
    live and in no other peer's queue. `listed`: a listing of the whole archive."""
    retention = retention_now(run)
    own = [item.name for item in _own_peers(run)]
    mine = kept(run)
    others = {name for peer in run.source.peers() if peer not in own for name in kept(run, peer)}
    deadline = now_ms() - retention.ttl_seconds * 1000
    held = [
        file for file in listed
        if file.place is Place.ARCHIVED and file.modified_ms < deadline and file.name in mine - others
    ]  # fmt: skip
    note_exposure(
        run.ledger,
        Exposure(
            f"peer {own[-1] if own else run.peer}", len(held), sum(file.length for file in held), True, None, None,
            retention.ttl_seconds, retention.assumed, now_ms(),
        ),
    )  # fmt: skip

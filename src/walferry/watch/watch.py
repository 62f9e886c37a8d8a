"""Watch a source without a migration: what `hbase_wal_watch` records and announces, and metrics of the runs on it.

The watch records what it sees in a run of its own, whose spec names the cluster and no tables. The ledger is its only
memory: after a kill, the next process compares the listing with the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from walferry.errors import GapError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.ledger import Ledger, RecordedFile, RunRecord
from walferry.ledger.rows import RunKind
from walferry.replay.log.cut import as_listed, as_seen
from walferry.run.fences import fences_of
from walferry.run.progress.backlog import edits_per_second, unapplied
from walferry.run.progress.exposure import exposure_of
from walferry.run.progress.lag import LagSplit, lag_by_group, lag_of, lag_split
from walferry.run.progress.moments import moments_of
from walferry.run.progress.requests import requests_of
from walferry.run.recorded_spec import options_of, source_of, spec_of
from walferry.run.spec import Cluster
from walferry.security import OPEN, Kerberos, Security, Tls
from walferry.storage import FileSystem
from walferry.wal.copies import log_files_of
from walferry.wal.files import Place, WalFile
from walferry.wal.open import Until, bytes_held, open_wal
from walferry.watch.listing import Changes, KnownWal, compare, list_wals
from walferry.watch.listing import Listing as Listing  # for the sensor, which knows this room only

log = logging.getLogger(__name__)

WATCHER = "hbase_wal_watch"
"""owner of the runs in which the watch records what it sees"""
MOST_FILES = 50_000
"""known to one run of the watch; the next run begins with the files listed then"""
SMALL_BYTES = 1024
"""A longer log certainly holds edits: header and trailer alone are shorter."""


# ------------------------------------------------------------------ the watch


def watch_run(ledger: Ledger, connection: str, cluster: Cluster) -> RunRecord:
    """The run in which the watch of a connection records what it sees; a new one when the connection has changed."""
    spec = {"source": cluster.model_dump(), "tables": []}
    name = f"watch_{connection}"
    for run in ledger.runs():
        if run.name == name and run.state == "running":
            known = len(ledger.of(run.run_id).log.files())
            same = source_of(run) == cluster
            if same and known < MOST_FILES:
                return run
            why = f"{known} files are known" if same else "another cluster"
            ledger.of(run.run_id).end("done", WATCHER, f"superseded: {why}")
    return ledger.open_run(name, WATCHER, spec, WATCHER, "watch")


def known_wals(ledger: Ledger, run_id: str) -> dict[str, KnownWal]:
    """The files that the watch has seen, except missing ones."""
    return {
        file.name: KnownWal(file.path, file.length, file.sealed_ms is not None)
        for file in ledger.of(run_id).log.files()
        if file.state != "missing"
    }


def list_now(cluster: Cluster) -> Listing:
    """A fresh listing of the cluster's WAL files. Raises TransientError when the NameNode does not answer."""
    address = cluster.address().of_log
    assert address.webhdfs is not None
    return asyncio.run(list_wals(address.webhdfs, address.user, address.wal_path, address.security))


async def changes_since(
    known: Mapping[str, KnownWal],
    webhdfs: str,
    user: str,
    root: str,
    security: Mapping[str, Any] | None = None,
) -> Changes:
    """What changed between `known` and a fresh listing; blocks no thread. Raises the errors of `listing.list_wals`.

    `security`: the fields of a `Security`, also as JSON has them.
    """
    who = OPEN if security is None else _security_of(**security)
    return await asyncio.to_thread(compare, known, await list_wals(webhdfs, user, root, who))


def _security_of(kerberos: Mapping[str, Any] | None, tls: Mapping[str, Any] | None) -> Security:
    """JSON has lists for tuples."""
    identity = None
    if kerberos is not None:
        identity = Kerberos(**{**kerberos, "realms": tuple((end, realm) for end, realm in kerberos["realms"])})
    return Security(identity, None if tls is None else Tls(**tls))


def look_into_open(ledger: Ledger, run_id: str, listing: Listing, cluster: Cluster) -> Listing:
    """The listing, with a lower bound for the length of open logs, which are listed with length 0 whatever they hold.

    Only logs not yet known to hold an entry are opened. If such a log vanishes later, it is not mistaken for an empty
    one.
    """
    known = known_wals(ledger, run_id)
    newest = {file.group: file for file in sorted(listing.files.values(), key=lambda file: file.number)}
    files, root = log_files_of(cluster.address()), cluster.address().wal_path
    looked = {
        file.name: replace(file, length=bytes_held(files, root, file))
        for file in newest.values()
        if file.place is Place.LIVE and not file.length and not (file.name in known and known[file.name].length)
    }
    return replace(listing, files=listing.files | looked)


def record(ledger: Ledger, run_id: str, listing: Listing) -> Changes:
    """Record a listing in the watch's run. Returns what changed."""
    changes = compare(known_wals(ledger, run_id), listing)
    closed = listing.sealed()
    changed = {*changes.new, *changes.sealed, *changes.moved, *changes.grown}
    files = [listing.files[name] for name in sorted(changed)]
    if files:
        ledger.of(run_id).log.see_files([as_seen(file, file.name in closed) for file in files])
    for name in changes.gone:
        ledger.of(run_id).log.mark_missing(name)
    return changes


@dataclass(frozen=True)
class News:
    """What the watch has not announced yet: numbers of sealed files, of those with edits, and of new files."""

    through_ms: int
    """everything recorded up to this moment is included"""
    sealed: int
    with_edits: int
    new: int
    bytes: int


def news(ledger: Ledger, run: RunRecord, cluster: Cluster, since_ms: int) -> News:
    """What was recorded after `since_ms`. Logs that were rolled without an edit are counted separately."""
    files = ledger.of(run.run_id).log.files()
    sealed = [file for file in files if (file.sealed_ms or 0) > since_ms and file.state != "missing"]
    through = max([since_ms, *(file.first_seen_ms for file in files), *(file.sealed_ms or 0 for file in files)])
    root = cluster.address().wal_path
    with closing(log_files_of(cluster.address())) as logs:
        with_edits = sum(file.length > SMALL_BYTES or _holds_edits(logs, root, as_listed(file)) for file in sealed)
    return News(
        through_ms=through,
        sealed=len(sealed),
        with_edits=with_edits,
        new=sum(file.first_seen_ms > since_ms for file in files),
        bytes=sum(file.length for file in sealed),
    )


def _holds_edits(files: FileSystem, root: str, file: WalFile) -> bool:
    """Whether a small log holds edits of user tables, not only markers of flushes and openings, which an idle cluster
    writes too. A log that cannot be read counts as holding edits."""
    try:
        for batch in open_wal(files, root, file, Until.NOW):
            user = [not table.startswith(b"hbase:") for table in batch.tables]
            if any(user[table] for table in batch.table[batch.holds_data]):
                return True
    except GapError:
        return False  # it no longer exists
    except WalferryError:
        return True
    return False


# ------------------------------------------------------------------ facts of the runs on a source


@dataclass(frozen=True)
class RunFacts:
    """Measurements of an unfinished run; None if the run has no such number."""

    run_id: str
    lag_seconds: float | None
    lag_split: LagSplit | None
    lag_by_server: Sequence[LagSplit]
    backlog_bytes: int
    edits_per_second: float
    requests_per_second: Mapping[str, float]
    """to the source, by service"""
    gaps: int
    quarantine: int
    time_to_loss_seconds: float | None
    log_kept_bytes: int | None
    """of WALs that exist only for the run: at the source, or as copies"""
    max_lag: int
    lost: tuple[str, ...]
    """files that no longer exist at the source and were not applied"""
    held: tuple[int, ...]
    """ids of the items in quarantine"""
    kind: RunKind = "migration"
    loss_seconds: float | None = None
    """of a run of kind `keep`: how much of the changes a loss of the source would cost now"""


_NOT_FOLLOWING: tuple[RunKind, ...] = ("watch", "pair", "replication", "setup", "receive")
"""kinds of runs that read no log"""


def runs_on(ledger: Ledger, cluster: Cluster) -> list[RunRecord]:
    """Unfinished runs that read the log of this cluster, known by its root folder or its ZooKeeper node."""
    return [
        run
        for run in ledger.runs()
        if run.state == "running" and run.kind not in _NOT_FOLLOWING and _same_cluster(source_of(run), cluster)
    ]


def _same_cluster(source: Cluster | None, cluster: Cluster) -> bool:
    return source is not None and (
        (source.zookeeper, source.znode) == (cluster.zookeeper, cluster.znode)
        or (source.webhdfs, source.rootdir) == (cluster.webhdfs, cluster.rootdir)
    )


def run_facts(
    ledger: Ledger, run: RunRecord, listing: Listing, *, watch: RunRecord | None = None, kept: bool, cleaner_ttl: float
) -> RunFacts:
    """Measure a run from the ledger, what the watch recorded in its run `watch`, and a fresh listing.

    `kept`: its disabled peer is at the source, so that the cleaner deletes nothing. Otherwise an archived file may be
    deleted `cleaner_ttl` seconds after it was last written (hbase.master.logcleaner.ttl, TimeToLiveLogCleaner).
    """
    now, mine = time.time(), ledger.of(run.run_id)
    waiting = _waiting(ledger, run, watch, listing)
    if run.kind == "keep":  # it applies nothing, and deletes copies that no moment needs
        waiting -= mine.staged.known(waiting).keys()
    backlog = [listing.files[name] for name in sorted(waiting & listing.files.keys())]
    deadlines = [
        listing.modified_ms[file.name] / 1000 + cleaner_ttl for file in backlog if file.place is Place.ARCHIVED
    ]
    oldest = _oldest_waiting_ms(run, backlog, listing) if run.kind == "drain" else None
    held = tuple(item.quarantine_id for item in mine.quarantine.items("held"))
    copies = {file.name for file in mine.staged.there()}
    lost = tuple(sorted(waiting - listing.files.keys() - copies))
    exposure = exposure_of(mine)
    loss = max(0.0, min(deadlines) - now) if deadlines and not kept else None
    if exposure is not None and not exposure.pinned:
        loss = exposure.seconds_to_loss(int(now * 1000))
    lag = lag_of(mine, oldest)
    groups = lag_by_group(mine, lag)
    return RunFacts(
        run_id=run.run_id,
        lag_seconds=lag.seconds,
        lag_split=lag_split(lag, groups),
        lag_by_server=groups,
        backlog_bytes=sum(file.length for file in backlog),
        edits_per_second=edits_per_second(mine),
        requests_per_second={service: rate.per_second for service, rate in requests_of(mine).get("source", {}).items()},
        gaps=len(lost),
        quarantine=len(held),
        time_to_loss_seconds=loss,
        log_kept_bytes=None if exposure is None else exposure.kept_bytes,
        max_lag=options_of(run).max_lag,
        lost=lost,
        held=held,
        kind=run.kind,
        loss_seconds=moments_of(mine).loss_seconds if run.kind == "keep" else None,
    )


def _oldest_waiting_ms(run: RunRecord, backlog: Collection[WalFile], listing: Listing) -> int:
    """When the oldest file with waiting sealed edits was last written; the present moment if none wait."""
    address, closed = spec_of(run).source.address(), listing.sealed()
    with closing(log_files_of(address)) as logs:
        for file in sorted((f for f in backlog if f.name in closed), key=lambda f: listing.modified_ms[f.name]):
            if file.length > SMALL_BYTES or _holds_edits(logs, address.wal_path, file):
                return listing.modified_ms[file.name]
    return time.time_ns() // 1_000_000


def _waiting(ledger: Ledger, run: RunRecord, watch: RunRecord | None, listing: Listing) -> set[str]:
    """Names of files between the fences that the run has not applied: seen by it or by the watch, or listed now."""
    mine = ledger.of(run.run_id)
    start = fences_of(mine).start
    if not start:
        return set()
    # A group that the fence does not name started after it or ended long before it; only the former is the run's.
    seen = ledger.of(watch.run_id).log.files() if watch else []
    known = [*mine.log.files(), *(file for file in seen if file.group in start or file.first_seen_ms > run.created_ms)]
    listed = [
        RecordedFile(f.name, f.group, f.server, f.number, f.path, f.length, "open", 0, None)
        for f in listing.files.values()
    ]
    # HBase deletes a dead server's last log, instead of archiving it, if it never held a byte.
    last: dict[str, int] = {}
    for file in (*known, *listed):
        last[file.group] = max(last.get(file.group, 0), file.number)
    alive = {file.server for file in listing.files.values() if file.place is Place.LIVE}
    held = {file.name for file in known if file.state != "open" or file.length}
    empty = {f.name for f in known if f.name not in held and f.number == last[f.group] and f.server not in alive}
    waiting = {file.name for file in unapplied(mine, [*known, *listed])}
    return waiting & listing.files.keys() | waiting - empty


def peers_that_keep(client: HBaseClient) -> set[str]:
    """Ids of the disabled replication peers, each of which keeps every WAL from the cleaner."""
    return {peer for peer, (enabled, _) in client.peers().items() if not enabled}


# ------------------------------------------------------------------ what was announced already


def announced_ms(ledger: Ledger, watch: RunRecord) -> int:
    """The moment up to which nothing is left to announce: the logs sealed until then held no edit."""
    return int((ledger.of(watch.run_id).notes.get("nothing to announce") or {"through_ms": 0})["through_ms"])


def nothing_to_announce(ledger: Ledger, watch: RunRecord, through_ms: int) -> None:
    """Record that the logs sealed up to this moment held no edit, so that they are not read again."""
    if through_ms > announced_ms(ledger, watch):
        ledger.of(watch.run_id).notes.keep("nothing to announce", {"through_ms": through_ms})


def unannounced(ledger: Ledger, watch: RunRecord, kind: str, run_id: str, keys: Collection[str]) -> set[str]:
    """The keys that have not been announced."""
    announced = ledger.of(watch.run_id).notes.get(f"told {kind}", run_id) or {"keys": []}
    return set(keys) - set(announced["keys"])


def mark_announced(ledger: Ledger, watch: RunRecord, kind: str, run_id: str, keys: Collection[str]) -> None:
    """Record the announced keys. A key is announced once, and again only if it disappears and returns."""
    before = ledger.of(watch.run_id).notes.get(f"told {kind}", run_id) or {"keys": []}
    if sorted(keys) != before["keys"]:
        ledger.of(watch.run_id).notes.keep(f"told {kind}", {"keys": sorted(keys)}, run_id)

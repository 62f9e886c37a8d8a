"""Whether every required file of the log exists (R1).

HBase adds a log to every peer's queue before the log's first edit (ReplicationSourceManager.preLogRoll, called after
the new writer is created and before it is used), and deletes no log that is in a queue. If a server dies right after
its start, HBase archives its log like any other, even without a byte (WALSplitter: "nothing to split"). No queue has
this log, so the cleaner deletes it after its TTL. So HBase may delete a log that held nothing:

- an empty log in the archive that is in no queue is recorded as applied at the cut that sees it, because it may be
  deleted before it is applied;
- a log that is in no queue and was found empty while open may be deleted together with its server. Only a peer's queue
  proves that it stayed empty (`NAMES_EVERY_LOG`): a log without a copy (`protect: stage`) may have received edits after
  it was found empty.

Any other missing file was removed by somebody, or moved aside by HBase: its contents are unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence

from walferry import ledger
from walferry.errors import GapError, TransientError
from walferry.ledger import WalRange
from walferry.replay.keeping.protect import not_applied, way_of
from walferry.replay.log.cut import as_listed, as_seen, newest
from walferry.run.cluster_ids import on_source
from walferry.run.facts import opened_ms
from walferry.run.run import Run
from walferry.wal.fences import InGroup
from walferry.wal.files import Place, WalFile, find_wal, parse_wal_name
from walferry.wal.open import bytes_held

log = logging.getLogger(__name__)

QUEUE_LOOKS, LOOK_SECONDS = 30, 1.0
"""number of looks at the queues, and seconds between two looks. HBase creates a log, adds it to the queues, and then
uses it; the first log of a new server is added only once the server's replication has started."""


def check_complete(run: Run, listed: Sequence[WalFile], *, to_end_fence: bool = False) -> None:
    """Raise GapError when a required file is missing from a listing of the source's files (R1).

    Two lists say which files are required: the files that the ledger has seen but not applied, and the files that are
    kept (`protect`), in the peer's queue or in the folder with staged copies. A missing file that neither list knows
    shows in the sequence numbers (`numbering`). `to_end_fence`: files past the end fence are not required. Raises
    PeerChangedError or StageLostError when nothing keeps the WALs.
    """
    way = way_of(run)
    way.require(run)
    present = {file.name for file in listed}
    fences = run.fences()
    inside = fences.holds if to_end_fence else fences.starts_by
    queued = way.kept(run)
    if way.NAMES_EVERY_LOG and not to_end_fence:  # logs that are open then are past the end fence
        _require_queued(run, listed, queued)
    unnamed = [file for file in listed if file.name not in queued and file.place is Place.ARCHIVED and inside(file)]
    applied = run.ledger.log.applied(file.name for file in unnamed)
    _account_for_empty(run, [file for file in unnamed if file.name not in applied and _holds_nothing(run, file)])
    known = {file.name: file for file in run.ledger.log.unapplied()}
    places: dict[str, InGroup] = dict(known)
    places |= {name: place for name in not_applied(run, queued) if (place := parse_wal_name(name)) is not None}
    expected = {name for name, place in places.items() if inside(place)}
    # The queue may be newer than the listing: list again before reporting a gap.
    missing = expected - present
    if missing:
        present |= {file.name for file in run.wal_listing.with_archive(run.wal_listing.live(), missing)}
        missing = expected - present
        empty = {name for name in missing - queued if way.NAMES_EVERY_LOG and _was_empty(run, known[name])}
        _account_for_empty(run, [as_listed(known[name]) for name in empty])
        missing -= empty
    if missing:
        for name in sorted(missing & known.keys()):
            run.ledger.log.mark_missing(name)
        raise _gap(run, sorted(missing), queued)


class NotQueuedError(TransientError):
    """A server's open log is in no queue of the run's peer, so HBase may delete it; facts `files`."""


def _require_queued(run: Run, listed: Sequence[WalFile], queued: Collection[str]) -> None:
    """Raise NotQueuedError if a log that a live server writes to stays in no queue for half a minute."""
    names = _written(listed).keys() - set(queued)
    for _ in range(QUEUE_LOOKS):
        if not names:
            return
        time.sleep(LOOK_SECONDS)
        written = _written(run.wal_listing.live())
        alive = {server.name for server in run.source.servers()}
        names = {name for name in names if written.get(name) in alive} - way_of(run).kept(run)
    if names:
        raise NotQueuedError(
            f"WAL {min(names)} is in no queue of the peer {run.peer} ({len(names)} in all): HBase may delete it "
            "before it is applied. Somebody removed a queue, or hbase.replication is off at its server. Restart "
            "that server: the WALs that it writes afterwards are queued",
            files=sorted(names),
        )


def _written(listed: Iterable[WalFile]) -> dict[str, str]:
    """The server of each log that is being written, by the log's name."""
    return {file.name: file.server for file in newest(file for file in listed if file.place is Place.LIVE).values()}


def _gap(run: Run, missing: Sequence[str], queued: Collection[str]) -> GapError:
    first, root = missing[0], run.wal_root
    aside = f"{root}/corrupt/{first}"
    if run.wal_files.status(aside) is not None:
        cause = f"HBase could not read the file when it split the log of the file's server, and moved it to {aside}"
    elif first in queued:
        cause = way_of(run).why_missing(run, first)
    else:
        cause = "the file was not known to be empty; the NameNode's audit log shows who removed it"
    lost = "abort this run and start over with a new snapshot"
    if opened_ms(run.ledger) is not None:
        verify = f"`walferry verify {run.record.name}`"
        lost = f"the target is open to clients and stays so, and {verify} names the rows that differ"
    return GapError(
        f"WAL file {first} is missing at the source and was not applied ({len(missing)} in all): the log has a gap. "
        f"{cause}. If you still have the file (there, in HDFS's trash or in an HDFS snapshot), put it into "
        f"{root}/oldWALs and run again; if it is lost, {lost}",
        file=first, start=0, end=None, files=missing,
    )  # fmt: skip


def _holds_nothing(run: Run, file: WalFile) -> bool:
    """Whether the file is archived and has no entry: nobody writes to an archived file any more."""
    files, root = run.wal_files, run.wal_root
    if file.place is not Place.ARCHIVED or bytes_held(files, root, file):
        return False
    return find_wal(files, root, file) is not None  # None if the file was deleted before it could be read


def _was_empty(run: Run, file: ledger.RecordedFile) -> bool:
    """Whether a missing file that is in no queue never held an entry.

    True if the file was the last open log of a dead server, and no run that looked into it found an entry. Only for a
    protection that names every log (`protect.Protection`).
    """
    if file.length or file.sealed_ms is not None:
        return False
    if file.server in {server.name for server in run.source.servers()}:
        return False
    if any(other.number > file.number for other in run.ledger.log.files([file.group])):
        return False
    whole = run.ledger.whole
    readers = [other.run_id for other in on_source(run, whole.runs())]
    seen = whole.files_between(readers, file.number, file.number + 1)
    return not any(other.length for other in seen if other.name == file.name)


def _account_for_empty(run: Run, files: Iterable[WalFile]) -> None:
    """Record files without an entry as sealed and applied."""
    for file in sorted(files, key=lambda file: file.name):
        log.info("WAL file %s holds no entry", file.name)
        run.ledger.log.see_files([as_seen(file, sealed=True)])
        size = file.length
        nothing = [WalRange(file.name, 0, size, pair.source, 0, 0, None, None, "applied") for pair in run.tables]
        run.ledger.log.set_ranges(nothing)

"""Is every file of the log there that must be? (R1)

HBase names a log in every peer's queue before the first edit goes into it (ReplicationSourceManager.preLogRoll, called
between the making of the new writer and the change over to it), and deletes none that a queue names. A log of a server
that died at once is archived like any other, also one without a byte (WALSplitter: "nothing to split"); since no queue
names it, the cleaner deletes it as soon as its TTL is over. So a log may be gone, and have held nothing:

- one that no queue names and in which nothing was found is recorded as read at the cut that sees it in the archive,
  for it may be gone before its turn comes;
- one that no queue names, in which nothing was found while it was open, is not missed once it is gone with its server.

Every other file that is gone was removed by somebody, or put aside by HBase: what it held is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from walferry import ledger
from walferry.errors import GapError
from walferry.ledger import WalRange
from walferry.replay.cut import as_listed, as_seen
from walferry.replay.protect import queued_files, require_peer
from walferry.replay.settled import reads
from walferry.run.run import Run
from walferry.wal.fences import InGroup
from walferry.wal.files import Place, WalFile, find_wal, list_wals, parse_wal_name
from walferry.wal.open import bytes_held

log = logging.getLogger(__name__)


def check_complete(run: Run, listed: Sequence[WalFile], *, to_end_fence: bool = False) -> None:
    """Raise GapError when a file that must be there is not (R1), by a listing of the source's files.

    Two lists that are made independently of each other have to agree with it: the files that the ledger saw earlier and
    has not applied, and the queue in which HBase keeps every WAL for the peer. `to_end_fence`: what is past the end
    fence does not count.
    Raises PeerChangedError when that peer is not there any more, or enabled: then nothing keeps the WALs.
    """
    require_peer(run)
    present = {file.name for file in listed}
    fences = run.fences()
    inside = fences.holds if to_end_fence else fences.starts_by
    queued = queued_files(run)
    applied = run.ledger.log.applied_files()
    nothing = [
        file for file in listed if inside(file) and file.name not in applied | queued and _holds_nothing(run, file)
    ]
    _account_for_empty(run, nothing)
    applied |= {file.name for file in nothing}
    known = {file.name: file for file in run.ledger.log.files()}
    places: dict[str, InGroup] = dict(known)
    places |= {name: place for name in queued if (place := parse_wal_name(name)) is not None}
    expected = {name for name, place in places.items() if name not in applied and inside(place)}
    # The queue may be newer than the listing: look again before crying wolf.
    missing = expected - present
    if missing:
        present |= {file.name for file in list_wals(run.source_files, run.source_root)}
        missing = expected - present
        empty = {name for name in missing - queued if _was_empty(run, known[name], known.values())}
        _account_for_empty(run, [as_listed(known[name]) for name in empty])
        missing -= empty
    if missing:
        for name in sorted(missing & known.keys()):
            run.ledger.log.mark_missing(name)
        raise _gap(run, sorted(missing), queued)


def _gap(run: Run, missing: Sequence[str], queued: Collection[str]) -> GapError:
    first, root = missing[0], run.source_root
    aside = f"{root}/corrupt/{first}"
    if run.source_files.status(aside) is not None:
        cause = f"HBase could not read it when it split the log of its server, and put it aside as {aside}"
    elif first in queued:
        cause = f"HBase keeps it for the peer {run.peer}, so somebody removed it: the NameNode's audit log tells who"
    else:
        cause = "nobody saw it empty: the NameNode's audit log tells who removed it"
    return GapError(
        f"WAL file {first} is missing at the source and was not applied ({len(missing)} in all): the log has a gap. "
        f"{cause}. If you have the file (there, in HDFS's trash or a snapshot of it), put it into {root}/oldWALs and "
        "run again; if it is lost, abort this run and start over with a new snapshot",
        file=first, start=0, end=None, files=missing,
    )  # fmt: skip


def _holds_nothing(run: Run, file: WalFile) -> bool:
    """Whether an archived file, to which nobody writes any more, has no entry."""
    files, root = run.source_files, run.source_root
    if file.place is not Place.ARCHIVED or bytes_held(files, root, file):
        return False
    return find_wal(files, root, file) is not None  # else nobody has looked into it


def _was_empty(run: Run, file: ledger.WalFile, known: Iterable[ledger.WalFile]) -> bool:
    """Whether a file that is gone, and that no queue names, never held an entry.

    It was the last open one of a server that died, and whoever looked into it found nothing, also other runs.
    """
    if file.length or file.sealed_ms is not None:
        return False
    if file.server in {server.name for server in run.source.servers()}:
        return False
    if any(other.number > file.number for other in known if other.group == file.group):
        return False
    whole = run.ledger.whole
    readers = [other.run_id for other in whole.runs() if reads(other, run.spec.source)]
    seen = whole.files_between(readers, file.number, file.number + 1)
    return not any(other.length for other in seen if other.name == file.name)


def _account_for_empty(run: Run, files: Iterable[WalFile]) -> None:
    """Record files without an entry as sealed and applied."""
    for file in sorted(files, key=lambda file: file.name):
        log.info("WAL file %s holds nothing: its server died at once", file.name)
        run.ledger.log.see_files([as_seen(file, sealed=True)])
        size = file.length
        nothing = [WalRange(file.name, 0, size, pair.source, 0, 0, None, None, "applied") for pair in run.tables]
        run.ledger.log.set_ranges(nothing)

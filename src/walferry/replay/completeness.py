"""Is every file of the log there that must be? (R1)"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from walferry.errors import GapError
from walferry.ledger import WalRange
from walferry.replay.cut import (
    as_listed,
    as_seen,
)
from walferry.replay.protect import queued_files, require_peer
from walferry.run.run import Run
from walferry.wal.fences import InGroup
from walferry.wal.files import WalFile, list_wals, parse_wal_name

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
    applied = run.ledger.log.applied_files()
    known = {file.name for file in run.ledger.log.files()}
    fences = run.fences()
    places: dict[str, InGroup] = {file.name: file for file in run.ledger.log.files()}
    places |= {name: place for name in queued_files(run) if (place := parse_wal_name(name)) is not None}
    inside = fences.holds if to_end_fence else fences.starts_by
    expected = {name for name, place in places.items() if name not in applied and inside(place)}
    # The queue may be newer than the listing: look again before crying wolf.
    missing = expected - present
    if missing:
        present |= {file.name for file in list_wals(run.source_files, run.source_root)}
        missing = {name for name in expected - present if not _was_empty(run, name)}
        _account_for_empty(run, expected - present - missing)
    if missing:
        for name in sorted(missing & known):
            run.ledger.log.mark_missing(name)
        first = min(missing)
        raise GapError(
            f"WAL file {first} is missing at the source and was not applied ({len(missing)} in all): "
            "the log has a gap; abort this run and begin anew with a fresh snapshot",
            file=first, start=0, end=None, files=sorted(missing),
        )  # fmt: skip


def _was_empty(run: Run, name: str) -> bool:
    """A log without a byte is deleted, not archived, when its server dies at once.

    An open log is listed with length 0, too, whatever it holds: only the last one of a dead server counts as empty.
    """
    files = {f.name: f for f in run.ledger.log.files()}
    file = files.get(name)
    if file is None or file.length or file.state != "open":
        return False
    alive = {server.name for server in run.source.servers()}
    return file.server not in alive and all(f.number <= file.number for f in files.values() if f.group == file.group)


def _account_for_empty(run: Run, names: Collection[str]) -> None:
    """Record files that were deleted without ever having held a byte as sealed and applied."""
    files = {f.name: f for f in run.ledger.log.files()}
    for file in (files[name] for name in sorted(names)):
        log.info("WAL file %s never held a byte and is gone with its server", file.name)
        run.ledger.log.see_files([as_seen(as_listed(file), sealed=True)])
        nothing = [WalRange(file.name, 0, 0, pair.source, 0, 0, None, None, "applied") for pair in run.tables]
        run.ledger.log.set_ranges(nothing)

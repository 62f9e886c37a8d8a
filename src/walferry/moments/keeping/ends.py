"""The ends of open logs: what has become visible in each log that has no closed copy is copied as a new piece.

So the loss of the source costs only what was written since the last pass. A piece is written under a unique name and
renamed: two processes do no harm, and a killed one leaves nothing that looks like a piece (`wal.pieces`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from threading import Event
from uuid import uuid4

from walferry.clock import now_ms, steady_s
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.retention import KeptLog
from walferry.replay.keeping.by_copies import (
    AT_ONCE,
    LEFT_MS,
    Stage,
    is_over,
    require_same_source,
    require_whole_log,
    stage_of,
)
from walferry.replay.keeping.folder import UNFINISHED
from walferry.run.notes.kept_moments import CopiedEnds, copied_ends, lost_ends, note_ends, note_lost_end
from walferry.wal.fences import CLOCKS_APART_MS
from walferry.wal.files import (
    Place,
    WalFile,
    find_archived,
    find_wal,
    list_archive,
    list_live,
    parse_wal_name,
    with_archived,
)
from walferry.wal.pieces import folder_of, length_of, list_pieces, names_with_pieces, piece_name, read_pieces

log = logging.getLogger(__name__)

MOST_PIECES = 500
"""a log with more pieces gets one in their place"""
WHOLE_SECONDS = 60.0
"""the whole archive is listed at least this often"""


def tend_ends(run: KeepRun, ended: Event) -> None:
    """Copy the ends of open logs every `tail_seconds` until the run has ended or `ended` is set.

    Errors are only logged: the status shows how much a loss of the source would cost meanwhile.
    """
    ends: Ends | None = None
    again = 0.0
    while not ended.wait(max(0.0, again - steady_s())):
        again = steady_s() + run.spec.tail_seconds
        try:
            if is_over(run):
                return
            ends = ends or Ends(run)
            ends.copy()
        except Exception as error:  # the thread must go on
            log.warning("the ends of open logs were not copied; trying again: %s", error)


class Ends:
    """What the folder has of each log without a closed copy, and the passes that copy what is new."""

    def __init__(self, run: KeepRun) -> None:
        self._run = run
        self._stage: Stage = stage_of(run)
        self._held: dict[str, int] = {}
        self._pieces: dict[str, int] = {}
        for name in names_with_pieces(self._stage.files, self._stage.path):
            found = list_pieces(self._stage.files, self._stage.path, name)
            self._held[name], self._pieces[name] = length_of(found), len(found)
        self._lost = set(lost_ends(run.ledger))
        self._waiting: set[str] = set()
        """archived logs without a closed copy, of which nothing is copied here"""
        self._failed: set[str] = set()
        """logs of which nothing is copied, since that failed"""
        self._newest: dict[str, int] = {}
        """the newest log that was open of each WAL group"""
        self._whole_at = -WHOLE_SECONDS
        known = copied_ends(run.ledger)
        self._covered = run.record.created_ms if known is None else known.covered_ms
        self._behind: dict[str, int] = {}
        """of WAL groups that are not covered by the last pass: up to when they were before"""

    def copy(self) -> CopiedEnds:
        """One pass. A log that cannot be copied does not stop the others.

        Raises the errors of listing the logs, of `require_same_source`, and of `require_whole_log` once all are copied.
        """
        require_same_source(self._run)
        looked_ms = now_ms()
        fences = self._run.fences()
        listed = [file for file in self._list() if fences.starts_by(file)]
        seen = self._held.keys() | self._waiting | self._failed
        known = self._run.ledger.staged.known({file.name for file in listed} | seen)
        todo = [file for file in listed if file.name not in known]
        self._note_lost(seen - known.keys() - {file.name for file in todo})
        archived = [file for file in todo if file.place is Place.ARCHIVED and file.name not in self._held]
        unseen = {file.name for file in archived}
        self._waiting = {file.name for file in archived if file.length}
        with ThreadPoolExecutor(AT_ONCE, "ends") as pool:
            tried = pool.map(self._try, [file for file in todo if file.name not in unseen])
            failures = [file for file in tried if file is not None]
        self._failed = {file.name for file in failures if file.name not in self._held}
        behind = {file.group for file in (*archived, *failures)}
        self._behind = {group: self._behind.get(group, self._covered) for group in behind}
        for name in self._held.keys() & known.keys():
            self._drop(name)
        require_whole_log(self._run)
        self._covered = min(self._behind.values(), default=looked_ms)
        ends = CopiedEnds(
            covered_ms=self._covered, at_ms=looked_ms, ended_ms=now_ms(), files=len(self._held),
            bytes=sum(self._held.values()),
        )  # fmt: skip
        note_ends(self._run.ledger, ends)
        return ends

    def _list(self) -> list[WalFile]:
        """The logs that are not archived, and those archived ones that were seen before.

        From time to time all, and once a log was rolled: another one may have come and gone since the last pass.
        """
        source, root = self._stage.source, self._stage.root
        live = list_live(source, root)
        newest = {file.group: file.number for file in live}  # `live` is ordered by number
        if newest != self._newest or steady_s() - self._whole_at >= WHOLE_SECONDS:
            listed = with_archived(live, list_archive(source, root))
            self._newest, self._whole_at = newest, steady_s()
            return listed
        names = (self._held.keys() | self._waiting | self._failed) - {file.name for file in live} - self._lost
        found = (find_archived(source, root, name) for name in sorted(names))
        return with_archived(live, [file for file in found if file is not None])

    def _try(self, file: WalFile) -> WalFile | None:
        """Copy what is new of a file. Returns the file if that failed."""
        try:
            self._copy(file)
        except Exception as error:  # must not keep the others from being copied
            log.warning("the end of WAL file %s could not be copied: %s", file.path, error)
            return file
        return None

    def _copy(self, file: WalFile) -> None:
        begin = self._held.get(file.name, 0)
        try:
            end = self._write(file.path, file.name, begin)
        except FileNotFoundError:  # it has moved since it was listed
            moved = find_wal(self._stage.source, self._stage.root, file)
            if moved is None:
                raise
            end = self._write(moved.path, file.name, begin)
        if end > begin:
            self._held[file.name] = end
            self._pieces[file.name] = self._pieces.get(file.name, 0) + 1
            if self._pieces[file.name] > MOST_PIECES:
                self._merge(file.name)

    def _write(self, path: str, name: str, begin: int) -> int:
        """Copy what a file has past `begin`. Returns where that ends."""
        chunks = iter(self._stage.source.read(path, begin))
        first = next(chunks, b"")
        return self._add(name, begin, chain((first,), chunks)) if first else begin

    def _add(self, name: str, begin: int, chunks: Iterator[bytes]) -> int:
        """Add a piece, complete under its name or not at all. Returns where it ends."""
        files, folder, end = self._stage.files, folder_of(self._stage.path, name), begin

        def counted() -> Iterator[bytes]:
            nonlocal end
            for chunk in chunks:
                end += len(chunk)
                yield chunk

        unfinished = f"{folder}/{uuid4().hex}{UNFINISHED}"
        try:
            files.write(unfinished, counted())
            files.rename(unfinished, f"{folder}/{piece_name(begin, end)}")
        except FileExistsError:  # another process has copied the same bytes
            files.delete(unfinished)
        except BaseException:
            with suppress(Exception):  # the first error says more
                files.delete(unfinished)
            raise
        return end

    def _merge(self, name: str) -> None:
        """Replace the pieces of a log by one, which has the same bytes."""
        files, folder = self._stage.files, folder_of(self._stage.path, name)
        before = list_pieces(files, self._stage.path, name)
        end = self._add(name, 0, read_pieces(files, before))
        for piece in before:
            if piece.end <= end and (piece.first, piece.end) != (0, end):
                files.delete(piece.path)
        for status in files.list(folder):
            if status.name.endswith(UNFINISHED) and now_ms() - status.modified_ms > LEFT_MS:
                files.delete(status.path)
        self._pieces[name] = 1

    def _drop(self, name: str) -> None:
        """Delete the pieces of a log: its closed copy is there."""
        self._stage.files.delete(folder_of(self._stage.path, name), recursive=True)
        for known in (self._held, self._pieces):
            known.pop(name, None)

    def _note_lost(self, names: set[str]) -> None:
        """Say which logs are gone at the source without a closed copy: what they had past their pieces is lost."""
        for name in sorted(names - self._lost):
            kept, parsed = self._held.get(name, 0), parse_wal_name(name)
            covered_ms = self._behind.get(parsed.group, self._covered) if parsed else self._covered
            log.error("WAL file %s is gone without a closed copy: only its first %d bytes are kept", name, kept)
            note_lost_end(self._run.ledger, name, kept, covered_ms)
            self._run.ledger.audit(self._run.actor, "end of a log lost", {"file": name, "bytes": kept})
        self._lost |= names


def kept_ends(stage: Stage) -> list[KeptLog]:
    """The logs of which the folder has only pieces."""
    found = []
    for name in names_with_pieces(stage.files, stage.path):
        parsed, pieces = parse_wal_name(name), list_pieces(stage.files, stage.path, name)
        if parsed is not None and pieces:
            # By the folder's clock, while bases have this machine's.
            newest = max(piece.modified_ms for piece in pieces) + CLOCKS_APART_MS
            found.append(KeptLog(name, parsed.group, parsed.number, sum(p.end - p.first for p in pieces), newest))
    return found

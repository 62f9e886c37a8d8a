"""The files' side of a history: rows and the positions they reach, committed together, at most so often.

A commit of the stream (one for each pass) is kept in memory, and written with later ones once it is time or there is
much of it. So a process that is killed loses what it has kept, with its positions, and the next one reads that from the
log again.

Each row is there once, because

- a commit's record has its files and its positions, and appears whole or not at all;
- a new sink first makes a commit of its own: an older process then cannot make one, since its number is taken. Only
  then does the new one delete what older ones have begun.

Iceberg tables, if there are any, get a commit's files before the next commit is made, and before its record is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import pyarrow as pa

from walferry.clock import now_ms, steady_s
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.storage import FileSystem
from walferry.streams.fenced import FencedError
from walferry.streams.history.commits import CHECKPOINT_EVERY, KEPT, Commit, Commits, Owner
from walferry.streams.history.files import Gathered

if TYPE_CHECKING:
    from walferry.streams.history.iceberg import HistoryTables

log = logging.getLogger(__name__)

OPENING_ATTEMPTS = 10
"""of the first commit, which an older process may get ahead of"""


@dataclass(frozen=True)
class Limits:
    """When what is kept is written: whichever is first."""

    seconds: float
    """since the last time"""
    bytes: int
    """of rows in memory"""


class HistorySink:
    """Writes the rows of one stream. A context manager, for one thread; made by `HistorySink.open`.

    After FencedError or TransientError it is of no more use: open another one, and go on from its positions. At the end
    of its block it writes what was committed.
    """

    def __init__(
        self,
        files: FileSystem,
        folder: str,
        owner: Owner,
        epoch: int,
        limits: Limits,
        tables: HistoryTables | None = None,
    ) -> None:
        """Use `open`: this one neither reads nor writes."""
        self._files, self._folder = files, folder.rstrip("/")
        self._owner, self._epoch, self._limits = owner, epoch, limits
        self._commits = Commits(files, self._folder, owner, epoch)
        self._tables = tables
        self._id = uuid4().hex
        self._number = self._checkpoint = 0
        """of the last commit, and of the last one with all positions"""
        self._parts = 0
        """files of the next commit that were begun"""
        self._open, self._kept = Gathered(), Gathered()
        self._rows = 0
        self._changed: dict[str, bytes | None] = {}
        self._written_s = steady_s()
        self._spent = False
        """whether it is of no more use: what it has written is to be seen in the folder, or it has ended"""
        self.positions: dict[str, bytes] = {}
        """what the last commit left, by key"""

    @classmethod
    def open(
        cls,
        files: FileSystem,
        folder: str,
        owner: Owner,
        epoch: int,
        limits: Limits,
        *,
        expected: bool = False,
        tables: HistoryTables | None = None,
    ) -> Self:
        """Complete the last commit, shut out every older sink of the folder, and read the positions.

        `expected`: positions have been written before. `tables`: of Iceberg, which get the files of each commit, too.
        Raises UsageError for a folder or tables that are not the owner's, for commits of a later epoch, or if positions
        are expected and there are none.
        """
        sink = cls(files, folder, owner, epoch, limits, tables)
        sink._begin(expected)
        return sink

    @property
    def keeps_changes(self) -> bool:
        """Whether rows were committed that are not written yet."""
        return bool(self._kept)

    @property
    def keeps_positions(self) -> bool:
        """Whether rows or positions were committed that are not written yet."""
        return bool(self._kept or self._changed)

    def add(self, cells: pa.RecordBatch) -> None:
        """Add changes, as `rows.CHANGES`, to the next commit. Raises TransientError."""
        self._open.add(cells)
        self._rows += len(cells)
        if self._open.bytes + self._kept.bytes >= self._limits.bytes:
            self._write_files(self._kept)
            self._write_files(self._open)

    def add_event(self, row: dict[str, Any]) -> None:
        """Add an event, as `rows.EVENTS`, to the next commit."""
        self._open.add_event(row, now_ms())
        self._rows += 1

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        """Keep what was added, with the positions that changed by it; write all that is kept if it is time.

        Returns how many rows were added. Raises FencedError and TransientError.
        """
        rows, self._rows = self._rows, 0
        self._kept.take(self._open)
        self._changed |= changed
        for key, value in changed.items():
            if value is None:
                self.positions.pop(key, None)
            else:
                self.positions[key] = value
        is_full = bool(self._kept.files) or self._kept.bytes >= self._limits.bytes
        if is_full or steady_s() - self._written_s >= self._limits.seconds:
            self.write()
        return rows

    def write(self) -> None:
        """Write all that was committed. Raises FencedError and TransientError."""
        if self._spent:
            raise TransientError(f"this sink of {self._folder} is of no more use; open another one")
        if self.keeps_positions:
            self._write_files(self._kept)
            self._make(self._epoch)
        self._written_s = steady_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what was committed, unless the process is to end at once, or has been shut out."""
        try:
            if not self._spent and (error is None or isinstance(error, WalferryError)):
                self.write()
        except WalferryError as failed:
            if error is None:
                raise
            log.warning("what was kept of the history is not written, and will be read from the log again: %s", failed)
        finally:
            self._spent = True
            self._files.close()

    def _begin(self, expected: bool) -> None:
        for attempt in range(OPENING_ATTEMPTS):
            last = self._commits.last()
            if last is not None:
                self._commits.complete(last)
                self._number, self.positions = last.number, self._commits.positions(last)
            if expected and not self.positions:
                raise UsageError(
                    f"the positions of the stream in {self._folder} are lost, though they were written before: stop, "
                    "and ask who deleted them; restore the folder, or begin a new epoch of the stream in another one",
                    folder=self._folder,
                )
            self._commits.make_folders()
            if self._tables is not None:
                # Before a commit of its own: while the catalogue is away, each attempt would make one.
                self._tables.catch_up(self._commits, last)
            try:
                if last is None:
                    self._kept.add_no_event(now_ms())
                    self._write_files(self._kept)
                self._make(self._epoch if last is None else last.epoch, is_first=True)
                break
            except FencedError:
                if attempt == OPENING_ATTEMPTS - 1:
                    raise
                self._spent, self._kept = False, Gathered()
        self._commits.clear(self._number)

    def _make(self, epoch: int, *, is_first: bool = False) -> None:
        """Make the next commit of what is kept. `epoch`: of the positions. `is_first`: of this sink."""
        number = self._number + 1
        is_checkpoint = is_first or number - self._checkpoint >= CHECKPOINT_EVERY
        checkpoint = number if is_checkpoint else self._checkpoint
        positions = self.positions if is_checkpoint else self._changed
        commit = Commit(number, tuple(self._kept.files), positions, checkpoint, epoch, self._id)
        self._spent = True  # unless all goes well
        self._commits.record(commit)
        self._commits.complete(commit)
        if self._tables is not None:
            self._tables.publish(commit)
            if is_checkpoint:
                self._tables.checkpoint(number)
        if is_checkpoint:
            self._commits.forget(number - KEPT)
        self._spent = False
        self._number, self._checkpoint, self._parts = number, checkpoint, 0
        self._kept, self._changed = Gathered(), {}

    def _write_files(self, gathered: Gathered) -> None:
        facts = {
            "commit": str(self._number + 1), "epoch": str(self._epoch), "stream": self._owner.stream,
            "cluster": self._owner.cluster_id,
        }  # fmt: skip
        spent, self._spent = self._spent, True
        self._parts = gathered.write(self._files, self._folder, self._number + 1, self._parts, self._id, facts)
        self._spent = spent

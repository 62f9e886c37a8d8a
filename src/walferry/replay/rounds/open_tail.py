"""A tail of one open log: the file that a WAL group writes to, read as far as it is visible, again and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

import numpy as np

from walferry.apply.prefix import Prefix
from walferry.apply.region_events import RegionEvent
from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.formats.wal import EntryBatch
from walferry.replay.log.cut import Cut
from walferry.run.notes.sent_early import SentEarly
from walferry.run.progress.lag import TailProgress
from walferry.run.run import Run
from walferry.wal.files import Place, WalFile, by_number
from walferry.wal.open import Until, Wal, open_wal

log = logging.getLogger(__name__)

BATCH_BYTES = 1 << 20
SLICE_BYTES = 4 << 20
"""of one group, read before something is sent"""


class OpenTail:
    """The open file of one WAL group, read as far as it is visible."""

    def __init__(self, run: Run, file: WalFile, before: SentEarly | None) -> None:
        """`before`: what was sent of it by others, or by a tail that has been given up."""
        self.file = file
        self._before = before
        self._wal: Wal = open_wal(run.source_files, run.wal_root, file, Until.NOW, batch_bytes=BATCH_BYTES)
        self._visible: Iterator[EntryBatch] | None = None
        """what has become visible and was not read to its end yet"""
        self._prefix = Prefix()
        self._tables: set[str] = set()
        self.closed = False
        """nothing more is read of it"""
        self.sealed = False
        """it has its trailer, and was read up to there"""
        self.events: list[RegionEvent] = []
        """of the tables that are followed, from its beginning on"""
        self.followed = TailProgress(server=file.server)
        self._shown_after_ms: int | None = None

    def is_before(self, cut: Cut) -> bool:
        """Whether its file was begun before a cut, and nothing was written to it since."""
        return cut.is_before(self.file.group, self.file.number)

    def next_in(self, listed: Sequence[WalFile]) -> WalFile | None:
        """The next live log of its group; None if there is none yet."""
        mine = (file for file in listed if file.group == self.file.group and file.place is Place.LIVE)
        return min((file for file in mine if file.number > self.file.number), key=by_number, default=None)

    @property
    def is_broken(self) -> bool:
        """Whether nothing more is read of it though it may hold more, or another log may come before the next one."""
        return self.closed and not self.sealed

    def break_off(self) -> None:
        """Read nothing more of it, nor of what comes after it, until the next cut."""
        self.closed, self.sealed = True, False

    def begin_pass(self) -> None:
        """Measure the next pass."""
        self._shown_after_ms = None
        self.followed = self.followed.model_copy(update={"read_ms": 0, "apply_ms": 0, "sending_since_ms": 0})

    def read(self) -> tuple[list[EntryBatch], bool]:
        """Some of what has become visible, and whether that was all."""
        began = time.monotonic()
        try:
            return self._read()
        finally:
            took_ms = round((time.monotonic() - began) * 1000)
            self._measured(read_ms=self.followed.read_ms + took_ms)

    def _read(self) -> tuple[list[EntryBatch], bool]:
        found, size = list[EntryBatch](), 0
        try:
            self._visible = self._visible or self._wal.more()
            for batch in self._visible:
                found.append(batch)
                size += batch.buffer.nbytes
                if size >= SLICE_BYTES:
                    return found, False
            self._visible = None
            self.sealed = self.closed = self._wal.unfinished is None and self._wal.length > 0
        except (OSError, WalferryError) as error:
            # Of a dead server, damaged (the next round records that), or the NameNode cannot be reached.
            log.info("open log %s is not followed until the next round: %s", self.file.name, error)
            self.closed = True
        return found, True

    def took(self, batch: EntryBatch, tables: Sequence[str]) -> None:
        """Remember entries that are about to be sent, those of some tables, or passed over."""
        self._prefix.add(batch)
        self._tables.update(tables)

    def measure(self, batch: EntryBatch, edits: np.ndarray) -> None:
        """Measure how old the oldest of some edits is that were just read."""
        if edits.any():
            age_ms = max(0, now_ms() - int(batch.write_time[edits].min()))
            self._shown_after_ms = max(age_ms, self._shown_after_ms or 0)
            self._measured(shown_after_ms=self._shown_after_ms)

    def sending(self) -> None:
        """What was read is about to be sent."""
        self._measured(sending_since_ms=now_ms())

    def sent(self) -> None:
        """It is sent."""
        took_ms = max(0, now_ms() - self.followed.sending_since_ms)
        self._measured(apply_ms=self.followed.apply_ms + took_ms, sending_since_ms=0)

    def covered(self, moment_ms: int) -> None:
        """Everything that was written to it before a moment is applied."""
        self._measured(covered_ms=max(moment_ms, self.followed.covered_ms))

    def _measured(self, **numbers: int) -> None:
        self.followed = self.followed.model_copy(update=numbers)

    @property
    def end(self) -> int:
        """How far it was read, in bytes of the file."""
        return self._prefix.end

    def shown(self) -> SentEarly:
        """What was read, for the ledger; beside what others have read of it."""
        before = self._before or SentEarly(shown=(), tables=())
        own = (self._prefix.end, self._prefix.crc)
        return SentEarly(shown=(*before.shown, own), tables=tuple(sorted({*before.tables, *self._tables})))

    @property
    def sends(self) -> bool:
        """Whether something of it was sent, or is about to be."""
        return bool(self._tables)

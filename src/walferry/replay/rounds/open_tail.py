"""A tail of one open log: repeatedly reads the file that a WAL group writes to, as far as it is visible."""

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
"""bytes of one group that are read before anything is sent"""


class OpenTail:
    """A reader of the open log of one WAL group, as far as the log is visible."""

    def __init__(self, run: Run, file: WalFile, before: SentEarly | None) -> None:
        """`before`: what another process, or an earlier tail, sent of the file."""
        self.file = file
        self._before = before
        self._wal: Wal = open_wal(run.wal_files, run.wal_root, file, Until.NOW, batch_bytes=BATCH_BYTES)
        self._visible: Iterator[EntryBatch] | None = None
        """the visible entries that are not read to their end yet"""
        self._prefix = Prefix()
        self._tables: set[str] = set()
        self.closed = False
        """whether the tail reads no further"""
        self.sealed = False
        """whether the file has its trailer and was read up to there"""
        self.events: list[RegionEvent] = []
        """events of the followed tables, from the file's beginning on"""
        self.followed = TailProgress(server=file.server)
        self._shown_after_ms: int | None = None

    def is_before(self, cut: Cut) -> bool:
        """Whether the tail's file was created before a cut and is no longer written to."""
        return cut.is_before(self.file.group, self.file.number)

    def next_in(self, listed: Sequence[WalFile]) -> WalFile | None:
        """The next live log of the tail's group; None if there is none yet."""
        mine = (file for file in listed if file.group == self.file.group and file.place is Place.LIVE)
        return min((file for file in mine if file.number > self.file.number), key=by_number, default=None)

    @property
    def is_broken(self) -> bool:
        """Whether the tail reads no further although the file may hold more, or an unseen log may follow it."""
        return self.closed and not self.sealed

    def break_off(self) -> None:
        """Read nothing more of the file, or of the group's next ones, until the next cut."""
        self.closed, self.sealed = True, False

    def begin_pass(self) -> None:
        """Reset the measurements for the next pass."""
        self._shown_after_ms = None
        self.followed = self.followed.model_copy(update={"read_ms": 0, "apply_ms": 0, "sending_since_ms": 0})

    def read(self) -> tuple[list[EntryBatch], bool]:
        """Read some of the visible entries, and whether those were all."""
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
            # The server has died, the file is damaged (the next round records that), or the NameNode is unreachable.
            log.info("open log %s is not followed until the next round: %s", self.file.name, error)
            self.closed = True
        return found, True

    def took(self, batch: EntryBatch, tables: Sequence[str]) -> None:
        """Remember that these entries were read; those of `tables` are about to be sent."""
        self._prefix.add(batch)
        self._tables.update(tables)

    def measure(self, batch: EntryBatch, edits: np.ndarray) -> None:
        """Measure the age of the oldest edit just read."""
        if edits.any():
            age_ms = max(0, now_ms() - int(batch.write_time[edits].min()))
            self._shown_after_ms = max(age_ms, self._shown_after_ms or 0)
            self._measured(shown_after_ms=self._shown_after_ms)

    def sending(self) -> None:
        """Note that the entries read are about to be sent."""
        self._measured(sending_since_ms=now_ms())

    def sent(self) -> None:
        """Note that the entries are sent."""
        took_ms = max(0, now_ms() - self.followed.sending_since_ms)
        self._measured(apply_ms=self.followed.apply_ms + took_ms, sending_since_ms=0)

    def covered(self, moment_ms: int) -> None:
        """Note that everything written to the file before a moment is applied."""
        self._measured(covered_ms=max(moment_ms, self.followed.covered_ms))

    def _measured(self, **numbers: int) -> None:
        self.followed = self.followed.model_copy(update=numbers)

    @property
    def end(self) -> int:
        """How far the file was read, in bytes."""
        return self._prefix.end

    def shown(self) -> SentEarly:
        """What this tail and earlier ones have read of the file, for the ledger."""
        before = self._before or SentEarly(shown=(), tables=())
        own = (self._prefix.end, self._prefix.crc)
        return SentEarly(shown=(*before.shown, own), tables=tuple(sorted({*before.tables, *self._tables})))

    @property
    def sends(self) -> bool:
        """Whether any entry of the file was sent, or is about to be."""
        return bool(self._tables)

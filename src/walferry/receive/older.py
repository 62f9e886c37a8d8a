"""Leaves out what was written before a run's start."""

from __future__ import annotations

import logging

from walferry.amounts import amount
from walferry.clock import shown_utc, steady_s
from walferry.formats.wal import EntryBatch
from walferry.receive.seen import Mask

log = logging.getLogger(__name__)

TELL_SECONDS = 60.0
_DAY = "%Y-%m-%d "


class Older:
    """Leaves out the entries that were written before a moment, and tells once a minute how many. For one thread."""

    def __init__(self, start_ms: int | None) -> None:
        self._start_ms = start_ms
        self._untold = 0
        self._told_s = -TELL_SECONDS

    def without(self, entries: Mask, batch: EntryBatch) -> Mask:
        """Of these entries of a batch, those that are not older."""
        if self._start_ms is None:
            return entries
        kept: Mask = entries & (batch.write_time >= self._start_ms)
        self._untold += int(entries.sum() - kept.sum())
        if self._untold and steady_s() - self._told_s >= TELL_SECONDS:
            what = amount(self._untold, "entry is", "entries are")
            log.info("%s left out, written before the start of the run at %s", what, shown_utc(self._start_ms, _DAY))
            self._untold, self._told_s = 0, steady_s()
        return kept

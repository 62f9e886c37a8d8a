"""Which edits a window applies, by write time, and which edits of other times the target already has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from walferry.formats.wal import EntryBatch


@dataclass(frozen=True)
class WriteTimes:
    """Write times from `start_ms` (included) to `end_ms` (excluded)."""

    start_ms: int
    end_ms: int

    def holds(self, write_times: np.ndarray) -> np.ndarray:
        """Which of these times are in the span, as bool[n]."""
        inside: np.ndarray = (write_times >= self.start_ms) & (write_times < self.end_ms)
        return inside

    def has(self, write_time: int) -> bool:
        """Whether a time is in the span."""
        return self.start_ms <= write_time < self.end_ms


ALL_TIMES = WriteTimes(-(1 << 63), 1 << 63)


@dataclass(frozen=True)
class SettledEdits:
    """Edits that the target already has: all edits of a span, except those of `held` regions."""

    span: WriteTimes
    held: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Numbers:
    """Log sequence numbers of a region, between these two, of entries written at `since_ms` or later."""

    after: int
    before: int
    since_ms: int = -(1 << 63)


NO_NUMBERS = Numbers(0, 0)


@dataclass(frozen=True)
class WindowRows:
    """Which edits are applied by row (in a window its own, in a round all), and which other edits the target already
    has."""

    times: WriteTimes = ALL_TIMES
    """only edits written in this span are applied"""
    settled: Mapping[tuple[str, str], tuple[SettledEdits, ...]] = field(default_factory=dict)
    """by file and source table: the edits of other times that the target already has"""
    absent_at_target: frozenset[tuple[str, int]] = frozenset()
    """(file, offset) of entries in `settled` that the target does not have after all"""
    by_group: frozenset[str] = frozenset()
    """regions whose edits in the window are applied by group"""
    numbers: Mapping[str, Numbers] | None = None
    """by encoded region name, the only edits to apply, none of other regions; None: those of all numbers"""

    def applied(self, batch: EntryBatch) -> np.ndarray:
        """Which entries belong to the window, as bool[n]."""
        inside = self.times.holds(batch.write_time)
        if self.numbers is None:
            return inside
        spans = [self.numbers.get(name.decode(), NO_NUMBERS) for name in batch.regions] or [NO_NUMBERS]
        after, before, since_ms = np.array([(span.after, span.before, span.since_ms) for span in spans]).T
        numbers, of = batch.sequence_number, batch.region
        inside &= (after[of] < numbers) & (numbers < before[of]) & (since_ms[of] <= batch.write_time)
        return inside

    def has(self, region: str, number: int, write_time: int) -> bool:
        """Whether an entry belongs to the window."""
        span = None if self.numbers is None else self.numbers.get(region, NO_NUMBERS)
        if not self.times.has(write_time):
            return False
        return span is None or (span.after < number < span.before and span.since_ms <= write_time)

    def chosen(self, file: str, batch: EntryBatch) -> np.ndarray:
        """Which entries to read, to apply them by row or because the target has them, as bool[n]."""
        settled = np.zeros(len(batch), bool)
        for table, mine in batch.each_table({table for name, table in self.settled if name == file}):
            for part in self.settled[file, table]:
                settled |= mine & part.span.holds(batch.write_time) & ~batch.of_regions(part.held)
        for name, offset in self.absent_at_target:
            if name == file:
                settled &= batch.offset != offset
        chosen: np.ndarray = np.where(self.applied(batch), ~batch.of_regions(self.by_group), settled)
        return chosen

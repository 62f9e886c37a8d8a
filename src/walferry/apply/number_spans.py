"""The first and the last log sequence number of each region in a WAL file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch


@dataclass(frozen=True)
class NumberSpan:
    """The first and the last entry of a region in a file; numbers rise in between (FSHLog, AbstractFSWAL.append)."""

    table: str
    region: str
    file: str
    first: int
    """log sequence number"""
    last: int
    begins_with_edit: bool
    """whether the first entry is an edit; otherwise it is a marker"""
    ends_with_edit: bool
    begins_ms: int
    """write time of the first entry"""


class NumberSpans:
    """Collects the spans of one file, batch by batch: one span for each region of the selected entries."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._spans: dict[tuple[bytes, bytes], tuple[int, int, bool, bool, int]] = {}

    def add(self, batch: EntryBatch, selected: np.ndarray) -> None:
        """Add the selected entries of a batch."""
        entries = np.flatnonzero(selected)
        if len(entries) == 0:
            return
        codes = batch.region[entries]
        firsts = np.full(len(batch.regions), -1, np.int64)
        lasts = firsts.copy()
        lasts[codes] = entries  # numpy keeps the last of several values
        firsts[codes[::-1]] = entries[::-1]
        for code in np.flatnonzero(lasts >= 0).tolist():
            begin, end = int(firsts[code]), int(lasts[code])
            key = batch.tables[batch.table[begin]], batch.regions[code]
            known = self._spans.get(key)
            ending = int(batch.sequence_number[end]), bool(batch.marker[end] == Marker.NONE)
            if known is not None:
                self._spans[key] = (known[0], ending[0], known[2], ending[1], known[4])
                continue
            edit = bool(batch.marker[begin] == Marker.NONE)
            self._spans[key] = (
                int(batch.sequence_number[begin]), ending[0], edit, ending[1], int(batch.write_time[begin])
            )  # fmt: skip

    def spans(self) -> tuple[NumberSpan, ...]:
        """The spans collected so far."""
        return tuple(
            NumberSpan(table.decode(), region.decode(), self._file, *span)
            for (table, region), span in self._spans.items()
        )


def in_order(spans: Iterable[NumberSpan]) -> list[NumberSpan]:
    """The spans grouped by region, and by number within a region."""
    return sorted(spans, key=lambda span: (span.table, span.region, span.first, span.last))

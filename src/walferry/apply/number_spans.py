"""Which log sequence numbers a WAL file has of each region: where they begin and where they end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch


@dataclass(frozen=True)
class NumberSpan:
    """The first and the last entry of one region in one file; they rise in between (FSHLog, AbstractFSWAL.append)."""

    table: str
    region: str
    file: str
    first: int
    """log sequence number"""
    last: int
    begins_with_edit: bool
    """otherwise with a marker"""
    ends_with_edit: bool
    begins_ms: int
    """write time of the first entry"""


class NumberSpans:
    """Collects the spans of one file, batch by batch; as many as the file has regions of the wanted tables."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._spans: dict[tuple[bytes, bytes], tuple[int, int, bool, bool, int]] = {}

    def add(self, batch: EntryBatch, selected: np.ndarray) -> None:
        """Take these entries of a batch into account."""
        entries = np.flatnonzero(selected)
        if len(entries) == 0:
            return
        codes = batch.region[entries]
        firsts = np.full(len(batch.regions), -1, np.int64)
        lasts = firsts.copy()
        lasts[codes] = entries  # of several, the last one stays
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
        """What was collected."""
        return tuple(
            NumberSpan(table.decode(), region.decode(), self._file, *span)
            for (table, region), span in self._spans.items()
        )


def in_order(spans: Iterable[NumberSpan]) -> list[NumberSpan]:
    """Spans of one region after the other, each region's by number."""
    return sorted(spans, key=lambda span: (span.table, span.region, span.first, span.last))

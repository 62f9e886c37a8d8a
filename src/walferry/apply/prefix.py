"""What a log began with when it was still being written, and was sent from it then; see `replay.ahead`."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from walferry.formats.cells import gather
from walferry.formats.wal import EntryBatch


@dataclass(frozen=True)
class Sent:
    """Entries of an open file that were sent: those of `regions` (encoded names) that end at or before `end`.

    `crc` is the CRC-32 of all entries up to there, `tables` those of which something was, or may have been, sent.
    """

    end: int
    crc: int
    tables: frozenset[str]
    regions: frozenset[str]


class Prefix:
    """The length of a file's beginning and the CRC-32 of its entries, as plain ones, while they are read."""

    def __init__(self) -> None:
        self.end = 0
        """in the file, bytes"""
        self.crc = 0

    def add(self, batch: EntryBatch, most: int | None = None) -> None:
        """The next entries of the file; of them those that end at or before `most`."""
        count = len(batch) if most is None else int(np.searchsorted(batch.offset_end, most, side="right"))
        if not count:
            return
        start, end = batch.start[:count], batch.end[:count]
        if (start[1:] == end[:-1]).all():
            entries = batch.buffer[int(start[0]) : int(end[-1])]
        else:
            entries = gather(batch.buffer, start, end)
        self.crc = zlib.crc32(entries.data, self.crc)
        self.end = int(batch.offset_end[count - 1])

    def is_that_of(self, sent: Sent) -> bool:
        """Whether the file begins as it did when it was open."""
        return (self.end, self.crc) == (sent.end, sent.crc)

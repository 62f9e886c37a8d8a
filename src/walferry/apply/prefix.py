"""What an open log began with, and what was sent of it before it was sealed; see `replay.rounds.open_logs`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from walferry.formats.cells import gather
from walferry.formats.wal import EntryBatch


@dataclass(frozen=True)
class Sent:
    """Entries of an open file that were sent: those of `regions` (encoded names) that end at or before `end`.

    `shown`: how the file began each time it was read, as length and CRC-32 of all entries up to there. `tables`: tables
    with entries that were, or may have been, sent.
    """

    end: int
    shown: tuple[tuple[int, int], ...]
    tables: frozenset[str]
    regions: frozenset[str]


def taken_back(name: str, shown: Sequence[tuple[int, int]]) -> str:
    """The reason for a mark: a file was sealed with other bytes than it had shown."""
    return (
        f"edits that the source has lost: {name} had shown {max(end for end, _ in shown)} bytes, but was sealed "
        "with different ones: its server or its data nodes died before those bytes were safe"
    )


def not_known(name: str, shown: Sequence[tuple[int, int]], why: str) -> str:
    """The reason for a mark: nobody can check whether a file was sealed with the bytes that it had shown."""
    return (
        f"edits that the source has lost: {max(end for end, _ in shown)} bytes of {name} were sent while it was "
        f"open, and it is unknown whether it was sealed with them, since {why}"
    )


class Prefix:
    """Measures a file's beginning as it is read: its length, and the CRC-32 of its entries in plain form."""

    def __init__(self) -> None:
        self.end = 0
        """end of the beginning, as an offset in the file in bytes"""
        self.crc = 0

    def add(self, batch: EntryBatch, most: int | None = None) -> None:
        """Add the file's next entries, up to those that end at or before `most`."""
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


class Beginning:
    """Compares a file's beginning, as it is read, with the bytes that the file had shown while it was open."""

    def __init__(self, shown: Sequence[tuple[int, int]]) -> None:
        self._shown = shown
        self._prefixes = [Prefix() for _ in shown]

    def add(self, batch: EntryBatch) -> bool:
        """Add the file's next entries. Returns whether more entries are needed."""
        for prefix, (end, _) in zip(self._prefixes, self._shown, strict=True):
            prefix.add(batch, end)
        return not len(batch) or int(batch.offset_end[-1]) < max((end for end, _ in self._shown), default=0)

    @property
    def is_same(self) -> bool:
        """Whether the file begins as it had shown, each time."""
        return all((prefix.end, prefix.crc) == shown for prefix, shown in zip(self._prefixes, self._shown, strict=True))

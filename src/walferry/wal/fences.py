"""Fences: the positions in the log, one per WAL group, between which every edit belongs to a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class InGroup(Protocol):
    """A file's place in the log: its WAL group, and the number that orders the files of a group."""

    @property
    def group(self) -> str: ...

    @property
    def number(self) -> int: ...


class Listed(InGroup, Protocol):
    """A file whose length in bytes is known."""

    @property
    def length(self) -> int: ...


File = TypeVar("File", bound=InGroup)

CLOCKS_APART_MS = 60_000
"""between two region servers, at most: the master admits one whose clock differs from its own by up to 30 s
(hbase.master.maxclockskew)"""


@dataclass(frozen=True)
class Fences:
    """Where a run's part of the log begins and ends.

    `start` and `end` map each WAL group to (number of a file, byte in it): the first position that belongs to the run,
    and the first after the run. A fence that is not set names no group. A group that the start fence lacks started
    after that fence: all of its files belong to the run. A group that the end fence lacks ended before the end fence if
    the start fence names it or the run knows files of it (`known`); otherwise it started after the end fence.
    """

    start: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    end: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    started_ms: int = 0
    """the lowest file number in the start fence among groups that were alive: the time by the servers' slowest clock"""

    def starts_by(self, file: InGroup) -> bool:
        """Whether the file is at or after the start fence."""
        return file.number >= self.start.get(file.group, (0, 0))[0]

    def is_past_end(self, file: InGroup) -> bool:
        """Whether the whole file is past the end fence; False while no end fence is set."""
        if not self.end:
            return False
        if file.group in self.end:
            return (file.number, 0) >= self.end[file.group]
        return file.group not in self.known and file.group not in self.start

    def is_late(self, file: InGroup) -> bool:
        """Whether the whole file was written past the end fence. If no fence names the file's group, the file's number
        decides, since it is the time of the file's creation: somebody may have put back an old log."""
        known = file.group in self.start or file.group in self.end
        return self.is_past_end(file) and (known or file.number >= self.started_ms - CLOCKS_APART_MS)

    def holds(self, file: InGroup) -> bool:
        """Whether any of the file is between the fences."""
        return self.starts_by(file) and not self.is_past_end(file)

    def bytes_before_end(self, file: Listed) -> int:
        """How many of the file's bytes are before the end fence."""
        if self.is_past_end(file):
            return 0
        number, offset = self.end.get(file.group, (file.number + 1, 0))
        return offset if number == file.number else file.length

    def within(self, files: Iterable[File]) -> list[File]:
        """Those of the files that are between the fences, at least in part."""
        return [file for file in files if self.holds(file)]

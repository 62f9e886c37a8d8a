"""What is known of a region while its entries are put in order: its stays, and the entries that wait in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from walferry.apply.region_events import Origin
from walferry.formats.wal import EntryBatch

NEVER = -1
"""the number of a region of which nothing was passed on"""
EVERY = 2**63 - 1


class LogPlace(NamedTuple):
    """A place in a WAL group: the number of a file, and an offset in bytes."""

    number: int
    offset: int


BEFORE = Origin(b"", -1)
"""of a region that was there when the stream of its table began, and of which nothing else is known"""


@dataclass(frozen=True)
class Taken:
    """Entries of one WAL file, in its order: those of followed tables that hold data, openings and closings."""

    group: str
    server: str
    number: int
    """of the file"""
    batch: EntryBatch
    picked: npt.NDArray[np.intp]
    """the entries, by their number in the batch"""
    sealed: bool
    """the file is sealed, and has all of these entries"""

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.group}.{self.number}"

    def first(self) -> LogPlace:
        """Where the first of the entries begins."""
        return LogPlace(self.number, int(self.batch.offset[self.picked[0]]))

    def only(self, which: npt.NDArray[np.intp]) -> Taken:
        """The same, with these entries of the batch."""
        return replace(self, picked=which)


@dataclass(frozen=True)
class Opened:
    """A region goes on in a new stay: what it opened with counts from here on."""

    table: str
    region: str
    number: int
    """of the opening, or of the first entry that was read after it"""
    incarnation: int
    begins: bool = False
    """the first region of the table in this incarnation"""


@dataclass
class Stay:
    server: str
    opened: int
    """the number of its opening, or of the first entry that was read of it"""
    since_ms: int
    """when that was written, by its server's clock"""
    seen: int
    """the pass that has read it"""
    began: tuple[str, LogPlace] | None = None
    """where its opening is; None if that was not read"""
    closed: int | None = None
    over: bool = False
    """a later stay follows it: everything of it was read"""
    waiting: list[Taken] = field(default_factory=list)


@dataclass
class RegionStays:
    table: str
    sent: int = NEVER
    """the number of the last entry passed on"""
    incarnation: int = 0
    current: bool = False
    """whether entries of the first stay may be passed on"""
    stays: list[Stay] = field(default_factory=list)
    held_from: dict[str, LogPlace] | None = None
    """of a held region: for each WAL group, its first entry that was not passed on"""

    @property
    def is_busy(self) -> bool:
        if self.held_from is not None or len(self.stays) > 1:
            return True
        return bool(self.stays) and (not self.current or bool(self.stays[0].waiting))

    @property
    def is_open(self) -> bool:
        """Whether its last stay was not closed, as far as it was read."""
        return bool(self.stays) and self.stays[-1].closed is None

    def places(self) -> Iterator[tuple[str, LogPlace]]:
        """The first entry that waits in each part of the log; openings wait until their stay is current."""
        yield from (self.held_from or {}).items()
        yield from ((taken.group, taken.first()) for stay in self.stays for taken in stay.waiting)
        yield from (stay.began for stay in self.stays[self.current :] if stay.began is not None)

    @property
    def has_closed(self) -> bool:
        """Whether one of its stays has closed, or it is held."""
        return self.held_from is not None or any(stay.closed is not None for stay in self.stays)

    @property
    def age(self) -> tuple[int, int]:
        """Orders regions that are not passed on yet: numbers do not, since a new history may begin in between."""
        first = min(self.stays, key=lambda stay: stay.opened, default=Stay("", 0, 0, 0))
        return first.since_ms, first.opened

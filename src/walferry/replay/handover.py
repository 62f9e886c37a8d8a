"""Where each region is, as the open logs show it, and so of which entries the order is known.

At a cut each region that stands still is open on one server, whose log has all of its edits since then, in order. A
move shows in the log itself: the old server writes a closing, the new one an opening, and a region's numbers rise
across both. So what follows an opening comes right after everything up to a closing if no opening of another server
can lie between them: each opening takes two numbers (the one that hbase:meta gets to know, and that of its marker), and
it logs a closing or an edit before the next one rises above it (HRegion.initializeInternals, writeRegionCloseMarker).
An opening whose server left neither has the number of the next one, and nothing to put in order.

What follows an opening waits for that closing, which was written before: the next pass over the other open logs shows
it. If it doesn't (its server has died, its log was rolled), the order is not known, and the region is left to the next
round. So is each region that was not there at the cut, a daughter or a merged one, and one that opens without a store
file that it had, since its table was restored from a snapshot (`replay.lineage`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from walferry.apply.by_group import Part
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.replay.cut import line_at

NEXT_NUMBERS = 3
"""an opening's marker is at most so far above the closing before it: by two wherever it was tried, from 1.7.2 to 2.6.3
(tests/versions/test_moves.py). Another opening between them would put it at five or more"""
MOST_WAITING_BYTES = 32 << 20
"""of batches whose entries wait; then the regions are left to the next round"""


@dataclass
class _Stay:
    """A region on a server, from an opening on that cannot be put in order yet."""

    server: str
    opened: int
    closed: int | None = None
    parts: list[Part] = field(default_factory=list)
    has_waited: bool = False
    """through the rest of a pass: the next one reads all other logs after it was seen"""


class Handover:
    """Puts entries of open logs in order, region by region. One per cut.

    `left` are the regions of which something was not passed on, and nothing will be; `moved` those that have opened or
    closed since the cut.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        held: Collection[str] = (),
        continues: Callable[[str], bool] = lambda region: True,
    ) -> None:
        """`servers`: on which one each region stood still during the cut. Of those that are `held` nothing is passed
        on, nor left. `continues`: whether a region that has closed and opened again still holds what it held before; if
        not, it is left."""
        self._continues = continues
        self._at = dict(servers)
        """regions that are open there, everything before having been passed on"""
        self._opened: dict[str, int] = {}
        """of those of them that have moved, the number of the opening"""
        self._closed: dict[str, int] = {}
        """regions everything of which was passed on, up to this closing"""
        self._stays: dict[str, list[_Stay]] = {}
        self._known = frozenset(servers)
        self._held = frozenset(held)
        self._left_files: set[str] = set()
        self.left: set[str] = set()
        self.moved: set[str] = set()

    @property
    def still(self) -> frozenset[str]:
        """The regions that have not moved, and everything of which was passed on."""
        return self._known - self.moved - self.left - self._held

    @property
    def followed(self) -> dict[str, str]:
        """The lines of regions that have moved, and everything of which was passed on up to now (`replay.cut`): the
        log numbers an opening one above what hbase:meta gets to know."""
        return {
            region: line_at(self._at[region], number - 1)
            for region, number in self._opened.items()
            if region in self._at and region not in self._stays
        }

    @property
    def waits(self) -> bool:
        """Whether something waits."""
        return any(True for _ in self._waiting())

    def is_behind(self, file: str) -> bool:
        """Whether something of a log was left, or waits."""
        return file in self._left_files or any(part.file == file for part in self._waiting())

    def leave(self, region: str) -> None:
        """Pass on nothing more of a region."""
        if region in self._held:
            return
        self.left.add(region)
        self._at.pop(region, None)
        self._closed.pop(region, None)
        self._left_files |= {part.file for stay in self._stays.pop(region, []) for part in stay.parts}

    def take(self, server: str, file: str, batch: EntryBatch, edits: np.ndarray) -> list[Part]:
        """Take the next entries of a server's log. Returns what can be passed on now, to be sent in this order.

        `edits`: bool[n], the entries that are edits of tables which are followed.
        """
        opening, closing = batch.marker == Marker.REGION_OPEN, batch.marker == Marker.REGION_CLOSE
        names = [name.decode() for name in batch.regions]
        goes = np.array([self._goes(name, server) for name in names] or [False])
        passed = edits & goes[batch.region] if len(batch) else edits
        after: dict[str, list[Part]] = defaultdict(list)
        for code in np.unique(batch.region[(edits & ~passed) | opening | closing]).tolist():
            region = names[code]
            mine = batch.region == code
            passed &= ~mine
            if region in self._held or not (region in self._known or (edits & mine).any()):
                continue
            entries = np.flatnonzero(mine & (edits | opening | closing))
            markers = np.flatnonzero((opening | closing)[entries])
            for some in np.split(entries, markers):  # each but the first begins with a marker
                if len(some) and not edits[some[0]]:
                    marker, some = some[0], some[1:]
                    number = int(batch.sequence_number[marker])
                    after[region] += self._event(server, region, number, is_opening=bool(opening[marker]))
                if len(some):
                    self._edits(server, Part(file, batch, some), region, passed, after[region])
        self._bound()
        first = [Part(file, batch, np.flatnonzero(passed))] if passed.any() else []
        return [*first, *(part for parts in after.values() for part in parts)]

    def end_pass(self) -> None:
        """All open logs were read to their ends. What has waited since the pass before is left."""
        for region, stays in list(self._stays.items()):
            if any(stay.parts and stay.has_waited for stay in stays):
                self.leave(region)
            for stay in stays:
                stay.has_waited = True

    def _goes(self, region: str, server: str) -> bool:
        """Whether what a server logs of a region can be passed on, unless a marker comes before it."""
        return self._at.get(region) == server and region not in self._stays and region not in self._held

    def _edits(self, server: str, part: Part, region: str, passed: np.ndarray, after: list[Part]) -> None:
        """Edits of a region between two of its markers."""
        stay = self._stay(region, server)
        if stay is not None:
            stay.parts.append(part)
        elif self._at.get(region) != server:
            self._left_files.add(part.file)
            self.leave(region)
        elif after:  # something of another log comes before
            after.append(part)
        else:
            passed[part.picked] = True

    def _event(self, server: str, region: str, number: int, *, is_opening: bool) -> list[Part]:
        """A region opens or closes; what can be passed on because of that."""
        if region not in self._known or region in self.left:
            return []
        self.moved.add(region)
        if is_opening:
            self._stays.setdefault(region, []).append(_Stay(server, number))
        elif (stay := self._stay(region, server)) is not None:
            stay.closed = number
        elif self._at.get(region) == server:
            del self._at[region]
            self._closed[region] = number
        return self._go_on(region)

    def _go_on(self, region: str) -> list[Part]:
        """Go on from the last closing with each opening that comes right after it; what can be passed on then."""
        found: list[Part] = []
        stays = self._stays.get(region, [])
        while (closed := self._closed.get(region)) is not None:
            stay = next((stay for stay in stays if closed < stay.opened <= closed + NEXT_NUMBERS), None)
            if stay is None:
                break
            if not self._continues(region):
                self.leave(region)
                break
            stays.remove(stay)
            found += stay.parts
            del self._closed[region]
            if stay.closed is None:
                self._at[region], self._opened[region] = stay.server, stay.opened
            else:
                self._closed[region] = stay.closed
        if not stays:
            self._stays.pop(region, None)
        return found

    def _stay(self, region: str, server: str) -> _Stay | None:
        """Where edits that a server logs of a region belong if its opening waits."""
        stays = self._stays.get(region, [])
        return next((stay for stay in reversed(stays) if stay.server == server and stay.closed is None), None)

    def _waiting(self) -> Iterator[Part]:
        return (part for stays in self._stays.values() for stay in stays for part in stay.parts)

    def _bound(self) -> None:
        batches = {id(part.batch): part.batch.buffer.nbytes for part in self._waiting()}
        if sum(batches.values()) > MOST_WAITING_BYTES:
            for region in list(self._stays):
                self.leave(region)

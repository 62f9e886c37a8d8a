"""Where each region is, as the open logs show it, and so of which entries the order is known.

At a cut each region that stands still is open on one server, whose log has all of its edits since then, in order. A
move shows in the log itself: the old server writes a closing, the new one an opening, and a region's numbers rise
across both. So what follows an opening comes right after everything up to a closing if no opening of another server
can lie between them: each opening takes two numbers (the one that hbase:meta gets to know, and that of its marker), and
it logs a closing or an edit before the next one rises above it (HRegion.initializeInternals, writeRegionCloseMarker).
An opening whose server left neither has the number of the next one, and nothing to put in order.

What follows an opening waits for that closing, which was written before: the next pass over the other open logs shows
it. If it doesn't (its server has died), the order is not known, and the region is left to the next round. So is each
region that was not there at the cut, a daughter or a merged one, and one that opens without a store file that it had,
since its table was restored from a snapshot (`replay.log.lineage`).

A region of which a batch applies something waits for that batch (`take_up`), and then goes on with what its logs have
shown since the cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from walferry.apply.by_group import Part
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.replay.log.cut import line_at, server_of

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
    """Puts entries of open logs in order, region by region.

    `left` are the regions of which something was not passed on, and nothing will be until they are taken up again.
    """

    def __init__(
        self,
        lines: Mapping[str, str],
        held: Collection[str] = (),
        continues: Callable[[str], bool] = lambda region: True,
    ) -> None:
        """`lines`: of each region that stood still during the cut (`log.cut`). Of those that are `held` nothing is
        passed on, nor left. `continues`: whether a region that has closed and opened again still holds what it held
        before; if not, it is left."""
        self._continues = continues
        self._at = {region: server_of(line) for region, line in lines.items()}
        """regions that are open there, everything before having been passed on"""
        self._closed: dict[str, int] = {}
        """regions everything of which was passed on, up to this closing"""
        self._stays: dict[str, list[_Stay]] = {}
        self._lines: dict[str, list[str]] = {region: [line] for region, line in lines.items()}
        """those that each known region has had, one after the other"""
        self._for_batch: set[str] = set()
        """regions that wait for a batch, with their first stay"""
        self._held = set(held)
        self._left_files: set[str] = set()
        self.left: set[str] = set()

    @property
    def whole(self) -> frozenset[str]:
        """The regions everything of which was passed on, as far as the logs were read."""
        return frozenset(self._lines.keys() - self.left - self._held - self._stays.keys())

    def lines(self, region: str) -> Sequence[str]:
        """The lines that a region has had, the present one last, if it is not closed now: the log numbers an opening
        one above what hbase:meta gets to know."""
        return self._lines.get(region, ())

    @property
    def waits(self) -> bool:
        """Whether something waits."""
        return any(True for _ in self._waiting())

    @property
    def awaits_closing(self) -> bool:
        """Whether a region has opened that was not seen to close before."""
        return bool(self._stays.keys() - self._for_batch)

    def take_up(self, whole: Mapping[str, str], others: Mapping[str, str], held: Collection[str]) -> None:
        """Go on after a cut whose batch has everything that was not passed on. Each region with its line at the cut.

        `whole`: regions that go on as they are. `others`: those that wait for the batch, and of which everything since
        the cut is to be taken (`take`). Of all other regions nothing is known any more. `held`: as at first.
        """
        for region in self._lines.keys() - whole.keys():
            self._forget(region)
        for region, line in whole.items():
            lines = self._lines[region]
            self._lines[region] = lines[lines.index(line) :]
        for region, line in others.items():
            self._lines[region] = [line]
            self._stays[region] = [_Stay(server_of(line), 0)]
        self._for_batch = set(others)
        self._held = set(held)
        self._left_files.clear()
        self.left.clear()

    def batch_done(self) -> list[Part]:
        """The batch is applied. Returns what can be passed on now."""
        found: list[Part] = []
        waited, self._for_batch = self._for_batch, set()
        for region in sorted(waited & self._stays.keys()):
            stay, *later = self._stays.pop(region)
            found += stay.parts
            if stay.closed is None:
                self._at[region] = stay.server
            else:
                self._closed[region] = stay.closed
            for one in later:
                one.has_waited = False
            if later:
                self._stays[region] = later
                found += self._go_on(region)
        return found

    def hold(self, regions: Collection[str]) -> None:
        """Pass on nothing more of regions that are held from now on."""
        for region in set(regions) - self._held:
            self._forget(region)
            self._held.add(region)

    def _forget(self, region: str) -> None:
        for known in (self._at, self._closed, self._stays, self._lines):
            known.pop(region, None)
        self._for_batch.discard(region)

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
        self._for_batch.discard(region)
        self._left_files |= {part.file for stay in self._stays.pop(region, []) for part in stay.parts}

    def take(
        self, server: str, file: str, batch: EntryBatch, edits: np.ndarray, again: np.ndarray | None = None
    ) -> list[Part]:
        """Take the next entries of a server's log. Returns what can be passed on now, to be sent in this order.

        `edits`: bool[n], the entries that are edits of tables which are followed. `again`: bool[n], those that were
        taken before.
        """
        opening, closing = batch.marker == Marker.REGION_OPEN, batch.marker == Marker.REGION_CLOSE
        if again is not None:
            edits, opening, closing = edits & ~again, opening & ~again, closing & ~again
        names = [name.decode() for name in batch.regions]
        goes = np.array([self._goes(name, server) for name in names] or [False])
        passed = edits & goes[batch.region] if len(batch) else edits
        after: dict[str, list[Part]] = defaultdict(list)
        for code in np.unique(batch.region[(edits & ~passed) | opening | closing]).tolist():
            region = names[code]
            mine = batch.region == code
            passed &= ~mine
            if region in self._held or not (region in self._lines or (edits & mine).any()):
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
            if region in self._for_batch:
                continue
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
        if region not in self._lines or region in self.left:
            return []
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
            self._lines[region].append(line_at(stay.server, stay.opened - 1))
            if stay.closed is None:
                self._at[region] = stay.server
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

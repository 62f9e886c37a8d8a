"""Which entries of open logs may be sent: those whose order is known, since the logs show which server has each region.

At a cut each region that stands still is open on one server, whose log has all of the region's later edits in order.
The log itself shows a move: the old server writes a closing, the new one an opening, and the region's numbers rise
across both. So the entries after an opening directly continue those up to a closing if no opening of another server
can lie between the two. Each opening takes two numbers (the one in hbase:meta, and that of its marker), and its server
logs a closing or an edit before the next opening gets a higher number (HRegion.initializeInternals,
writeRegionCloseMarker). If a server logs neither, the next opening has the same number, and there is nothing to order.

Entries after an opening wait for the closing before it. That closing was written earlier, so the next pass over the
other open logs shows it. If the pass does not show it (the closing's server has died), the order is unknown, and the
region is left to the next round. The same goes for a region that did not exist at the cut (a daughter or a merged
region), and for a region that opens without a store file that it had, because its table was restored from a snapshot
(`replay.log.lineage`).

If a batch applies edits of a region, the region waits for that batch (`take_up`). Then it goes on with the entries that
its logs have shown since the cut.
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
"""the most by which the number of an opening's marker exceeds the number of the closing before it. Every release that
was tried, from 1.7.2 to 2.6.3, uses two (tests/versions/test_moves.py); another opening in between would make it five
or more"""
MOST_WAITING_BYTES = 32 << 20
"""most bytes of batches with waiting entries; beyond that, the regions are left to the next round"""


@dataclass
class _Stay:
    """A region on a server, starting with an opening that cannot be put in order yet."""

    server: str
    opened: int
    closed: int | None = None
    parts: list[Part] = field(default_factory=list)
    has_waited: bool = False
    """the stay has waited through the rest of a pass: the next pass reads all other logs after the opening was seen"""


class Sendable:
    """Puts entries of open logs in order, region by region.

    `left`: regions with an entry that was not passed on. Nothing of them is passed on until they are taken up again.
    """

    def __init__(
        self,
        lines: Mapping[str, str],
        held: Collection[str] = (),
        continues: Callable[[str], bool] = lambda region: True,
    ) -> None:
        """`lines`: the line of each region that stood still during the cut (`log.cut`). `held`: regions that are
        neither passed on nor left. `continues`: whether a region that has closed and opened again still has its old
        data; if not, the region is left."""
        self._continues = continues
        self._at = {region: server_of(line) for region, line in lines.items()}
        """the server of each open region whose earlier entries were all passed on"""
        self._closed: dict[str, int] = {}
        """the closing of each closed region whose entries were all passed on up to there"""
        self._stays: dict[str, list[_Stay]] = {}
        self._lines: dict[str, list[str]] = {region: [line] for region, line in lines.items()}
        """the lines that each known region has had, in order"""
        self._for_batch: set[str] = set()
        """regions whose first stay waits for a batch"""
        self._held = set(held)
        self._left_files: set[str] = set()
        self.left: set[str] = set()

    @property
    def whole(self) -> frozenset[str]:
        """The regions whose entries were all passed on, as far as the logs were read."""
        return frozenset(self._lines.keys() - self.left - self._held - self._stays.keys())

    def lines(self, region: str) -> Sequence[str]:
        """The lines that a region has had, in order; unless the region is closed now, the last one is current. (The log
        numbers an opening one above the open sequence number in hbase:meta.)"""
        return self._lines.get(region, ())

    @property
    def waits(self) -> bool:
        """Whether any entries wait."""
        return any(True for _ in self._waiting())

    @property
    def awaits_closing(self) -> bool:
        """Whether a region has opened whose closing was not seen yet."""
        return bool(self._stays.keys() - self._for_batch)

    def take_up(self, whole: Mapping[str, str], others: Mapping[str, str], held: Collection[str]) -> None:
        """Go on after a cut whose batch has every entry that was not passed on. Regions come with their lines at the
        cut.

        `whole`: regions that go on without a break. `others`: regions that wait for the batch; give all of their
        entries since the cut to `take`. All other regions are forgotten. `held`: as in the constructor.
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
        """The batch is applied. Returns the parts that can be passed on now."""
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
        """Hold regions from now on: pass on nothing more of them."""
        for region in set(regions) - self._held:
            self._forget(region)
            self._held.add(region)

    def _forget(self, region: str) -> None:
        for known in (self._at, self._closed, self._stays, self._lines):
            known.pop(region, None)
        self._for_batch.discard(region)

    def is_behind(self, file: str) -> bool:
        """Whether entries of a log were left, or wait."""
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
        """Take the next entries of a server's log. Returns the parts that can be passed on now, in the order to send.

        `edits`: bool[n], the entries that are edits of followed tables. `again`: bool[n], the entries that were taken
        before.
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
            for some in np.split(entries, markers):  # each slice except the first begins with a marker
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
        """All open logs were read to their ends. Leave regions whose entries have waited since the previous pass."""
        for region, stays in list(self._stays.items()):
            if region in self._for_batch:
                continue
            if any(stay.parts and stay.has_waited for stay in stays):
                self.leave(region)
            for stay in stays:
                stay.has_waited = True

    def _goes(self, region: str, server: str) -> bool:
        """Whether a region's entries on a server can be passed on, unless a marker comes before them."""
        return self._at.get(region) == server and region not in self._stays and region not in self._held

    def _edits(self, server: str, part: Part, region: str, passed: np.ndarray, after: list[Part]) -> None:
        """Edits of a region between two of its markers."""
        stay = self._stay(region, server)
        if stay is not None:
            stay.parts.append(part)
        elif self._at.get(region) != server:
            self._left_files.add(part.file)
            self.leave(region)
        elif after:  # entries of another log come first
            after.append(part)
        else:
            passed[part.picked] = True

    def _event(self, server: str, region: str, number: int, *, is_opening: bool) -> list[Part]:
        """A region opens or closes. Returns the parts that can therefore be passed on."""
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
        """Starting at the last closing, put in order each opening that directly follows. Returns the parts to pass on
        now."""
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
        """The stay for a region's edits on a server if its opening there waits."""
        stays = self._stays.get(region, [])
        return next((stay for stay in reversed(stays) if stay.server == server and stay.closed is None), None)

    def _waiting(self) -> Iterator[Part]:
        return (part for stays in self._stays.values() for stay in stays for part in stay.parts)

    def _bound(self) -> None:
        batches = {id(part.batch): part.batch.buffer.nbytes for part in self._waiting()}
        if sum(batches.values()) > MOST_WAITING_BYTES:
            for region in list(self._stays):
                self.leave(region)

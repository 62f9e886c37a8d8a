"""Puts the log's entries in the order of each region, and passes on only what the source has acknowledged.

A region's entries are numbered in the order in which they were made, through moves, splits and merges. Within one
server's log they are in that order. A **stay** is the part of a region's history on one server, between an opening and
the next one. Within the current stay entries are passed on as they are read. What follows it is known in two ways:

1. Its closing was read, and the number of an opening follows directly (`replay.rounds.sendable` says why no other
   opening can lie between the two).
2. After an opening was read, a whole pass over the log began and ended. A region opens only after it has closed, or
   after its dead server's log has been split. So whatever has a lower number was in the log before that pass began, and
   the pass has read it. A pass counts only if it has read every log to its end, and no log is being split.

A region that was not known before (a daughter, a merged region) waits for such a pass, and for the regions that had its
rows before.

An event cannot be recalled, so an entry of an open log waits until the source has acknowledged it: until its number is
at or below the read point that its server tells for the region, or until the file is sealed with the entry in it, or
until the region has closed there in order and opened elsewhere. When a file is sealed with fewer bytes than it had
shown, the entries past its end were never acknowledged, and are dropped.

A region that is not known starts over if it opens with the first number of all: the table was truncated, or created
again. So it does if one of its rows has had a number as high already. (Before 2.0 a daughter that takes over no file
may open with any low number.) Its **incarnation** is then one higher than that of the regions that had its rows before,
and it waits until nothing of the former incarnation waits in the whole table. Of a region that was split before anybody
looked it up, the rows are unknown, and so is which regions had them before: not those that were made with it or later.

Each entry is passed on once: what is at or below the last number passed on, in the part of the log that was read
before, is known. In another part of the log it is repeated (`streams.ordering.repeated`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from walferry.apply.region_events import Origin
from walferry.formats.markers import Marker
from walferry.replay.log.lineage import FIRST_SEQUENCE
from walferry.replay.rounds.sendable import NEXT_NUMBERS
from walferry.streams.ordering.stays import BEFORE, EVERY, NEVER, LogPlace, Opened, RegionStays, Stay, Taken

TOGETHER_MS = 500
"""regions of a table whose ids differ by less are taken for those of one creation or truncation, unless they have the
same first row"""
Asked = tuple[str, str]
"""a server and the encoded name of a region"""


class RegionOrder:
    """The order of each region's entries, over many passes over the log."""

    def __init__(
        self,
        before: Mapping[str, LogPlace] | None = None,
        share_rows: Callable[[str, str], bool | None] = lambda one, other: None,
        first_number: int = FIRST_SEQUENCE,
        held_tables: Collection[str] = (),
        origin: Callable[[str], Origin | None] = lambda region: None,
    ) -> None:
        """`before`: for each WAL group, how far it was read when the known numbers were recorded. `share_rows`: whether
        two regions of a table have a row in common; None if unknown. `first_number`: a region that opens at or below it
        was created from scratch; -1 if the source's numbers do not tell. `held_tables`: regions of them that are
        not known yet are held from their first entry. `origin`: what a region's name says; None if
        unknown."""
        self._before = dict(before or {})
        self._share_rows = share_rows
        self._first_number = first_number
        self._held_tables = frozenset(held_tables)
        self._origin = origin
        self._not_begun: set[str] = set()
        """regions that were first seen while their table is held"""
        self._regions: dict[str, RegionStays] = {}
        self._busy: set[str] = set()
        self._pass = 0
        self._repeated: list[Taken] = []
        self.taken_back = 0
        """entries that a file had shown and was sealed without"""

    def know(self, table: str, region: str, server: str, sent: int = NEVER, incarnation: int = 0) -> None:
        """A region whose entries up to `sent` were all passed on, the last of them on `server` ("": unknown)."""
        stays = [Stay(server, sent, 0, 0)] if server else []
        self._regions[region] = RegionStays(table, sent, incarnation, current=bool(stays), stays=stays)

    def sent(self) -> dict[str, tuple[str, str, int, int]]:
        """For each known region its table, the server of the stay that is passed on ("" for none), the number of the
        last entry passed on, and the incarnation. Of regions that were first seen while their table is held, nothing is
        known yet."""
        return {
            name: (
                known.table, known.stays[0].server if known.current and known.stays else "", known.sent,
                known.incarnation,
            )
            for name, known in self._regions.items() if name not in self._not_begun
        }  # fmt: skip

    def incarnation(self, region: str) -> int:
        """The incarnation of a known region."""
        return self._regions[region].incarnation

    def forget_gone(self, table: str, present: Collection[str]) -> None:
        """Forget the regions of a table that no longer exist, given those that do, so that positions do not grow with
        every split.

        A region is kept until all present ones that have its rows have begun: they know its last number. Call this only
        while nothing is unsent: the entries of a forgotten region would count as new if they were read again.
        """
        begun = {name for name in present if name in self._regions and name not in self._busy}
        for name, region in list(self._regions.items()):
            if region.table == table and name not in present and name not in self._busy:
                heirs = {other for other in present if self._share_rows(name, other) is not False}
                if heirs and heirs <= begun:
                    del self._regions[name]

    def hold(self, region: str, refused: Mapping[str, LogPlace], sent: int) -> None:
        """Pass on nothing more of a region: its last entry that was sent has the number `sent`. `refused`: for each WAL
        group, the first entry that was passed on after it."""
        known = self._regions[region]
        held = dict(refused)
        for group, place in known.places():
            held[group] = min(place, held.get(group, place))
        known.held_from, known.sent = held, sent
        known.stays, known.current = [], False
        self._busy.add(region)

    def asks(self, taken: Sequence[Taken]) -> list[Asked]:
        """Whose read points decide which of these entries, and of those that wait, may be passed on."""
        found: dict[Asked, None] = {}
        for one in taken:
            if not one.sealed and len(one.picked):
                for code in np.unique(one.batch.region[one.picked[one.batch.holds_data[one.picked]]]).tolist():
                    found[one.server, one.batch.regions[code].decode()] = None
        for name in self._busy:
            known = self._regions[name]
            if known.current and any(not waiting.sealed for waiting in known.stays[0].waiting):
                found[known.stays[0].server, name] = None
        return list(found)

    def take_repeated(self) -> list[Taken]:
        """The entries, since the last call, at or below the last number passed on, that had not been read before."""
        repeated, self._repeated = self._repeated, []
        return repeated

    def seal(self, group: str, number: int, length: int) -> None:
        """A file is sealed with so many bytes: drop the entries that wait past its end."""
        for name in self._busy:
            for stay in self._regions[name].stays:
                stay.waiting = [kept for one in stay.waiting if (kept := self._sealed(one, group, number, length))]

    def _sealed(self, one: Taken, group: str, number: int, length: int) -> Taken | None:
        if (one.group, one.number) != (group, number) or one.sealed:
            return one
        stays = one.picked[one.batch.offset_end[one.picked] <= length]
        self.taken_back += len(one.picked) - len(stays)
        return replace(one, picked=stays, sealed=True) if len(stays) else None

    def pass_on(self, taken: Sequence[Taken], read_points: Mapping[Asked, int], *, whole: bool) -> list[Taken | Opened]:
        """The entries that can be passed on after a pass that has read `taken`, in the order to send them.

        `read_points`: the answers to `asks`; no answer: the server does not have the region. `whole`: the pass has read
        every log to its end, and no log is being split.
        """
        self._pass += 1
        found: list[Taken | Opened] = []
        for name in sorted(self._busy):
            self._go_on(name, read_points, found)
        for one in taken:
            self._take(one, read_points, found)
        self._find_successors(read_points, found, whole=whole)
        return found

    def unsent(self) -> dict[str, LogPlace]:
        """For each WAL group the first entry that was read but not passed on; groups without one are left out."""
        found: dict[str, LogPlace] = {}
        for name in self._busy:
            for group, place in self._regions[name].places():
                found[group] = min(place, found.get(group, place))
        return found

    def waiting_tables(self) -> frozenset[str]:
        """The tables with entries that were read but not passed on."""
        return frozenset(known.table for name in self._busy if any((known := self._regions[name]).places()))

    def open_files(self) -> set[tuple[str, int]]:
        """The files, by WAL group and number, with entries that wait to be acknowledged or sealed."""
        return {
            (one.group, one.number)
            for name in self._busy for stay in self._regions[name].stays for one in stay.waiting if not one.sealed
        }  # fmt: skip

    @property
    def waiting_bytes(self) -> int:
        """Bytes of memory of the entries that wait."""
        batches = {
            id(one.batch): one.batch.buffer.nbytes
            for name in self._busy for stay in self._regions[name].stays for one in stay.waiting
        }  # fmt: skip
        return sum(batches.values())

    def _take(self, one: Taken, read_points: Mapping[Asked, int], found: list[Taken | Opened]) -> None:
        batch, picked = one.batch, one.picked
        if not len(picked):
            return
        codes, numbers = batch.region[picked], batch.sequence_number[picked]
        edits = batch.holds_data[picked]
        present = np.unique(codes)
        size = int(present[-1]) + 1
        goes, sent, acknowledged = np.zeros(size, bool), np.zeros(size, np.int64), np.full(size, EVERY)
        moves = set(np.unique(codes[~edits]).tolist())
        for code in present.tolist():
            name = batch.regions[code].decode()
            known = self._regions.get(name)
            if known is None:
                table = batch.tables[batch.table[picked[codes == code][0]]].decode()
                known = self._regions[name] = RegionStays(table)
                if table in self._held_tables:
                    known.held_from = {}
                    self._not_begun.add(name)
                self._busy.add(name)
            sent[code] = known.sent
            if not one.sealed:
                acknowledged[code] = read_points.get((one.server, name), NEVER)
            at = known.stays[0].server if known.current and not known.is_busy else None
            goes[code] = at == one.server and code not in moves
        old = numbers <= sent[codes]
        passed = goes[codes] & edits & ~old & (numbers <= acknowledged[codes])
        if old.any():
            self._old(one, old & edits, found_before=self._before.get(one.group))
        if passed.any():
            found.append(one.only(picked[passed]))
            np.maximum.at(sent, codes[passed], numbers[passed])
            for code in np.unique(codes[passed]).tolist():
                self._regions[batch.regions[code].decode()].sent = int(sent[code])
        rest = ~passed & ~(old & edits)
        for code in np.unique(codes[rest]).tolist():
            self._put(batch.regions[code].decode(), one.only(picked[rest & (codes == code)]), read_points, found)

    def _old(self, one: Taken, old: npt.NDArray[np.bool_], found_before: LogPlace | None) -> None:
        """Entries that were passed on before: known ones, or such as a server has written again."""
        before = found_before or LogPlace(-1, 0)
        if one.number < before.number:
            return
        if one.number == before.number:
            old = old & (one.batch.offset_end[one.picked] > before.offset)
        if old.any():
            self._repeated.append(one.only(one.picked[old]))

    def _put(self, name: str, one: Taken, read_points: Mapping[Asked, int], found: list[Taken | Opened]) -> None:
        """Entries of one region that cannot be passed on at once, or come with an opening or a closing."""
        known = self._regions[name]
        if known.held_from is not None:
            known.held_from[one.group] = min(one.first(), known.held_from.get(one.group, one.first()))
            return
        batch = one.batch
        markers = np.flatnonzero(~batch.holds_data[one.picked])
        for some in np.split(one.picked, np.unique(np.concatenate([markers, markers + 1]))):
            if not len(some):
                continue
            number, at_ms = int(batch.sequence_number[some[0]]), int(batch.write_time[some[0]])
            kind = batch.marker[some[0]]
            if kind == Marker.REGION_OPEN:
                if number > known.sent:
                    began = one.group, one.only(some).first()
                    known.stays.append(Stay(one.server, number, at_ms, self._pass, began))
            elif kind == Marker.REGION_CLOSE:
                if number > known.sent:
                    self._stay(known, one.server, number, at_ms).closed = number
            else:
                self._stay(known, one.server, number, at_ms).waiting.append(one.only(some))
        self._busy.add(name)
        self._go_on(name, read_points, found)

    def _stay(self, known: RegionStays, server: str, number: int, at_ms: int) -> Stay:
        """The region's newest stay on a server that began at or before a number."""
        for stay in reversed(known.stays):
            if stay.server == server and (stay.opened <= number or (known.current and stay is known.stays[0])):
                return stay
        stay = Stay(server, number, at_ms, self._pass)
        known.stays.append(stay)
        return stay

    def _go_on(self, name: str, read_points: Mapping[Asked, int], found: list[Taken | Opened]) -> None:
        """Pass on what can be of a region's current stay, and of the stays that follow it directly."""
        known = self._regions[name]
        while known.current:
            stay = known.stays[0]
            self._follows_directly(known)
            self._pass_waiting(known, stay, read_points.get((stay.server, name), NEVER), found)
            if stay.waiting or not stay.over:
                break
            del known.stays[0]
            known.current = bool(known.stays)
            if known.current:
                found.append(Opened(known.table, name, known.stays[0].opened, known.incarnation))
        if not known.is_busy:
            self._busy.discard(name)

    def _follows_directly(self, known: RegionStays) -> None:
        """Find the opening that directly follows the closing of the current stay."""
        stay = known.stays[0]
        if stay.closed is None or stay.over:
            return
        for later in known.stays[1:]:
            if stay.closed < later.opened <= stay.closed + NEXT_NUMBERS:
                known.stays.remove(later)
                known.stays.insert(1, later)
                stay.over = True
                return

    def _pass_waiting(self, known: RegionStays, stay: Stay, read_point: int, found: list[Taken | Opened]) -> None:
        while stay.waiting:
            one = stay.waiting[0]
            numbers = one.batch.sequence_number[one.picked]
            new = numbers > known.sent
            if not new.all():
                self._old(one, ~new, self._before.get(one.group))
                one = one.only(one.picked[new])
                numbers = numbers[new]
            # Once the region has closed here and opened elsewhere, its server has acknowledged, or refused, all of it.
            surely = one.sealed or (stay.over and stay.closed is not None)
            count = len(numbers) if surely else int(np.searchsorted(numbers, read_point, side="right"))
            if count:
                found.append(one.only(one.picked[:count]))
                known.sent = int(numbers[count - 1])
            if count < len(numbers):
                stay.waiting[0] = one.only(one.picked[count:])
                return
            del stay.waiting[0]

    def _find_successors(self, read_points: Mapping[Asked, int], found: list[Taken | Opened], *, whole: bool) -> None:
        """After a whole pass, put in order the stays that were seen before it began."""
        if not whole:
            return
        for name in sorted(self._busy, key=lambda name: (self._regions[name].age, name)):
            known = self._regions[name]
            later = known.stays[1:] if known.current else known.stays
            sure = [stay.opened for stay in later if stay.seen < self._pass]
            if not sure or known.held_from is not None:
                continue
            if not known.current and not self._may_begin(known, name):
                continue  # or it is held now
            later.sort(key=lambda stay: stay.opened)
            if known.current:
                known.stays = [known.stays[0], *later]
            else:
                before = known.incarnation
                if not self._incarnate(known, name, later[0].opened):
                    continue
                known.stays, known.current = later, True
                begins = known.incarnation > before and self._is_first(known, name)
                found.append(Opened(known.table, name, later[0].opened, known.incarnation, begins))
            last = max(sure)
            for stay, following in zip(known.stays, known.stays[1:], strict=False):
                stay.over = stay.over or following.opened <= last
            self._go_on(name, read_points, found)

    def _may_begin(self, known: RegionStays, name: str) -> bool:
        """Whether the regions that had the rows of a new region before have nothing that waits.

        Where rows are unknown, these are all regions of the table that have closed. What waits of one that has closed,
        and whose rows have opened elsewhere or that no longer exists, was acknowledged. If one of them is held, so is
        the new region.
        """
        for other in sorted(self._busy - {name}):
            region = self._regions[other]
            shared = self._share_rows(name, other) if region.table == known.table else False
            if shared is False or (shared is None and not region.has_closed):
                continue
            if region.held_from is not None:
                self.hold(name, {}, known.sent)
                return False
            if not region.current and region.stays:
                if region.age > known.age:
                    continue  # it is younger
                return False  # its incarnation is not known yet
            if any(stay.waiting for stay in region.stays):
                is_gone = shared or not self._has_known_rows(other)
                if is_gone and region.current and region.stays[0].closed is not None:
                    region.stays[0].over = True  # passed on in the next pass
                return False
        return True

    def _incarnate(self, known: RegionStays, name: str, opened: int) -> bool:
        """Find the incarnation of a region that is about to begin. False if it must wait: it starts over, and something
        of the table's former incarnation waits."""
        if known.sent != NEVER:
            return True
        begun = {
            other: region for other, region in self._regions.items()
            if other != name and region.table == known.table and (region.current or not region.stays)
        }  # fmt: skip
        earlier = [region for other, region in begun.items() if self._share_rows(name, other)]
        # Regions that have closed and no longer exist may have had its rows; if it is a new one, only older ones.
        perhaps = [
            region for other, region in begun.items()
            if self._share_rows(name, other) is None
            and (opened > self._first_number or self._may_be_older(region, other, name))
        ]  # fmt: skip
        newest = max((region.incarnation for region in (*earlier, *perhaps)), default=0)
        last = max((region.sent for region in earlier if region.incarnation == newest), default=NEVER)
        incarnation = newest + (opened <= max(last, self._first_number))
        for other in self._busy - {name} if incarnation > newest else ():
            region = self._regions[other]
            former = region.incarnation < incarnation if region.current else region.age < known.age
            if region.table == known.table and former and any(stay.waiting for stay in region.stays):
                return False
        known.incarnation = max(known.incarnation, incarnation)
        if known.incarnation == newest and earlier:
            known.sent = last  # of its rows: the regions that had them may be forgotten
        return True

    def _may_be_older(self, region: RegionStays, other: str, name: str) -> bool:
        """Whether a region (`other`) may have been made before the creation or truncation that another one is of."""
        mine, theirs = self._origin(name), self._origin(other)
        if mine is None or theirs is None or BEFORE in (mine, theirs):
            return not region.is_open
        # Regions of one creation have first rows of their own.
        apart_ms = 0 if mine.start == theirs.start else TOGETHER_MS
        return theirs.region_id < mine.region_id and theirs.region_id <= mine.region_id - apart_ms

    def _has_known_rows(self, name: str) -> bool:
        """Whether it is known which regions of its table had a region's rows."""
        return self._share_rows(name, name) is not None

    def _is_first(self, known: RegionStays, name: str) -> bool:
        """Whether no other region of the table has this incarnation."""
        others = (region for other, region in self._regions.items() if other != name and region.table == known.table)
        return all(region.incarnation < known.incarnation for region in others)

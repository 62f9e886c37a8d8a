"""Sends what a pass has put in order to the stream's destination, or not at all.

An entry is sent whole or not at all. If a message of it cannot be sent, its region is held from there on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from walferry.errors import DamagedInputError
from walferry.formats.markers import Marker
from walferry.hbase.descriptors import TableDescriptor
from walferry.streams.delivery import AnyDestination, Made
from walferry.streams.message import events
from walferry.streams.message.changes import Form
from walferry.streams.ordering.stays import LogPlace, Opened, Taken
from walferry.streams.snapshot.covered import Covered

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refused:
    """An entry that cannot be sent, and why; its region is held from there on."""

    file: str
    offset: int
    offset_end: int
    table: str
    region: str
    sequence_number: int
    reason: str
    data: bytes


@dataclass
class Sent:
    """What was sent of a pass."""

    messages: int = 0
    bytes: int = 0
    """of the messages' values"""
    cells: int = 0
    """of the entries sent; filters may have left some of them out"""
    refused: list[Refused] = field(default_factory=list)
    held: dict[str, dict[str, LogPlace]] = field(default_factory=dict)
    """for each region that is held from now on, where in each WAL group"""
    last: dict[str, int] = field(default_factory=dict)
    """the number of the last entry sent of each region"""


class Sending:
    """Sends entries. `schemas`, the digest of each table's descriptor as sent last, changes with it."""

    def __init__(
        self,
        form: Form,
        delivery: AnyDestination,
        *,
        describe: Callable[[str], TableDescriptor | None],
        tells_new_history: bool,
        schemas: Mapping[str, str],
        left_out: Collection[tuple[str, int]] = (),
        covered: Covered | None = None,
    ) -> None:
        """`describe`: the present descriptor of a table, None if it does not exist.
        `tells_new_history`: an incarnation can only mean that the table was truncated, or created again.
        `left_out`: entries, by file and offset, that a person has decided to leave out. `covered`: what of the log the
        snapshots have that were sent."""
        self._form = form
        self._delivery = delivery
        self._describe = describe
        self._tells_new_history = tells_new_history
        self.schemas = dict(schemas)
        self._left_out = frozenset(left_out)
        self._covered = covered

    def send(self, passed: Sequence[Taken | Opened], incarnation: Callable[[str], int]) -> Sent:
        """Send what a pass has passed on, in its order. `incarnation`: of a region."""
        sent = Sent()
        described: dict[str, TableDescriptor | None] = {}
        for one in chain.from_iterable(self._delivery.parts(passed)):
            if isinstance(one, Opened):
                if one.region not in sent.held:
                    self._opened(one, described, sent)
                continue
            for part in _by_kind(self._without(one, sent)):
                self._send_part(part, incarnation, sent)
        return sent

    def _send_part(self, one: Taken, incarnation: Callable[[str], int], sent: Sent) -> None:
        """Send entries that are all edits, or one marker."""
        one = _without_held(one, sent.held)
        if not len(one.picked):
            return
        of_code = {code: incarnation(one.batch.regions[code].decode()) for code in _regions(one)}
        if not one.batch.edits[one.picked[0]]:
            self._marker(one, of_code, sent)
        elif self._covered is None or not self._covered.has_some(one):
            self._send_edits(self._form, one, of_code, sent)
        else:
            for part, families in self._covered.parts(one):
                if families is None:
                    _note_last(part, sent)
                    continue
                selection = replace(self._form.selection, without=families)
                part = _without_held(part, sent.held)
                self._send_edits(replace(self._form, selection=selection), part, of_code, sent)

    def _send_edits(self, form: Form, one: Taken, incarnations: Mapping[int, int], sent: Sent) -> None:
        while len(one.picked):
            codes = one.batch.region[one.picked]
            numbers = np.array([incarnations[code] for code in codes.tolist()], np.int32)
            made: Made = self._delivery.make(form, one.batch, one.picked, numbers)
            fitting = self._delivery.fit(form, one.batch, made)
            if not fitting.refused:
                self._send_all(one, made, fitting.claims, sent)
                return
            number = min(fitting.refused)
            refused = _refused(one, int(made.entry[number]), fitting.refused[number])
            one = self._held(one, refused, sent)

    def _held(self, one: Taken, refused: Refused, sent: Sent) -> Taken:
        """Hold the region of an entry. Returns the entries without those of the region from there on."""
        sent.refused.append(refused)
        sent.held[refused.region] = {one.group: LogPlace(one.number, refused.offset)}
        mine = one.batch.region[one.picked] == one.batch.regions.index(refused.region.encode())
        return one.only(one.picked[~mine | (one.batch.sequence_number[one.picked] < refused.sequence_number)])

    def _send_all(self, one: Taken, made: Made, claims: Mapping[int, bytes], sent: Sent) -> None:
        self._delivery.send(one.batch, made, claims)
        sent.messages += len(made)
        sent.bytes += made.size
        sent.cells += int(one.batch.cell_count[one.picked].sum())
        _note_last(one, sent)

    def _marker(self, one: Taken, incarnations: Mapping[int, int], sent: Sent) -> None:
        entry = int(one.picked[0])
        if self._covered is not None and self._covered.has_load(one.batch, entry):
            _note_last(one, sent)
            return
        table, _ = one.batch.table_and_region(entry)
        reason = "a marker of a kind that this version of walferry does not know"
        if one.batch.marker[entry] == Marker.BULK_LOAD:
            try:
                incarnation = incarnations[int(one.batch.region[entry])]
                loaded = events.bulk_load(self._form, one.batch, entry, incarnation, one.file)
            except DamagedInputError as error:
                reason = error.message
            else:
                self._to_all(table, loaded, sent)
                _note_last(one, sent)
                return
        self._held(one, _refused(one, entry, reason), sent)

    def _opened(self, one: Opened, described: dict[str, TableDescriptor | None], sent: Sent) -> None:
        """Send the events of a region that has opened."""
        known = self._covered is not None and self._covered.has_opening(one.table, one.region)
        if one.begins and self._tells_new_history and not known:
            self._to_all(
                one.table, events.new_history(self._form, one.table, one.region, one.number, one.incarnation), sent
            )
        if one.table not in described:
            described[one.table] = self._describe(one.table)
        descriptor = described[one.table]
        if descriptor is None or (digest := events.schema_digest(descriptor)) == self.schemas.get(one.table):
            return
        self.schemas[one.table] = digest
        changed = events.schema(self._form, descriptor, one.region, one.number, one.incarnation)
        self._to_all(one.table, changed, sent)

    def _to_all(self, table: str, message: events.Message, sent: Sent) -> None:
        """Send an event to every partition of a table's topic."""
        sent.messages += self._delivery.to_all(table, message)

    def _without(self, one: Taken, sent: Sent) -> Taken:
        """The entries without those that a person has decided to leave out."""
        offsets = [offset for name, offset in self._left_out if name == one.file]
        leave = np.isin(one.batch.offset[one.picked], offsets) if offsets else None
        if leave is None or not leave.any():
            return one
        log.warning("%d entries of %s are left out, as a person has decided", int(leave.sum()), one.file)
        _note_last(one.only(one.picked[leave]), sent)
        return one.only(one.picked[~leave])


def _by_kind(one: Taken) -> Iterator[Taken]:
    """The entries in their order, in parts: edits together, each marker by itself."""
    markers = np.flatnonzero(~one.batch.edits[one.picked])
    for some in np.split(one.picked, np.unique(np.concatenate([markers, markers + 1]))):
        if len(some):
            yield one.only(some)


def _regions(one: Taken) -> list[int]:
    return [int(code) for code in np.unique(one.batch.region[one.picked])]


def _note_last(one: Taken, sent: Sent) -> None:
    """Note the last numbers of regions; they rise within a file."""
    for code in _regions(one):
        numbers = one.batch.sequence_number[one.picked[one.batch.region[one.picked] == code]]
        name = one.batch.regions[code].decode()
        sent.last[name] = max(int(numbers[-1]), sent.last.get(name, -1))


def _refused(one: Taken, entry: int, reason: str) -> Refused:
    batch = one.batch
    table, region = batch.table_and_region(entry)
    return Refused(
        one.file, int(batch.offset[entry]), int(batch.offset_end[entry]), table, region,
        int(batch.sequence_number[entry]), reason, batch.buffer[batch.start[entry] : batch.end[entry]].tobytes(),
    )  # fmt: skip


def _without_held(one: Taken, held: dict[str, dict[str, LogPlace]]) -> Taken:
    """The entries without those of held regions; notes where those are."""
    if not held:
        return one
    keep = np.ones(len(one.picked), bool)
    for code in _regions(one):
        places = held.get(one.batch.regions[code].decode())
        if places is not None:
            mine = one.batch.region[one.picked] == code
            first = one.only(one.picked[mine]).first()
            places[one.group] = min(first, places.get(one.group, first))
            keep &= ~mine
    return one.only(one.picked[keep])

"""Which entries of the log lie between a base and a moment, by region, sequence number and write time.

The moment is one of the servers' clocks, and entries have the write times of their servers' clocks, so within a region
write times may go back. A region's edits are applied in the order of their numbers, whatever the clocks say: its part
ends before the first entry, by number, that was written after the moment. It begins where the base's files end.

Numbers prove nothing across histories: a table that is dropped and cloned from an older snapshot under its name has the
same regions, whose numbers start over. Such a history between base and moment is refused. One before or after is told
apart by time, with the largest difference between the servers' clocks in between (`skew_ms`).

Of a region that is not in the base, all is older than the base or newer. An older one gave way to one of the base's
regions once all of it was flushed: nothing of it is applied. A newer one began after the base. If the region that it
came from ends before the moment, all of the newer one lies past that end: nothing of it is applied either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from walferry.apply.index import FileIndexer
from walferry.apply.outcomes import FileReport
from walferry.apply.region_events import Origin, RegionEvent, origins
from walferry.clock import iso
from walferry.errors import UsageError, WalferryError
from walferry.formats.cells import find_cells
from walferry.formats.markers import Marker
from walferry.formats.order import families_of
from walferry.formats.wal import EntryBatch
from walferry.ledger import NumberGap
from walferry.ledger.regions import RegionKey
from walferry.replay.log.lineage import FIRST_SEQUENCE, FamiliesOf, Known, by_region, trace
from walferry.replay.log.numbering import chain
from walferry.wal.files import WalFile
from walferry.wal.open import Wal

NONE = 2**63 - 1
"""instead of a sequence number: there is no such entry"""
NEVER_MS = -(2**63)
"""a time before all others"""


@dataclass(frozen=True)
class BaseRegion:
    """A region of a base."""

    start: bytes
    region_id: int
    """RegionInfo.region_id"""
    numbers: Mapping[bytes, int]
    """for each family of the table, up to which sequence number the base has its cells; 0: it has none"""

    @property
    def highest(self) -> int:
        """The greatest of these numbers."""
        return max(self.numbers.values(), default=0)


@dataclass(frozen=True)
class TableBase:
    """A base, as it is needed to tell which part of the log follows it. Times in ms since 1970 UTC."""

    name: str
    """of its snapshot"""
    begun_ms: int
    complete_ms: int
    regions: Mapping[str, BaseRegion]
    """by encoded name"""
    loaded: frozenset[str] = frozenset()
    """names of its files that were bulk-loaded"""


@dataclass(frozen=True)
class Moment:
    """The moment to restore. What was written at or before `at_ms` belongs to it."""

    at_ms: int
    skew_ms: int
    """the largest difference between the servers' clocks"""

    @property
    def past_ms(self) -> int:
        """What is written later than this is later than the moment by any server's clock."""
        return self.at_ms + self.skew_ms


@dataclass(frozen=True)
class SeenRegion:
    """What files of the log hold of a region."""

    late: int = NONE
    """number of the first entry, markers included, that was written after the moment, but may be before it by another
    clock"""
    late_ms: int = 0
    """the write time of that entry"""
    past: int = NONE
    """the lowest number of an entry that was written later than that"""
    past_ms: int = 0
    """the write time of that entry"""
    last: int = -1
    """the greatest number of an edit that was written at or before the moment"""
    lacked: int = NONE
    """the lowest number, at or below the base's highest, of an entry with a cell that the base lacks"""
    edited_ms: int = 0
    """the latest write time of an edit"""
    origin: Origin | None = None
    """as its opening says; None: no opening was seen"""

    def __or__(self, other: SeenRegion) -> SeenRegion:
        late, past = min(self, other, key=lambda seen: seen.late), min(self, other, key=lambda seen: seen.past)
        return SeenRegion(
            late.late, late.late_ms, past.past, past.past_ms, max(self.last, other.last),
            min(self.lacked, other.lacked), max(self.edited_ms, other.edited_ms), self.origin or other.origin,
        )  # fmt: skip


@dataclass(frozen=True)
class SeenFile:
    """What a file of the log holds of the table."""

    report: FileReport
    regions: Mapping[str, SeenRegion]
    """by encoded name"""


@dataclass(frozen=True)
class RegionPart:
    """The part of a region's log that leads from the base to the moment."""

    after: int
    """the base has everything up to this number"""
    before: int
    """the number of the first entry past the moment; without such an entry NONE or, of a log that may get longer, the
    number after the last edit"""
    before_ms: int
    """the write time of the entry past the moment; 0: there is none"""
    since_ms: int
    """what was written before this is in the base, or of another history"""

    def has(self, number: int, write_time: int) -> bool:
        """Whether an entry is in the part, if it was written at or before the moment."""
        return self.after < number < self.before and self.since_ms <= write_time


class NewHistoryError(UsageError):
    """The table was emptied or created again between base and moment; facts `table`, `at_ms`."""


class UnknownRegionError(WalferryError):
    """Nobody knows whether a region is older than a base; facts `table`, `region`, `base`."""


class ClocksApartError(WalferryError):
    """The servers' clocks differ by more than is allowed for; facts `table`, `region`."""


class BaseTooNewError(UsageError):
    """The base has entries that were written after the moment; facts `table`, `region`, `base`."""


class NotInLogError(UsageError):
    """Between base and moment, files were loaded in bulk, which the log names but does not hold; facts `table`,
    `region`, `at_ms`."""


# ------------------------------------------------------------------ reading


def look(wal: Wal, file: WalFile, table: str, moment: Moment, base: TableBase) -> SeenFile:
    """Read a sealed file to its end. Raises the errors of reading it."""
    found: dict[str, SeenRegion] = defaultdict(SeenRegion)
    reading = FileIndexer(wal, file, {table})
    for batch in reading.batches(accepted=NONE):
        for region, seen in _regions(batch, table, moment, base):
            found[region] |= seen
    return SeenFile(reading.report(), dict(found))


def _regions(batch: EntryBatch, table: str, moment: Moment, base: TableBase) -> Iterable[tuple[str, SeenRegion]]:
    picked = np.flatnonzero(batch.of_tables({table}))
    opened = origins(batch, picked)
    numbers, times = batch.sequence_number, batch.write_time
    for code in np.unique(batch.region[picked]).tolist():
        mine = picked[batch.region[picked] == code]
        edits, name = mine[batch.edits[mine]], batch.regions[code].decode()
        seen = SeenRegion(
            last=int(numbers[edits[times[edits] <= moment.at_ms]].max(initial=-1)),
            edited_ms=int(times[edits].max(initial=0)),
            origin=opened.get(name),
        )
        late = mine[(times[mine] > moment.at_ms) & (times[mine] <= moment.past_ms)]
        if len(late):
            first = late[0]  # a region's numbers rise in a file
            seen = replace(seen, late=int(numbers[first]), late_ms=int(times[first]))
        past = mine[times[mine] > moment.past_ms]
        if len(past):
            first = past[np.argmin(numbers[past])]  # unless its history starts over
            seen = replace(seen, past=int(numbers[first]), past_ms=int(times[first]))
        if name in base.regions:
            # Before the base was begun, the base lacks only what its files need not have: cells past their TTL.
            mine = mine[times[mine] >= base.begun_ms - moment.skew_ms]
            seen = replace(seen, lacked=_lacked(batch, mine, base.regions[name]))
        yield name, seen


def _lacked(batch: EntryBatch, entries: np.ndarray, base: BaseRegion) -> int:
    """`SeenRegion.lacked` of these entries of a region."""
    lowest = min(base.numbers.values(), default=0)
    numbers = batch.sequence_number[entries]
    some = entries[(numbers > lowest) & (numbers <= base.highest) & batch.edits[entries]]
    if not len(some):
        return NONE
    families = list(base.numbers)
    start, _, entry, _ = find_cells(batch.buffer, batch.cells_start[some], batch.cell_count[some])
    family = families_of(batch.buffer, start, families)
    known = np.array([*base.numbers.values(), NONE], np.int64)[family]  # -1, a dropped family, is the last: not lacked
    lacking = batch.sequence_number[some][entry] > known
    return int(batch.sequence_number[some][entry[lacking]].min()) if lacking.any() else NONE


# ------------------------------------------------------------------ the parts


def part_of(seen: Iterable[SeenFile], table: str, base: TableBase, moment: Moment) -> dict[str, RegionPart]:
    """The part of each region that has one.

    Raises BaseTooNewError if the base has an entry that was written after the moment, ClocksApartError if an entry
    before the moment has a higher number than one that is past it by any clock, and UnknownRegionError for a region
    with edits since the base of which the log does not say when it was made.
    """
    regions: dict[str, SeenRegion] = dict.fromkeys(base.regions, SeenRegion())
    for file in seen:
        for region, one in file.regions.items():
            regions[region] = regions.get(region, SeenRegion()) | one
    events = by_region(event for file in seen for event in file.report.events)
    restarts = {event.region for event in _restarts(events, base, moment) if event.write_time > moment.past_ms}
    parts = {
        region: _of_base(table, region, base, regions[region], region in restarts, moment) for region in base.regions
    }
    newer = _newer(table, regions, base, moment)
    ended = {region for region, part in parts.items() if part.before != NONE}
    starts = {region: one.start for region, one in base.regions.items()}
    for region, origin in sorted(newer.items(), key=lambda pair: pair[1].region_id):
        parents = {other for other, start in starts.items() if start == origin.start}
        parents |= {other for event in events.get((table, region), ()) for other in _named(event)}
        starts[region] = origin.start
        part = _until(table, region, regions[region], region in restarts, -1, NEVER_MS, moment)
        if part.before != NONE or parents & ended:
            ended.add(region)
        if not parents & ended:
            parts[region] = part
    return parts


def _newer(table: str, regions: Mapping[str, SeenRegion], base: TableBase, moment: Moment) -> dict[str, Origin]:
    """The regions that were made after the base."""
    found = {}
    for region, one in regions.items():
        if region in base.regions:
            continue
        if one.origin is not None and not _is_older(one.origin, base.regions.values()):
            found[region] = one.origin
        elif one.origin is None and one.edited_ms > base.complete_ms + moment.skew_ms:
            raise UnknownRegionError(
                f"region {region} of {table} was written to at {iso(one.edited_ms)}, after base {base.name}, but no "
                "kept log has its opening: part of the log is missing. Choose a later base",
                table=table, region=region, base=base.name,
            )  # fmt: skip
        elif one.late != NONE:
            raise _too_new(table, region, base, one)
    return found


def _of_base(table: str, region: str, base: TableBase, seen: SeenRegion, restarts: bool, moment: Moment) -> RegionPart:
    highest = base.regions[region].highest
    if seen.late <= highest:
        raise _too_new(table, region, base, seen)
    after = min(highest, seen.lacked - 1)
    return _until(table, region, seen, restarts, after, base.begun_ms - moment.skew_ms, moment)


def _until(
    table: str, region: str, seen: SeenRegion, restarts: bool, after: int, since_ms: int, moment: Moment
) -> RegionPart:
    """The part of a region up to the moment. Entries past it by any clock are left out by time; their numbers count
    unless the region `restarts` there."""
    if seen.late != NONE:
        return RegionPart(after, seen.late, seen.late_ms, since_ms)
    if restarts or seen.past == NONE:
        return RegionPart(after, NONE, 0, since_ms)
    if seen.past <= max(seen.last, after):
        raise ClocksApartError(
            f"region {region} of {table} has an entry that was written at {iso(seen.past_ms)}, and later ones, by "
            f"number, that were written at or before {iso(moment.at_ms)}: the servers' clocks differ by more than "
            f"{moment.skew_ms / 1000:g} s. Raise WALFERRY_CLOCK_SKEW_SECONDS",
            table=table, region=region,
        )  # fmt: skip
    return RegionPart(after, seen.past, seen.past_ms, since_ms)


def _too_new(table: str, region: str, base: TableBase, seen: SeenRegion) -> BaseTooNewError:
    return BaseTooNewError(
        f"base {base.name} has entries of region {region} of {table} that its server wrote at {iso(seen.late_ms)} by "
        "its own clock, after that moment: choose an older base, or a later moment",
        table=table, region=region, base=base.name,
    )  # fmt: skip


def _named(event: RegionEvent) -> set[str]:
    """The regions to which an opened region's references point (StoreFileInfo: `file.region`)."""
    if event.kind is not Marker.REGION_OPEN:
        return set()
    return {file.rpartition(".")[2] for file in event.files if "." in file.rpartition("/")[2]}


def _is_older(origin: Origin, base: Iterable[BaseRegion]) -> bool:
    """Whether a region was made before the base's region that has its first row."""
    holding = [one for one in base if one.start <= origin.start]
    return bool(holding) and origin.region_id < max(holding, key=lambda one: one.start).region_id


def parts_and_gaps(
    seen: Sequence[SeenFile], table: str, base: TableBase, moment: Moment, *, may_grow: bool = False
) -> tuple[dict[str, RegionPart], tuple[NumberGap, ...]]:
    """The part of each region that has one, and the numbers within that no file has. With `may_grow`, what files get
    later is in no part. Raises the errors of `part_of` and `require_in_log`."""
    parts = part_of(seen, table, base, moment)
    require_in_log(seen, table, parts, base, moment)
    return only_seen(seen, parts) if may_grow else parts, gaps_of(seen, parts)


def only_seen(seen: Iterable[SeenFile], parts: Mapping[str, RegionPart]) -> dict[str, RegionPart]:
    """The parts, each of which ends after the last edit that was seen: logs may get longer meanwhile."""
    last: dict[str, int] = defaultdict(lambda: -1)
    for file in seen:
        for region, one in file.regions.items():
            last[region] = max(last[region], one.last)
    return {
        region: replace(part, before=min(part.before, max(last[region], part.after) + 1))
        for region, part in parts.items()
    }


def gaps_of(seen: Iterable[SeenFile], parts: Mapping[str, RegionPart]) -> tuple[NumberGap, ...]:
    """The numbers within the parts that no file has: writes that skip the log, or a lost file."""
    spans = [span for file in seen for span in file.report.numbers if span.region in parts]
    _, gaps = chain([], spans)
    return tuple(gap for gap in gaps if parts[gap.region].after < gap.last and gap.first < parts[gap.region].before)


def require_in_log(
    seen: Iterable[SeenFile], table: str, parts: Mapping[str, RegionPart], base: TableBase, moment: Moment
) -> None:
    """Raise NotInLogError for files that were loaded in bulk, or other data that the log lacks, within the parts."""
    for file in seen:
        loads = {event.offset: event for event in file.report.events if event.kind is Marker.BULK_LOAD}
        for refusal in file.report.refusals:
            part = parts.get(refusal.region)
            inside = part is not None and part.has(refusal.sequence_number, refusal.write_time)
            if not inside or refusal.write_time > moment.at_ms:
                continue
            load = loads.get(refusal.start)
            if load is not None and {name.rpartition("/")[2] for name in load.files} <= base.loaded:
                continue
            raise NotInLogError(
                f"region {refusal.region} of {table} has data that the log does not hold, from "
                f"{iso(refusal.write_time)}: {refusal.reason}. Restore to a moment before that, or to one after a "
                "later base",
                table=table, region=refusal.region, at_ms=refusal.write_time,
            )  # fmt: skip


def require_one_history(
    seen: Sequence[SeenFile],
    base: TableBase,
    moment: Moment,
    known: Known,
    families: FamiliesOf,
    *,
    opens_past_closing: bool,
) -> None:
    """Raise NewHistoryError if the table was truncated, or dropped and created again, between base and moment.

    `known`: the regions of the base, with their store files. A region that starts over under its name counts from
    `skew_ms` before the base until `skew_ms` after the moment, since nothing tells its numbers apart there.
    """
    edited = {name for file in seen for name, one in file.regions.items() if one.edited_ms}
    events = [e for file in seen for e in file.report.events if not _opens_empty(e, base, edited)]
    inside = [event for event in events if base.begun_ms <= event.write_time <= moment.at_ms]
    breaks = list(trace(known, inside, families, opens_past_closing=opens_past_closing).breaks.values())
    if opens_past_closing:
        near = (base.begun_ms - moment.skew_ms, moment.past_ms)
        breaks += [e for e in _restarts(by_region(events), base, moment) if near[0] <= e.write_time <= near[1]]
    for event in breaks:
        raise NewHistoryError(
            f"{event.table} was truncated, dropped and created again, or restored, at {iso(event.write_time)}: restore "
            "to a moment more than a minute before that, or to one after a later base",
            table=event.table, at_ms=event.write_time,
        )  # fmt: skip


def _restarts(
    events: Mapping[RegionKey, Sequence[RegionEvent]], base: TableBase, moment: Moment
) -> Iterator[RegionEvent]:
    """The openings by which regions start over under their names, as after a clone of a snapshot: at a number that the
    base is past, or that the region had closed past before. `events`: of each region, by number."""
    for (_, region), of_region in events.items():
        closings = [event for event in of_region if event.kind is Marker.REGION_CLOSE]
        for event in of_region:
            if event.kind is Marker.REGION_OPEN:
                closing = next((one for one in closings if one.sequence_number >= event.sequence_number), None)
                since = event.write_time > base.complete_ms + moment.skew_ms
                passed = region in base.regions and event.sequence_number <= base.regions[region].highest
                if (since and passed) or (closing is not None and closing.write_time < event.write_time):
                    yield event


def _opens_empty(event: RegionEvent, base: TableBase, edited: Collection[str]) -> bool:
    """Whether an event is the opening of a region that the base has, and that never had a cell: its numbers start over
    each time that its server dies."""
    region = base.regions.get(event.region)
    first = event.kind is Marker.REGION_OPEN and event.sequence_number <= FIRST_SEQUENCE
    return first and region is not None and not region.highest and event.region not in edited

"""Whether a table's history continues (R11).

A table begins a new history if it was truncated, dropped and created again (new, or cloned from a snapshot), or
restored in place. It logs no deletes for the data it lost. The WAL and hbase:meta show a new history, as observed on
HBase 2.6.3:

- created, truncated: a region opens that has no history of sequence numbers;
- restored: a region closes and opens again, with its name and its numbers, but without a store file that it had;
- dropped and cloned: the regions have their old names and older files, so they open below the sequence number at which
  they closed. Sorted by number, such an opening comes before the closing; after the closing, the region closes again or
  gains a file without an opening. A region that continues logs nothing between its closing and its opening;
- restored or cloned with other borders: a region closed and no longer exists, and no region that opened later took over
  its files. The successors of a split or merge name these files: `file.region` for a reference, `table=region-file` for
  a link. Successors open above the numbers of their parents; a restored parent opens below those of its daughters.

The manifest of the run's snapshot says which files a region has. From then on the log does: flushes, compactions and
bulk loads name the files added and removed, an opening names all files. (A closing names none.) The ledger records this
for each region (`known_regions`), together with the ranges of the log that showed it. A drain and a window have no
snapshot: they notice only the loss of files that their part of the log has named. If the table no longer has a column
family, that family's files do not count as lost: a dropped family is a difference of the schemas, which the gates
report. The files remain known: a family that is added again without them begins a new history.

Before 2.0 (`Release.opens_past_closing`) two kinds of openings may have a lower number than an earlier closing, and
neither is a new history (HRegion.initializeRegionInternals of branch-1, HBASE-20066; seen on 1.7.2):

- a READONLY region opens just above the numbers of its files, and logs neither its opening nor its closing. So
  hbase:meta proves a new history only if the log has the opening, as for a clone, and no closing follows the opening in
  the same WAL group;
- daughters and merged regions open just above the numbers of the files that they took over, or near 1 if they took over
  none. So a reference to a closed region's file proves a successor whatever the opening's number (1.x names no file
  otherwise). And a low opening is no new history if regions of its table were split or merged in the same part of the
  log. If a split passes on no file of a region, because no file had a cell, the region's files seem lost.

Any other region opens above its closing in 1.x as well: it finds that number in its folder (HBASE-12485).

A server that dies writes no closing. It may have installed a compaction's file without a marker, so an opening without
a preceding closing is not judged by files. (A table must be closed to be restored.)
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from walferry.apply.outcomes import Refusal
from walferry.apply.region_events import RegionEvent, family_of
from walferry.formats.markers import Marker
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import TableNotFoundError
from walferry.ledger import KnownRegion, RunLedger
from walferry.ledger.regions import RegionChanges, RegionKey
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.run.run import Run
from walferry.wal.files import parse_wal_name

log = logging.getLogger(__name__)

FIRST_SEQUENCE = 3
"""sequence number of the first opening of a newly created region. If an empty region is split at once, its daughters
begin at 6, after their parent's opening and closing"""
CONFIRM_SECONDS = 20.0
"""how long hbase:meta is read again if it may lag (`Region.may_lag`), or if a region is missing"""

Known = Mapping[RegionKey, KnownRegion]
Regions = Mapping[str, Sequence[Region]]
"""each table's regions in hbase:meta; none for a dropped table"""
RegionsOf = Callable[[str], Sequence[Region]]
"""reads a table's regions in hbase:meta"""
FamiliesOf = Callable[[str], Collection[str] | None]
"""reads a table's column families; None for a dropped table"""


@dataclass(frozen=True)
class Lineage:
    """What a part of the log shows about regions."""

    breaks: Mapping[str, RegionEvent]
    """for each table that began a new history, the event that shows it"""
    known: Mapping[RegionKey, KnownRegion]
    """what is known of each region after this part of the log, including whether it is closed"""
    opened: Mapping[Hashable, int]
    """by sign of a region's first opening in this part (`_held`): the opening's sequence number; if several regions
    share a sign, the highest number"""
    first_rows: Mapping[RegionKey, bytes]
    """first row of each region whose last event in this part is its closing"""
    families: FamiliesOf
    opens_past_closing: bool
    """`Release.opens_past_closing` of the source"""
    begun: frozenset[tuple[RegionKey, int]]
    """region and sequence number of each opening that is not followed by a closing in the same WAL group"""

    def is_succeeded(self, region: KnownRegion) -> bool:
        """Whether the files of a closed region were taken over by regions that first opened after it.

        They have a reference or a link to one of its files (StoreFileInfo, HFileLink), or a link that the closed region
        had itself. A split does not pass on files without cells. If the closed region has only such files, its lower
        daughter opens without files at the same first row. (A region that is created or restored may look the same, but
        opens at a low number.)
        """
        assert region.closed_sequence is not None
        if not self.opens_past_closing:
            return any(reference(file, region.region) in self.opened for file in region.store_files)
        signs: list[Hashable] = [(region.table, self.first_rows.get((region.table, region.region)))]
        for file in region.store_files:
            family, _, name = file.partition("/")
            signs += [reference(file, region.region), f"{family}/={region.region}-{name}"]
            signs += [file] if "=" in name else []
        return any(self.opened.get(sign, 0) > region.closed_sequence for sign in signs)


def trace(
    known: Known,
    events: Iterable[RegionEvent],
    families: FamiliesOf,
    *,
    has_holes: bool = False,
    opens_past_closing: bool = True,
) -> Lineage:
    """Follow regions through a part of the log, starting from what was known before it.

    `families` is called only if a region opens without a store file that it had, or is gone. `has_holes`: openings may
    be missing from `events`, so entries that a closed region logs prove nothing. `opens_past_closing`: as in `Release`.
    """
    events = list(events)
    reshaped = frozenset() if opens_past_closing else _reshaped(known, events)
    breaks: dict[str, RegionEvent] = {}
    after = dict(known)
    opened: dict[Hashable, int] = {}
    first_rows: dict[RegionKey, bytes] = {}
    families = cache(families)
    for key, region in by_region(events).items():
        if region[-1].kind is Marker.REGION_CLOSE:
            first_rows[key] = region[-1].row
        first = next((event for event in region if event.kind is Marker.REGION_OPEN), None)
        if first is not None:
            opened |= {sign: max(first.sequence_number, opened.get(sign, 0)) for sign in _held(first)}
        before = known.get(key, KnownRegion(*key, frozenset()))
        after[key], broken = _follow_region(before, region, families, has_holes, key[0] in reshaped)
        if broken is not None:
            breaks.setdefault(key[0], broken)
    return Lineage(breaks, after, opened, first_rows, families, opens_past_closing, _begun(events))


def reference(file: str, region: str) -> str:
    """The name of a region's store file in the regions that it was split or merged into (StoreFileInfo)."""
    return f"{file}.{region}"


def _reshaped(known: Known, events: Sequence[RegionEvent]) -> frozenset[str]:
    """Tables in which a region took over files of a closed region."""
    closed = {key for key, region in known.items() if region.closed_sequence is not None}
    closed |= {(event.table, event.region) for event in events if event.kind is Marker.REGION_CLOSE}
    opened = (event for event in events if event.kind is Marker.REGION_OPEN)
    return frozenset(e.table for e in opened if any((e.table, file.rpartition(".")[2]) in closed for file in e.files))


def _begun(events: Sequence[RegionEvent]) -> frozenset[tuple[RegionKey, int]]:
    """The openings that no closing follows in the same WAL group, where the server's markers are in order."""
    latest: dict[tuple[str, str, str], tuple[tuple[int, int], RegionEvent]] = {}
    for event in events:
        name = parse_wal_name(event.file)
        if event.kind in (Marker.REGION_OPEN, Marker.REGION_CLOSE) and name is not None:
            place, at = (name.group, event.table, event.region), (name.number, event.offset)
            if place not in latest or latest[place][0] < at:
                latest[place] = at, event
    return frozenset(
        ((event.table, event.region), event.sequence_number)
        for _, event in latest.values()
        if event.kind is Marker.REGION_OPEN
    )


def trace_at(source: HBaseClient, known: Known, events: Iterable[RegionEvent]) -> Lineage:
    """`trace` with the source's release and the families of its tables."""
    past_closing = source.release.opens_past_closing
    return trace(known, events, partial(families_of, source), opens_past_closing=past_closing)


def _held(opening: RegionEvent) -> Iterator[Hashable]:
    """The signs of an opened region's predecessor: its store files, and for each link (`table=region-file`) also the
    link's destination; without store files, its first row.
    """
    if not opening.files:
        yield opening.table, opening.row
    for file in opening.files:
        yield file
        if "=" in file:
            yield f"{file[: file.index('/')]}/{file[file.rindex('=') :]}"


def _follow_region(
    before: KnownRegion, events: Sequence[RegionEvent], families: FamiliesOf, has_holes: bool, reshaped: bool
) -> tuple[KnownRegion, RegionEvent | None]:
    """What is known of a region after these events, and the event that shows a new history, if there is one.

    The events are in the order of their sequence numbers, which rise with every move, whatever the servers' clocks say.
    `reshaped`: the region may begin without a history (`_reshaped`).
    """
    broken: RegionEvent | None = None
    # The snapshot is newer than the log's first events, so it may name files that these events add only later.
    files = before.store_files.difference(*(event.files for event in events))
    replaced = before.replaced_files
    closing, closed_at = None, before.closed_sequence
    for event in events:
        if event.kind is Marker.REGION_OPEN:
            lost = files - event.files
            missed = _of_present_families(lost, event.table, families)
            breaks = closed_at is not None and (event.sequence_number <= closed_at or bool(missed))
            breaks = breaks or (_begins_history(event) and not reshaped)
            files, replaced = event.files | (lost - missed), frozenset()
        else:
            breaks = closed_at is not None and not has_holes and _needs_opening(event, closed_at, files)
            early = event.replaced - files
            files = (files | event.files) - replaced - event.replaced
            replaced = (replaced - event.files) | early
        if breaks:
            broken = broken or event
        closing = event if event.kind is Marker.REGION_CLOSE else None
        closed_at = None if closing is None else closing.sequence_number
    after = KnownRegion(before.table, before.region, files, replaced_files=replaced)
    if closing is not None:
        after = replace(
            after,
            closed_sequence=closing.sequence_number, closed_file=closing.file, closed_offset=closing.offset,
            closed_ms=closing.write_time,
        )  # fmt: skip
    return after, broken


def _needs_opening(event: RegionEvent, closed_at: int, files: Collection[str]) -> bool:
    """Whether a region that closed at this number with these files must have opened again before it logged the event.

    Two cases need no opening. A server that dies may leave markers above its successor's closing, but they name files
    that the successor opened with. A server that loses a log's datanodes may write an entry to the next log again.
    """
    later = event.sequence_number > closed_at
    return later and (event.kind is Marker.REGION_CLOSE or not event.files.issubset(files))


def _of_present_families(files: Collection[str], table: str, families: FamiliesOf) -> frozenset[str]:
    """The store files whose column family the table has now; all of them if the table was dropped."""
    now = families(table) if files else None
    return frozenset(file for file in files if now is None or family_of(file) in now)


def families_of(client: HBaseClient, table: str) -> Collection[str] | None:
    """The table's column families now; None when somebody dropped it (`cutover.gates` reports that)."""
    try:
        return client.describe(table).families.keys()
    except TableNotFoundError:
        return None


def created(events: Sequence[RegionEvent], opens_past_closing: bool) -> dict[str, RegionEvent]:
    """For each table the first opening of a newly created region: any part of the log shows this by itself."""
    found: dict[str, RegionEvent] = {}
    reshaped = frozenset() if opens_past_closing else _reshaped({}, events)
    for event in events:
        if _begins_history(event) and event.table not in reshaped:
            found.setdefault(event.table, event)
    return found


def _begins_history(event: RegionEvent) -> bool:
    return event.kind is Marker.REGION_OPEN and event.sequence_number <= FIRST_SEQUENCE


def by_region(events: Iterable[RegionEvent]) -> dict[RegionKey, list[RegionEvent]]:
    """The events of each region, by sequence number."""
    regions: dict[RegionKey, list[RegionEvent]] = defaultdict(list)
    for event in events:
        regions[event.table, event.region].append(event)
    return {key: sorted(region, key=lambda event: event.sequence_number) for key, region in regions.items()}


def _breaks_in_meta(lineage: Lineage, regions: Regions) -> tuple[dict[str, RegionEvent], dict[str, RegionEvent]]:
    """Tables that began a new history, judged by their regions after `lineage`, each with the closing that preceded it.
    Returns proven ones, and other tables for which a new history is likely.

    A table without regions was dropped: the gates report that.
    """
    proven: dict[str, RegionEvent] = {}
    likely: dict[str, RegionEvent] = {}
    now = {table: {r.encoded: r for r in found} for table, found in regions.items()}
    for (table, region), known in lineage.known.items():
        if known.closed_sequence is None or not now.get(table):
            continue
        opened = now[table].get(region)
        if opened is not None:
            broken = opened.server is not None and opened.open_sequence <= known.closed_sequence
            # The log numbers an opening one above the open sequence number in hbase:meta.
            logged = ((table, region), opened.open_sequence + 1) in lineage.begun
            broken = broken and (lineage.opens_past_closing or logged)
        else:
            lost = frozenset() if lineage.is_succeeded(known) else known.store_files
            broken = bool(_of_present_families(lost, table, lineage.families))
        if broken:
            lags = opened is None or (opened.may_lag and lineage.opens_past_closing)
            breaks = likely if lags else proven
            breaks.setdefault(table, _closing(known, known.closed_sequence))
    return proven, {table: closing for table, closing in likely.items() if table not in proven}


def find_breaks(lineage: Lineage, at_cut: Regions, regions_of: RegionsOf) -> list[Refusal]:
    """One refusal (of ANY_REGION) for every table that began a new history, by the log or by hbase:meta.

    `lineage`: up to a quiet cut; `at_cut`: the regions as of that cut. A later hbase:meta would be ahead of `lineage`:
    a region that was closed at the cut may have opened and been split since, with its daughters' openings past the cut.
    So a region that was open at the cut with a lower number than its closing proves a break, wherever it is now. Only
    for likely breaks is hbase:meta read again.
    """
    proven, likely = _breaks_in_meta(lineage, {t: regions for t, regions in at_cut.items() if t not in lineage.breaks})
    deadline = time.monotonic() + CONFIRM_SECONDS
    while likely and time.monotonic() < deadline:
        time.sleep(1.0)
        more, likely = _breaks_in_meta(lineage, {table: regions_of(table) for table in likely})
        proven |= more
    return refusals_of({**likely, **proven, **lineage.breaks})


def refusals_of(breaks: Mapping[str, RegionEvent]) -> list[Refusal]:
    """A refusal for each table that began a new history."""
    return [_refusal(event) for _, event in sorted(breaks.items())]


def changes(before: Known, lineage: Lineage, tables: Collection[str], at_cut: Regions) -> RegionChanges:
    """What to record about these tables for the next part of the log: a table may be disabled for longer than one part.

    Closed regions that have successors no longer exist and are dropped. `at_cut`: as in `find_breaks`; {} if the cut is
    past this part of the log: then only an opened successor proves that a region no longer exists.
    """
    present = {table: {region.encoded for region in regions} for table, regions in at_cut.items()}
    kept: dict[RegionKey, KnownRegion | None] = {}
    for key, known in lineage.known.items():
        table, region = key
        if table not in tables:
            continue
        gone = known.closed_sequence is not None and (
            lineage.is_succeeded(known) or bool(present.get(table) and region not in present[table])
        )
        if gone:
            kept[key] = None
        elif known != before.get(key):
            kept[key] = known
    return kept


def know_snapshot(ledger: RunLedger, table: str, regions: Mapping[str, Collection[str]]) -> None:
    """Record the store files of each region in the run's snapshot, by encoded name: the log continues from there."""
    ledger.regions.begin([KnownRegion(table, region, frozenset(files)) for region, files in regions.items()])


def _closing(known: KnownRegion, sequence_number: int) -> RegionEvent:
    place = (known.closed_file, known.closed_offset, known.table, known.region, sequence_number, known.closed_ms)
    return RegionEvent(Marker.REGION_CLOSE, *place)


def _refusal(event: RegionEvent) -> Refusal:
    at = "was written to after it had closed, without having opened again"
    if event.kind is Marker.REGION_CLOSE:
        at = "closed and did not continue"
    elif event.kind is Marker.REGION_OPEN:
        at = "was created from scratch" if _begins_history(event) else "opened without its earlier data"
    message = (
        f"region {event.region} {at}: at the source, {event.table} was truncated, dropped and created again, or "
        "restored from a snapshot, or a column family was dropped and added again; or the source has lost the end "
        "of a log, as after a power cut"
    )
    return Refusal(
        event.file, event.offset, event.offset, event.table, ANY_REGION, event.sequence_number, message, b"",
        RefusalKind.LINEAGE,
    )  # fmt: skip


def missing_tables(run: Run) -> list[str]:
    """Migrated tables that no longer exist at the source."""
    missing = []
    for pair in run.tables:
        try:
            run.source.describe(pair.source)
        except TableNotFoundError:
            missing.append(pair.source)
    return missing

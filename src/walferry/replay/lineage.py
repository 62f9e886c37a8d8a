"""Whether a table's history continues (R11).

A table that was truncated, dropped and created again (new, or cloned from a snapshot), or restored in place, begins a
new history and logs no deletes for what it lost. Its WAL and hbase:meta show it, as observed on HBase 2.6.3:

- created, truncated: a region opens that has no history of sequence numbers;
- restored: a region closes and opens again, with its name and its numbers, but without a store file that it had;
- dropped and cloned: the regions have their old names and older files, so they open below the sequence number at which
  they closed;
- restored or cloned with other borders: a region closed and no longer exists, and none that opened took over its files.
  The successors of a split or merge name them: `file.region` for a reference, `table=region-file` for a link.

The manifest of the run's snapshot says which files a region has, and from then on the log does: flushes, compactions
and bulk loads name the files added and removed, an opening names all. (A closing names none.) The ledger records this
for each region (`known_regions`), together with the ranges of the log that showed it. A drain and a window have no
snapshot: they notice only the loss of files that their part of the log has named.

A server that dies writes no closing. It may have installed a compaction's file without a marker, so an opening without
a preceding closing is not judged by files; a table that is not closed cannot be restored.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from walferry.apply.outcomes import Refusal
from walferry.apply.region_events import RegionEvent
from walferry.formats.markers import Marker
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import TableNotFoundError
from walferry.ledger import KnownRegion, RunLedger
from walferry.ledger.regions import RegionChanges, RegionKey
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.run.run import Run

log = logging.getLogger(__name__)

FIRST_SEQUENCE = 3
"""sequence number of the first opening of a newly created region; the daughters of an empty region that was split at
once begin at 6, after their parent's opening and closing"""
CONFIRM_SECONDS = 20.0
"""before 2.0 hbase:meta still shows a region's previous opening while the region is in transition"""

Known = Mapping[RegionKey, KnownRegion]
RegionsOf = Callable[[str], Sequence[Region]]
"""reads hbase:meta: a table's regions, none for one that was dropped"""


@dataclass(frozen=True)
class Lineage:
    """What a part of the log shows about regions."""

    breaks: Mapping[str, RegionEvent]
    """for each table that began a new history, the opening that shows it"""
    known: Mapping[RegionKey, KnownRegion]
    """what is known of each region after that part, including whether it is closed"""
    inherited: frozenset[str]
    """names of all store files of the regions that opened; for a link (`table=region-file`) also its destination"""

    def is_succeeded(self, region: KnownRegion) -> bool:
        """Whether regions that opened took over a closed one's files: a split passes on no file without a cell.

        A reference or link to its file shows it (StoreFileInfo, HFileLink), or a link that it had itself.
        """
        return any(
            not self.inherited.isdisjoint((f"{file}.{region.region}", f"={region.region}-{file}"))
            or ("=" in file and file in self.inherited)
            for file in region.store_files
        )


def follow(known: Known, events: Iterable[RegionEvent]) -> Lineage:
    """Follow regions through a part of the log, from what was known before it."""
    breaks: dict[str, RegionEvent] = {}
    after = dict(known)
    inherited: set[str] = set()
    for key, region in by_region(events).items():
        names = {name for event in region if event.kind is Marker.REGION_OPEN for name in event.files}
        inherited |= names | {name[name.rfind("=") :] for name in names if "=" in name}
        before = known.get(key, KnownRegion(*key, frozenset()))
        after[key], broken = _follow_region(before, region)
        if broken is not None:
            breaks.setdefault(key[0], broken)
    return Lineage(breaks, after, frozenset(inherited))


def _follow_region(before: KnownRegion, events: Sequence[RegionEvent]) -> tuple[KnownRegion, RegionEvent | None]:
    """What is known after these events, in the order of their sequence numbers, which rise with every move whatever the
    servers' clocks say; and the opening that shows a new history, if there is one.
    """
    broken: RegionEvent | None = None
    replaced = frozenset[str]().union(*(event.replaced for event in events))
    # The snapshot is newer than the log's first events: files that they add were not there before them.
    files = before.store_files.difference(*(event.files for event in events))
    closing, closed = None, before.closed_sequence is not None
    for event in events:
        if event.kind is Marker.REGION_CLOSE:
            closing, closed = event, True
            continue
        if event.kind is Marker.REGION_OPEN:
            if _begins_history(event) or (closed and not files - replaced <= event.files):
                broken = broken or event
            files = event.files
        else:
            files |= event.files
        closing, closed = None, False
    after = KnownRegion(before.table, before.region, files - replaced)
    if closing is not None:
        after = replace(
            after,
            closed_sequence=closing.sequence_number, closed_file=closing.file, closed_offset=closing.offset,
            closed_ms=closing.write_time,
        )  # fmt: skip
    return after, broken


def created(events: Iterable[RegionEvent]) -> dict[str, RegionEvent]:
    """For each table the first opening of a newly created region, which any part of the log shows by itself."""
    found: dict[str, RegionEvent] = {}
    for event in events:
        if _begins_history(event):
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


def breaks_in_meta(lineage: Lineage, regions: Mapping[str, Sequence[Region]]) -> dict[str, RegionEvent]:
    """For each table that began a new history, judged by its regions now, the closing after which it did.

    `lineage`: up to a quiet cut; `regions`: read after it. A table without regions was dropped: the gates report that.
    """
    breaks: dict[str, RegionEvent] = {}
    now = {table: {r.encoded: r for r in found} for table, found in regions.items()}
    for (table, region), known in lineage.known.items():
        if known.closed_sequence is None or not now.get(table):
            continue
        opened = now[table].get(region)
        if opened is not None:
            broken = opened.server is not None and opened.open_sequence <= known.closed_sequence
        else:
            broken = bool(known.store_files) and not lineage.is_succeeded(known)
        if broken:
            breaks.setdefault(table, _closing(known, known.closed_sequence))
    return breaks


def find_breaks(lineage: Lineage, regions_of: RegionsOf) -> list[Refusal]:
    """One refusal (of ANY_REGION) for every table that began a new history, by the log or by hbase:meta."""
    found = dict(lineage.breaks)
    deadline = time.monotonic() + CONFIRM_SECONDS
    while True:
        lost = breaks_in_meta(lineage, {table: regions_of(table) for table in _with_closed(lineage) - found.keys()})
        if not lost or time.monotonic() > deadline:
            break
        time.sleep(1.0)
    return refusals_of(found | lost)


def refusals_of(breaks: Mapping[str, RegionEvent]) -> list[Refusal]:
    """A refusal for each table that began a new history."""
    return [_refusal(event) for _, event in sorted(breaks.items())]


def changes(before: Known, lineage: Lineage, tables: Collection[str], regions_of: RegionsOf | None) -> RegionChanges:
    """What to record for the next part of the log, for these tables: a table may be disabled for longer than one part.

    Closed regions that have successors no longer exist and are dropped. `regions_of` None: hbase:meta is ahead of this
    part of the log, so only regions whose successors have opened are known not to exist.
    """
    present: dict[str, set[str]] = {}
    if regions_of is not None:
        present = {table: {r.encoded for r in regions_of(table)} for table in _with_closed(lineage) & set(tables)}
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
    """Record which store files each region has in the run's snapshot, by encoded name: the log continues from there."""
    ledger.regions.begin([KnownRegion(table, region, frozenset(files)) for region, files in regions.items()])


def _with_closed(lineage: Lineage) -> set[str]:
    return {table for (table, _), known in lineage.known.items() if known.closed_sequence is not None}


def _closing(known: KnownRegion, sequence_number: int) -> RegionEvent:
    place = (known.closed_file, known.closed_offset, known.table, known.region, sequence_number, known.closed_ms)
    return RegionEvent(Marker.REGION_CLOSE, *place)


def _refusal(event: RegionEvent) -> Refusal:
    at = "opened without what it held before" if event.kind is Marker.REGION_OPEN else "closed and did not continue"
    if _begins_history(event):
        at = "was created anew"
    message = (
        f"region {event.region} {at}: {event.table} was truncated, dropped and created again, restored from a "
        "snapshot, or lost a column family, at the source"
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

"""Does a table's history go on? (R11)

A table that was truncated, dropped and made anew (created, or cloned from a snapshot), or restored in place, begins
another history and logs no delete for what it lost. Its WAL and hbase:meta tell, by what was seen on HBase 2.6.3:

- created, truncated: a region opens that has no history of sequence numbers;
- restored: a region goes on with its name and its numbers, but opens without a store file that a flush or compaction
  made before, and that no compaction took out. (The marker of a closing lists no files, that of an opening all.)
- dropped and cloned: the regions have their old names and older files, so they open below the sequence number at which
  they closed;
- restored or cloned with other borders: a region closed and is no more, and none that opened took over its files. The
  heirs of a split or merge name them: `file.region` for a reference, `table=region-file` for a link.

Where all that was lost had been flushed in earlier rounds, a restore leaves none of these traces; the last comparison
finds what is missing.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from walferry.apply.index import RegionEvent
from walferry.apply.outcomes import Refusal
from walferry.formats.markers import Marker
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import TableNotFoundError
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.run.run import Run

log = logging.getLogger(__name__)

FIRST_SEQUENCE = 3
"""sequence number of the first opening of a region that was just created; the daughters of an empty region that was
split at once begin at 6, after their parent's opening and closing"""
CLOSED = "closed regions"
"""the note that keeps them, for each table"""
CONFIRM_SECONDS = 20.0
"""before 2.0 hbase:meta still shows a region's former opening while it is on its way"""


def breaks_in_log(events: Sequence[RegionEvent]) -> dict[str, RegionEvent]:
    """Of each table that began anew, by these events alone, the opening that shows it.

    `events`: all of the time that is looked at, so that no compaction is missing.
    """
    breaks: dict[str, RegionEvent] = {}
    for region in by_region(events):
        replaced = frozenset(name for event in region for name in event.replaced)
        made: frozenset[str] = frozenset()
        for event in region:  # by sequence number: it rises with every move, whatever the servers' clocks say
            if event.kind is Marker.REGION_OPEN:
                if event.sequence_number <= FIRST_SEQUENCE or not made - replaced <= event.files:
                    breaks.setdefault(event.table, event)
            else:
                made |= event.files
    return breaks


def breaks_in_meta(events: Sequence[RegionEvent], regions: Mapping[str, Sequence[Region]]) -> dict[str, RegionEvent]:
    """Of each table that began anew, by the regions that it has now, the closing after which it did.

    `events`: those before a quiet cut; `regions`: read after it. A table without regions was dropped: the gate tells.
    """
    breaks: dict[str, RegionEvent] = {}
    inherited = [name for event in events if event.kind is Marker.REGION_OPEN for name in event.files]
    for region in by_region(events):
        last = region[-1]
        now = {r.encoded: r for r in regions.get(last.table, ())}
        if last.kind is not Marker.REGION_CLOSE or not now:
            continue
        if last.region in now:
            opened = now[last.region]
            if opened.server is not None and opened.open_sequence <= last.sequence_number:
                breaks.setdefault(last.table, last)
            continue
        if not all(_is_inherited(file, last.region, inherited) for file in _files_left(region)):
            breaks.setdefault(last.table, last)
    return breaks


def by_region(events: Iterable[RegionEvent]) -> list[list[RegionEvent]]:
    """The events of each region, by sequence number."""
    regions: dict[tuple[str, str], list[RegionEvent]] = defaultdict(list)
    for event in events:
        regions[event.table, event.region].append(event)
    return [sorted(region, key=lambda event: event.sequence_number) for region in regions.values()]


def _is_inherited(file: str, region: str, names: Iterable[str]) -> bool:
    """Whether a region opened with a reference or a link to another one's file (StoreFileInfo, HFileLink)."""
    return any(name.startswith(f"{file}.{region}") or f"={region}-{file}" in name for name in names)


def find_breaks(events: Sequence[RegionEvent], regions_of: Callable[[str], Sequence[Region]]) -> list[Refusal]:
    """One refusal (of ANY_REGION) for every table that began a new history in a batch.

    `events`: those of the batch, and the `closed_regions` before it; `regions_of` reads hbase:meta.
    """
    found = breaks_in_log(events)
    deadline = time.monotonic() + CONFIRM_SECONDS
    while True:
        tables = {event.table for event in events} - found.keys()
        lost = breaks_in_meta(events, {table: regions_of(table) for table in tables})
        if not lost or time.monotonic() > deadline:
            break
        time.sleep(1.0)
    return [_refusal(event) for _, event in sorted((found | lost).items())]


def created_anew(events: Iterable[RegionEvent]) -> list[Refusal]:
    """One refusal (of ANY_REGION) for every table of which a region opened without a history of sequence numbers.

    Of the signs of a new history the one that shows in any part of the log by itself.
    """
    first: dict[str, RegionEvent] = {}
    for event in events:
        if event.kind is Marker.REGION_OPEN and event.sequence_number <= FIRST_SEQUENCE:
            first.setdefault(event.table, event)
    return [_refusal(event) for _, event in sorted(first.items())]


def closed_regions(run: Run, tables: Iterable[str]) -> list[RegionEvent]:
    """Of the regions that were closed in earlier batches and not opened again: a closing, with the files they had."""
    events = []
    for table in tables:
        for kept in (run.ledger.notes.get(CLOSED, table) or {"regions": []})["regions"]:
            place = (kept["file"], kept["offset"], table, kept["region"], kept["sequence_number"], kept["write_time"])
            events.append(RegionEvent(Marker.FLUSH, *place, frozenset(kept["files"])))
            events.append(RegionEvent(Marker.REGION_CLOSE, *place))
    return events


def keep_closed_regions(
    run: Run, tables: Iterable[str], events: Sequence[RegionEvent], regions_of: Callable[[str], Sequence[Region]]
) -> None:
    """Keep those that are closed after these events, for the next batch: a table may be disabled for longer than one.

    Not those that have heirs instead: they are no more.
    """
    kept: dict[str, list[dict[str, object]]] = {table: [] for table in tables}
    closed = [region for region in by_region(events) if region[-1].kind is Marker.REGION_CLOSE]
    now = {table: {r.encoded for r in regions_of(table)} for table in {region[-1].table for region in closed}}
    for region in closed:
        last = region[-1]
        if last.table in kept and (last.region in now[last.table] or not now[last.table]):
            kept[last.table].append(
                {"region": last.region, "sequence_number": last.sequence_number, "write_time": last.write_time,
                 "file": last.file, "offset": last.offset, "files": sorted(_files_left(region))}
            )  # fmt: skip
    for table, regions in kept.items():
        if regions or run.ledger.notes.get(CLOSED, table):
            run.ledger.notes.keep(CLOSED, {"regions": regions}, table)


def _files_left(region: Sequence[RegionEvent]) -> frozenset[str]:
    """Store files that a region made, by these events of its, and did not compact away."""
    replaced = frozenset(name for event in region for name in event.replaced)
    made = [event.files for event in region if event.kind in (Marker.FLUSH, Marker.COMPACTION)]
    return frozenset[str]().union(*made) - replaced


def _refusal(event: RegionEvent) -> Refusal:
    at = "opened without what it held before" if event.kind is Marker.REGION_OPEN else "closed and did not go on"
    if event.kind is Marker.REGION_OPEN and event.sequence_number <= FIRST_SEQUENCE:
        at = "was created anew"
    message = (
        f"region {event.region} {at}: {event.table} was truncated, dropped and made again, or restored from a "
        "snapshot, at the source"
    )
    return Refusal(
        event.file, event.offset, event.offset, event.table, ANY_REGION, event.sequence_number, message, b"",
        RefusalKind.LINEAGE,
    )  # fmt: skip


def missing_tables(run: Run) -> list[str]:
    """Migrated tables that the source does not have any more."""
    missing = []
    for pair in run.tables:
        try:
            run.source.describe(pair.source)
        except TableNotFoundError:
            missing.append(pair.source)
    return missing

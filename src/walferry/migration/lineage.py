"""Does a table's history go on? (R11)

A table that was truncated, dropped and created again, or restored from a snapshot starts anew and logs no delete for
what it lost. Its WAL tells: a region opens that has neither store files nor a history of sequence numbers, although
the table existed before; or a region comes back without store files that it had when it was closed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from walferry.formats.wal import Marker
from walferry.hbase.errors import TableNotFoundError
from walferry.migration.context import Migration
from walferry.spark.sealed import Refusal, RegionEvent

log = logging.getLogger(__name__)

LINEAGE = "lineage: "
FIRST_SEQUENCE = 2
"""the sequence number up to which a region that was just created writes its first opening"""


def find_breaks(migration: Migration, events: Sequence[RegionEvent]) -> list[Refusal]:
    """One refusal (region None: the whole table) for every table whose history broke off in these events."""
    closed: dict[str, RegionEvent] = {}
    breaks: dict[str, Refusal] = {}
    for event in sorted(events, key=lambda event: (event.region, event.sequence_number)):
        reason = None
        if event.kind is Marker.REGION_CLOSE:
            closed[event.region] = event
        elif event.sequence_number <= FIRST_SEQUENCE and not event.stores:
            reason = f"region {event.region} was created anew"
        elif event.region in closed and closed[event.region].stores - event.stores:
            lost = sorted(closed[event.region].stores - event.stores)
            reason = f"region {event.region} came back without store file {lost[0]}"
        if reason is not None and event.table not in breaks:
            message = f"{LINEAGE}{reason}: {event.table} was truncated, created again or restored at the source"
            breaks[event.table] = Refusal(
                event.file, event.offset, event.offset, event.table, None, event.sequence_number, message, b""
            )
    return list(breaks.values())


def missing_tables(migration: Migration) -> list[str]:
    """Migrated tables that the source does not have any more."""
    missing = []
    for pair in migration.tables:
        try:
            migration.source.describe(pair.source)
        except TableNotFoundError:
            missing.append(pair.source)
    return missing

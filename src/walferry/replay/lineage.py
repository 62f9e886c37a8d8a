"""Does a table's history go on? (R11)

A table that was truncated, or dropped and created again, starts anew and logs no delete for what it lost. Its WAL
tells: a region opens that has no history of sequence numbers, although the table existed before. A table that was
restored in place goes on with its regions and numbers; the last comparison finds what it lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from walferry.apply.index import RegionEvent
from walferry.apply.outcomes import Refusal
from walferry.formats.markers import Marker
from walferry.hbase.errors import TableNotFoundError
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.run.run import Run

log = logging.getLogger(__name__)

FIRST_SEQUENCE = 3
"""sequence number of the first opening of a region that was just created; the daughters of an empty region that was
split at once begin at 6, behind their parent's opening and closing"""


def find_breaks(events: Sequence[RegionEvent]) -> list[Refusal]:
    """One refusal (of ANY_REGION) for every table in which these events show a region created anew."""
    breaks: dict[str, Refusal] = {}
    for event in events:
        if event.kind is Marker.REGION_OPEN and event.sequence_number <= FIRST_SEQUENCE and event.table not in breaks:
            message = (
                f"region {event.region} was created anew: {event.table} was truncated, or dropped and "
                "created again, at the source"
            )
            breaks[event.table] = Refusal(
                event.file,
                event.offset,
                event.offset,
                event.table,
                ANY_REGION,
                event.sequence_number,
                message,
                b"",
                RefusalKind.LINEAGE,
            )
    return list(breaks.values())


def missing_tables(run: Run) -> list[str]:
    """Migrated tables that the source does not have any more."""
    missing = []
    for pair in run.tables:
        try:
            run.source.describe(pair.source)
        except TableNotFoundError:
            missing.append(pair.source)
    return missing

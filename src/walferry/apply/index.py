"""What a sealed WAL file holds, read without applying anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from walferry.apply.outcomes import FileReport, Refusal, Tally, damage, unreadable_markers
from walferry.apply.region_events import RegionEvent, region_events
from walferry.errors import DamagedInputError
from walferry.formats.markers import Marker
from walferry.spark.byte_counts import count_bytes
from walferry.wal.files import WalFile
from walferry.wal.open import Wal


@dataclass(frozen=True)
class FileIndex:
    """What one file holds for the wanted tables."""

    group: str
    report: FileReport
    regions: frozenset[tuple[str, str]]
    """(table, region) with edits"""


def index_file(wal: Wal, file: WalFile, tables: Collection[str]) -> FileIndex:
    """Read one sealed file: tallies, regions, region events and unreadable markers of the wanted tables."""
    tally = Tally(tables)
    regions: set[tuple[str, str]] = set()
    events: list[RegionEvent] = []
    refusals: list[Refusal] = []
    complete = True
    try:
        for batch in wal:
            selected = tally.add(batch)
            events += region_events(batch, file.name, selected)
            refusals += unreadable_markers(batch, file.name, tables)
            edits = selected & (batch.marker == Marker.NONE)
            pairs = np.unique(np.stack([batch.table[edits], batch.region[edits]]), axis=1)
            regions |= {(batch.tables[t].decode(), batch.regions[r].decode()) for t, r in pairs.T}
            if len(batch):
                count_bytes(int(batch.end[-1] - batch.start[0]))
    except DamagedInputError as error:
        refusals.append(damage(error))
        complete = False
    length = wal.length if complete else file.length
    report = FileReport(file.name, length, complete, tally.rows(), tuple(refusals), (), tuple(events))
    return FileIndex(file.group, report, frozenset(regions))

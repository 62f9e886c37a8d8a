"""What a sealed WAL file holds, read without applying anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from walferry.apply.outcomes import FileReport, Refusal, Tally, damage, unreadable_markers
from walferry.errors import DamagedInputError
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.spark.byte_counts import count_bytes
from walferry.wal.files import WalFile
from walferry.wal.open import Wal


@dataclass(frozen=True)
class RegionEvent:
    """A region was opened or closed."""

    kind: Marker
    file: str
    offset: int
    table: str
    region: str
    sequence_number: int
    write_time: int


@dataclass(frozen=True)
class FileIndex:
    """What one file holds of the wanted tables: which regions, and what happened to them."""

    group: str
    report: FileReport
    regions: frozenset[tuple[str, str]]
    """(table, region) with edits"""
    events: tuple[RegionEvent, ...]


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
            refusals += unreadable_markers(batch, file.name, tables)
            edits = selected & (batch.marker == Marker.NONE)
            pairs = np.unique(np.stack([batch.table[edits], batch.region[edits]]), axis=1)
            regions |= {(batch.tables[t].decode(), batch.regions[r].decode()) for t, r in pairs.T}
            opened = (batch.marker == Marker.REGION_OPEN) | (batch.marker == Marker.REGION_CLOSE)
            if len(batch):
                count_bytes(int(batch.end[-1] - batch.start[0]))
            events += [_event(file, batch, int(i)) for i in np.flatnonzero(selected & opened)]
    except DamagedInputError as error:
        refusals.append(damage(error))
        complete = False
    report = FileReport(file.name, wal.length if complete else file.length, complete, tally.rows(), tuple(refusals), ())
    return FileIndex(file.group, report, frozenset(regions), tuple(events))


def _event(file: WalFile, batch: EntryBatch, entry: int) -> RegionEvent:
    return RegionEvent(
        Marker(int(batch.marker[entry])),
        file.name,
        batch.base + int(batch.start[entry]),
        batch.tables[batch.table[entry]].decode(),
        batch.regions[batch.region[entry]].decode(),
        int(batch.sequence_number[entry]),
        int(batch.write_time[entry]),
    )

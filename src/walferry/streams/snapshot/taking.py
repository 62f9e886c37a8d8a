"""Takes a table's snapshot, and finds what of the log it has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from walferry.clock import now_ms
from walferry.errors import UsageError, WalferryError
from walferry.hbase.descriptors import TableDescriptor
from walferry.replay.keeping.objects import take_snapshot
from walferry.run.run import LogRun
from walferry.snapshots.flushed import flushed
from walferry.snapshots.manifest import SnapshotRegion, read_info, read_manifest, snapshot_regions
from walferry.snapshots.readable import why_unreadable
from walferry.storage import FileSystem
from walferry.streams.ordering.sent import RegionSent
from walferry.streams.ordering.stays import NEVER
from walferry.streams.snapshot.records import RegionRows

log = logging.getLogger(__name__)

OPEN_AT_ONCE = 8


class RegionsChangedError(WalferryError):
    """A snapshot has regions that the stream has not seen yet; fact `regions`."""


@dataclass(frozen=True)
class Taken:
    """A snapshot that was taken."""

    name: str
    taken_ms: int
    """by the master's clock"""
    complete_ms: int
    """by this process's clock: it was complete by then"""
    regions: Mapping[str, RegionRows]


def require_readable(table: TableDescriptor) -> None:
    """Raise UsageError for a table whose snapshot cannot be read."""
    if why := why_unreadable(table):
        raise UsageError(
            f"the rows that {table.name} has cannot be sent, since {why}: stream it without `snapshot`",
            table=table.name,
        )


def take(run: LogRun, table: str, name: str, before: Mapping[str, RegionSent], *, joins: bool) -> Taken:
    """Take a FLUSH snapshot, unless it exists, while no change of the table is sent.

    `before`: how far each region of the table was sent. Unless the table `joins` the stream, so that nothing was,
    raises RegionsChangedError for a region that is not among them: its incarnation is not known. Raises UsageError for
    a table that cannot be read.
    """
    description = run.source.describe(table)
    require_readable(description)
    take_snapshot(run, name, table)
    complete_ms = now_ms()
    regions = regions_of(run, name)
    unknown = [region.name for region in regions if region.name not in before]
    if unknown and not joins:
        raise RegionsChangedError(
            f"regions of {table} have changed while its snapshot was taken", table=table, regions=unknown
        )
    files, families = run.source_files, [family.encode() for family in description.families]
    taken_ms = int(read_info(files, run.source_root, name).creation_time)
    with ThreadPoolExecutor(OPEN_AT_ONCE, thread_name_prefix="store files") as opening:
        rows = list(opening.map(lambda one: _rows(files, one, table, families, before.get(one.name)), regions))
    return Taken(name, taken_ms, complete_ms, {one.name: found for one, found in zip(regions, rows, strict=True)})


def regions_of(run: LogRun, name: str) -> list[SnapshotRegion]:
    """The regions of a snapshot. Raises WalferryError if it does not exist."""
    return snapshot_regions(run.source_root, read_manifest(run.source_files, run.source_root, name))


def snapshot_table(run: LogRun, name: str) -> TableDescriptor:
    """The descriptor of a snapshot's table. Raises WalferryError if it does not exist."""
    return TableDescriptor(read_manifest(run.source_files, run.source_root, name).table_schema)


def _rows(
    files: FileSystem, region: SnapshotRegion, table: str, families: list[bytes], before: RegionSent | None
) -> RegionRows:
    found = flushed(files, region)
    sent = NEVER if before is None else before.number
    numbers = dict.fromkeys(families, max(0, sent))  # what was sent was acknowledged before, so the snapshot has it
    for family, number in found.numbers.items():
        numbers[family] = max(numbers.get(family, 0), number)
    return RegionRows(
        table, region.start, region.region_id, numbers, found.loaded,
        0 if before is None else before.incarnation, region.start if region.files else None,
    )  # fmt: skip

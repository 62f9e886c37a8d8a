"""Read both sides of a table from the store files of snapshots, not through the region servers.

A snapshot is consistent per region only, and the two snapshots are not from the same moment. So rows that differ are
read again live, as after any comparison. The files hold what a raw scan shows, plus cells beyond their own TTL, which
`merge.alive` removes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise

from pyspark.sql import SparkSession

from walferry.clock import now_ms
from walferry.errors import UnreadableInputError
from walferry.formats.cells import CellIndex
from walferry.formats.resolve import FamilyRules
from walferry.hbase.descriptors import TableDescriptor
from walferry.ledger.rows import ClusterSide, Purpose
from walferry.migration.sides.digest import NOTHING, SHOWN_ROWS, Outcome, RangePair, Taken, compare_pair, scans
from walferry.replay.keeping.objects import drop_snapshot
from walferry.run.run import Run
from walferry.snapshots.manifest import (
    SnapshotRegion,
    cells_of,
    common_rows,
    read_manifest,
    rows_inside,
    snapshot_regions,
)
from walferry.spark.clients import shared_files
from walferry.spark.fan_out import fan_out
from walferry.storage import FileSystem

log = logging.getLogger(__name__)

RANGE_BYTES = 64 << 20
"""the source's store files that one task compares at a time"""
LEAST_BYTES = 512 << 20
"""the least size of a table for which snapshots are worth taking: for 160 MB, both ways take the same time"""

_SIDES: tuple[ClusterSide, ClusterSide] = ("source", "target")


def rules_of(descriptor: TableDescriptor) -> dict[bytes, FamilyRules]:
    """The retention rules of a table's families."""
    return {
        name.encode(): FamilyRules(family.max_versions, family.min_versions, family.ttl_ms)
        for name, family in descriptor.families.items()
    }


@dataclass(frozen=True)
class StoredTables:
    """Snapshots of a table and of its copy."""

    source: tuple[SnapshotRegion, ...]
    target: tuple[SnapshotRegion, ...] | None
    """None: the copy is scanned, and the moment of each read decides which cells have expired"""
    first_ms: int
    """before the first snapshot started"""
    last_ms: int
    """after the last snapshot was complete"""


def why_scanned(run: Run, table: str) -> str | None:
    """Why a table is compared by scans unless the user chooses otherwise; None if it is compared by snapshots."""
    pair = run.pair(table)
    for client, name in ((run.source, pair.source), (run.target, pair.target)):
        for family in client.describe(name).families.values():
            # MOB keeps values elsewhere, NEW_VERSION_BEHAVIOR orders by more than a cell, ENCRYPTION needs keys.
            for attribute in ("IS_MOB", "NEW_VERSION_BEHAVIOR", "ENCRYPTION"):
                if family.attributes.get(attribute, "FALSE").upper() not in ("FALSE", ""):
                    return f"family {family.name} of {name} has {attribute}"
    held = run.source.held_bytes().get(table, 0)
    return f"it has {held >> 20} MiB, too little for a snapshot to be worthwhile" if held < LEAST_BYTES else None


@contextmanager
def snapshots_taken(run: Run, table: str, purpose: Purpose) -> Iterator[StoredTables]:
    """Take snapshots of both sides, and delete them at the end. Snapshots that a killed comparison left are deleted
    first.

    Raises UnreadableInputError if the regions of a snapshot leave out rows.
    """
    pair = run.pair(table)
    prefix = f"{run.snapshot(table)}-{purpose}-"
    clients = dict(zip(_SIDES, (run.source, run.target), strict=True))
    _delete(run, prefix)
    first_ms = now_ms()
    name = f"{prefix}{first_ms}"  # a new name: HBase would return an older snapshot of the same name
    for side in _SIDES:
        run.ledger.objects.plan(side, "snapshot", name)
    try:
        with ThreadPoolExecutor(len(_SIDES)) as both:
            asked = [
                both.submit(clients[side].snapshot, name, of)
                for side, of in zip(_SIDES, (pair.source, pair.target), strict=True)
            ]
        for side, made in zip(_SIDES, asked, strict=True):
            made.result()
            run.ledger.objects.made(side, "snapshot", name)
        last_ms = now_ms()
        source = snapshot_regions(run.source_root, read_manifest(run.source_files, run.source_root, name))
        target = snapshot_regions(run.target_root, read_manifest(run.target_files, run.target_root, name))
        for regions, of in ((source, pair.source), (target, pair.target)):
            _require_all_rows(regions, of)
        yield StoredTables(tuple(source), tuple(target), first_ms, last_ms)
    finally:
        _delete(run, prefix)


def compare_stored(
    run: Run, spark: SparkSession | None, pairs: Sequence[RangePair], stored: StoredTables
) -> list[Outcome]:
    """Compare ranges, each within one region of the source's snapshot, from the files of both sides."""
    regions = {region.name: region for region in stored.source}
    cut = [
        _StoredPair(
            replace(pair, start=start, stop=stop),
            (regions[pair.region],), None if stored.target is None else _within(stored.target, start, stop),
            stored.first_ms, stored.last_ms,
        )
        for pair in pairs
        for start, stop in pairwise(
            [pair.start, *rows_inside(run.source_files, regions[pair.region], RANGE_BYTES), pair.stop]
        )
    ]  # fmt: skip
    named = max(SHOWN_ROWS, sum(pair.named for pair in pairs) // max(1, len(cut)))
    cut = [replace(item, pair=replace(item.pair, named=named)) for item in cut]
    found = iter(fan_out(spark, lambda item: [_compare(item)], cut, what="compare snapshots of both sides"))
    numbers = Counter(item.pair.region for item in cut)
    totals = []
    for pair in pairs:
        total = sum(islice(found, numbers[pair.region]), NOTHING)
        totals.append(replace(total, rows=total.rows[: pair.named]))
    return totals


@dataclass(frozen=True)
class _StoredPair:
    """A row range, and the regions of both snapshots that have rows of it."""

    pair: RangePair
    source: tuple[SnapshotRegion, ...]
    target: tuple[SnapshotRegion, ...] | None
    first_ms: int
    last_ms: int


def _compare(item: _StoredPair) -> Outcome:
    """Compare one range, in an executor."""
    here = partial(_scan, shared_files(item.pair.source), item.source)
    if item.target is None:
        return compare_pair(item.pair, partial(here, None), scans(item.pair)[1])
    there = partial(_scan, shared_files(item.pair.target), item.target, item.first_ms)
    taken = Taken(item.first_ms, item.last_ms, scans(item.pair))
    return compare_pair(item.pair, partial(here, item.first_ms), there, taken=taken)


def _scan(
    files: FileSystem, regions: Sequence[SnapshotRegion], at_ms: int | None, start: bytes, stop: bytes
) -> Iterator[CellIndex]:
    """The cells of a row range, as region servers would have shown them at a moment; None: now."""
    moment = now_ms() if at_ms is None else at_ms
    for region in _within(regions, start, stop):
        first, end = common_rows(region.start, region.end, start, stop)
        yield from cells_of(files, replace(region, start=first, end=end), moment)


def _within(regions: Sequence[SnapshotRegion], start: bytes, stop: bytes) -> tuple[SnapshotRegion, ...]:
    """The regions that have rows of a range."""
    return tuple(
        region for region in regions if (not stop or region.start < stop) and (not region.end or start < region.end)
    )


def _require_all_rows(regions: Sequence[SnapshotRegion], table: str) -> None:
    """Raise UnreadableInputError unless the regions have every row once."""
    borders = [b"", *(region.end for region in regions)]
    starts = [*(region.start for region in regions), b""]
    if borders != starts or any(not end for end in borders[1:-1]):
        raise UnreadableInputError(
            f"the regions of the snapshot of {table} leave out some rows, or have some rows twice",
            file=table, offset=0,
            reason="regions with holes",
        )  # fmt: skip


def _delete(run: Run, prefix: str) -> None:
    """Delete the snapshots of a comparison; the next comparison or `release` deletes one that cannot be deleted now."""
    for item in run.ledger.objects.all():
        if item.kind != "snapshot" or item.state == "removed" or not item.name.startswith(prefix):
            continue
        drop_snapshot(run, run.source if item.cluster == "source" else run.target, item.cluster, item.name)

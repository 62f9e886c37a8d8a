"""What could not be applied (R5): put away with its bytes, its regions held back, and the operator's ways out of it.

A hold says that nothing of a region (or of a whole table, region "*") is applied from an offset of a file on. As
long as a file has holds, its bytes are no coverage, and the gate to cutover is shut.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from walferry.errors import DamagedInputError, UsageError
from walferry.ledger import Hold, Quarantined, QuarantineItem, WalRange
from walferry.ledger.rows import Resolution
from walferry.migration.context import Migration
from walferry.migration.lineage import LINEAGE
from walferry.spark.by_row import EVERY_REGION, RowTask, apply_by_row
from walferry.spark.pipe import Pipe
from walferry.spark.reread import reread_rows
from walferry.spark.sealed import FileReport, Refusal, TableTally
from walferry.wal.files import Place, WalFile

log = logging.getLogger(__name__)


def held_regions(migration: Migration) -> dict[str, set[str]]:
    """Of each source table the encoded regions that wait; "*" stands for all of them."""
    held: dict[str, set[str]] = defaultdict(set)
    for hold in migration.ledger.holds(migration.run_id):
        held[hold.table].add(hold.region)
    return held


def untouched(file: WalFile, tables: Collection[str]) -> FileReport:
    """The report of a file of which nothing was applied for these tables."""
    tallies = tuple(TableTally(table, 0, 0, 0, 0) for table in sorted(tables))
    return FileReport(file.name, file.length, False, 0, tallies, (), ())


def record(migration: Migration, reports: Sequence[FileReport]) -> None:
    """Write a batch into the ledger: quarantine and holds first, then ranges.

    A kill in between repeats the batch behind the holds, so that nothing overtakes what was put away.
    """
    refusals = [refusal for report in reports for refusal in report.refusals]
    ids = migration.ledger.quarantine(migration.run_id, [_item(refusal) for refusal in refusals])
    for refusal, number in zip(refusals, ids, strict=True):
        log.error("quarantine %d: %s at byte %d: %s", number, refusal.file, refusal.start, refusal.reason)
    holds = _holds(migration, reports, dict(zip(refusals, ids, strict=True)))
    migration.ledger.hold_regions(migration.run_id, holds)
    waiting = {(hold.file, hold.table) for hold in holds}
    migration.ledger.set_ranges(
        migration.run_id,
        [
            WalRange(
                file=report.file,
                start=0,
                end=report.length,
                table=tally.table,
                entries=tally.entries,
                cells=tally.cells,
                first_write_ms=tally.first_write_ms or None,
                last_write_ms=tally.last_write_ms or None,
                state="sealed" if (report.file, tally.table) in waiting else "applied",
            )
            for report in reports
            for tally in report.tallies
        ],
    )


def _item(refusal: Refusal) -> QuarantineItem:
    return QuarantineItem(
        refusal.file, refusal.start, max(refusal.start, refusal.end), refusal.table, refusal.region or "",
        refusal.sequence_number, refusal.reason, refusal.data,
    )  # fmt: skip


def _holds(migration: Migration, reports: Sequence[FileReport], ids: dict[Refusal, int]) -> list[Hold]:
    behind = {(hold.table, hold.region): hold.quarantine_id for hold in migration.ledger.holds(migration.run_id)}
    for refusal, number in ids.items():
        tables = [pair.source for pair in migration.tables] if refusal.table == "*" else [refusal.table]
        for table in tables:
            behind.setdefault((table, refusal.region or EVERY_REGION), number)
    holds = []
    for report in reports:
        if not report.complete:
            holds += [
                Hold(report.file, tally.table, EVERY_REGION, report.applied_to, behind[tally.table, EVERY_REGION])
                for tally in report.tallies
            ]
        for item in report.withheld:
            number = behind.get((item.table, item.region)) or behind[item.table, EVERY_REGION]
            holds.append(Hold(item.file, item.table, item.region, item.from_offset, number))
    return holds


# ------------------------------------------------------------------ the way out


def release(migration: Migration, quarantine_id: int, resolution: Resolution, reason: str) -> Quarantined:
    """Record an operator's decision; the next round carries it out.

    retry: apply the entry again (after the target was mended). reread: copy the rows' present state from the
    source, then go on behind the entry. accept: go on without it, for the recorded reason.
    Raises UsageError for a broken lineage, which no release can mend.
    """
    for item in migration.ledger.quarantined(migration.run_id):
        if item.quarantine_id == quarantine_id and item.reason.startswith(LINEAGE):
            raise UsageError(
                f"quarantine {quarantine_id}: {item.table} began a new history at the source; its edits do not "
                "belong to the copied one. Abort this run and migrate the table into a fresh target table",
                quarantine=quarantine_id,
            )
    return migration.ledger.release(quarantine_id, resolution, reason, migration.actor)


def apply_released(migration: Migration, spark: SparkSession, pipe: Pipe) -> None:
    """Apply what waited behind every released item, in row order, and lift its holds."""
    holds = migration.ledger.holds(migration.run_id)
    for item in migration.ledger.quarantined(migration.run_id, "released"):
        mine = [hold for hold in holds if hold.quarantine_id == item.quarantine_id]
        if mine:
            _apply_one(migration, spark, pipe, item, mine, holds)


def _apply_one(
    migration: Migration, spark: SparkSession, pipe: Pipe, item: Quarantined, mine: list[Hold], holds: list[Hold]
) -> None:
    tables = {hold.table for hold in mine}
    narrow = replace(pipe, tables={s: t for s, t in pipe.tables.items() if s in tables})
    log.info("quarantine %d: %s, as %s decided", item.quarantine_id, item.resolution, item.released_by)
    if item.resolution == "reread":
        for table in sorted(tables):
            region = None if item.region == "" else item.region
            reread_rows(spark, narrow, table, _borders(migration, table, region))
    damage = item.table == "*"
    out_of_the_way = item.resolution != "retry"
    known = {file.name: file for file in migration.ledger.files(migration.run_id)}
    files = tuple(
        WalFile(f.name, f.group, f.server, f.number, f.path, Place.ARCHIVED, f.length)
        for f in (known[name] for name in dict.fromkeys(hold.file for hold in mine))
    )
    task = RowTask(
        narrow,
        files,
        from_offset={(hold.file, hold.region): hold.from_offset for hold in mine},
        skipped=frozenset({(item.file, item.start)}) if out_of_the_way and not damage else frozenset(),
        cut_off={item.file: item.start} if out_of_the_way and damage else {},
        held=frozenset(h.region for h in holds if h.quarantine_id != item.quarantine_id and h.region != EVERY_REGION),
    )
    try:
        refusals = apply_by_row(spark, task).refusals
    except DamagedInputError as error:
        refusals = (Refusal(item.file, item.start, -1, "*", None, 0, str(error), b""),)
    if refusals:
        _hold_again(migration, item, mine, refusals[0])
        return
    migration.ledger.drop_holds(migration.run_id, item.quarantine_id)
    still = {(hold.file, hold.table) for hold in migration.ledger.holds(migration.run_id)}
    for table in sorted(tables):
        done = [hold.file for hold in mine if hold.table == table and (hold.file, table) not in still]
        migration.ledger.mark_applied(migration.run_id, done, [table])


def _hold_again(migration: Migration, item: Quarantined, mine: Sequence[Hold], refusal: Refusal) -> None:
    """What was released is refused once more: a new item takes over the holds."""
    again = replace(_item(refusal), reason=f"again, after {item.resolution} of {item.quarantine_id}: {refusal.reason}")
    (number,) = migration.ledger.quarantine(migration.run_id, [again])
    migration.ledger.hold_regions(migration.run_id, [replace(hold, quarantine_id=number) for hold in mine])
    migration.ledger.drop_holds(migration.run_id, item.quarantine_id)
    log.error("quarantine %d: %s", number, again.reason)


def _borders(migration: Migration, table: str, region: str | None) -> list[tuple[bytes, bytes]]:
    """Row ranges to read again: a region's, or those of all regions when it is not known or there no more."""
    regions = migration.source.regions(table)
    chosen = [r for r in regions if r.encoded == region] or regions
    return [(r.start, r.end) for r in chosen]


def describe(item: Quarantined) -> dict[str, Any]:
    """An item as `walferry quarantine` shows it, without its bytes."""
    return {
        "id": item.quarantine_id, "state": item.state, "table": item.table, "region": item.region,
        "file": item.file, "start": item.start, "end": item.end, "bytes": len(item.data), "reason": item.reason,
        "resolution": item.resolution, "released_by": item.released_by, "release_reason": item.release_reason,
    }  # fmt: skip

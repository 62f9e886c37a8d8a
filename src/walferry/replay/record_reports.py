"""Records what a batch's files reported: their edits as applied, and what could not be applied in quarantine (R5)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial

from sqlalchemy import Connection

from walferry.apply.outcomes import FileReport, Refusal, TableTally
from walferry.ledger import Hold, QuarantineItem, WalRange
from walferry.ledger.batches import Change, in_one
from walferry.ledger.regions import RegionChanges
from walferry.ledger.rows import RangeState
from walferry.refusals import ANY_REGION, ANY_TABLE
from walferry.run.run import Run
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)


def untouched(file: WalFile, tables: Collection[str]) -> FileReport:
    """The report of a file from which nothing was applied for these tables."""
    tallies = tuple(TableTally(table, 0, 0, 0, 0) for table in sorted(tables))
    return FileReport(file.name, file.length, False, tallies, (), ())


def record_reports(run: Run, reports: Sequence[FileReport], also: Change, regions: RegionChanges | None = None) -> None:
    """Record reports in the ledger: quarantine items, holds, ranges, and what the reports show about `regions`.

    Everything is written in one transaction with `also`, which checks the lease. A kill before the transaction makes
    the next process repeat the whole piece. A file that was not read to its end is recorded without entries, and is
    read again once it is released (`_unread`).
    """
    refusals, tables = [refusal for report in reports for refusal in report.refusals], [p.source for p in run.tables]
    kept, ids = run.ledger.quarantine, list[int]()
    holds_of = partial(_holds, tables, kept.holds(), reports, refusals)

    def quarantine(connection: Connection) -> None:
        ids[:] = kept.put_in(connection, [item_of(refusal) for refusal in refusals], holds_of)

    waiting = {(report.file, table) for report in reports for table, _ in _withheld(report)}
    waiting |= {(refusal.file, table) for refusal in refusals for table in _tables_of(refusal, tables)}
    run.ledger.log.set_ranges(
        [
            range_of(
                report,
                tally if report.complete else TableTally(tally.table, 0, 0, 0, 0),
                "sealed" if (report.file, tally.table) in waiting else "applied",
            )
            for report in reports
            for tally in report.tallies
        ],
        regions,
        in_one(also, quarantine),
        {report.file: report.length for report in reports if report.complete},
    )
    for refusal, number in zip(refusals, ids, strict=True):
        log.error("quarantine %d: %s at byte %d: %s", number, refusal.file, refusal.start, refusal.reason)


def range_of(report: FileReport, tally: TableTally, state: RangeState) -> WalRange:
    """The ledger's range for one table that covers a whole file."""
    return WalRange(
        file=report.file, start=0, end=report.length, table=tally.table, entries=tally.entries, cells=tally.cells,
        first_write_ms=tally.first_write_ms or None, last_write_ms=tally.last_write_ms or None, state=state,
    )  # fmt: skip


def item_of(refusal: Refusal) -> QuarantineItem:
    """The quarantine item for a refusal."""
    return QuarantineItem(
        refusal.file, refusal.start, max(refusal.start, refusal.end), refusal.table, refusal.region,
        refusal.sequence_number, refusal.reason, refusal.data, refusal.kind,
    )  # fmt: skip


def _holds(
    tables: Sequence[str],
    known: Sequence[Hold],
    reports: Sequence[FileReport],
    refusals: Sequence[Refusal],
    ids: Sequence[int],
) -> list[Hold]:
    """The holds to add to the `known` ones; `ids` are the quarantine items of the refusals."""
    numbers = dict(zip(refusals, ids, strict=True))
    held_by: dict[tuple[str, str], int] = {}
    for hold in known:
        held_by[hold.table, hold.region] = hold.quarantine_id
        held_by.setdefault((hold.table, ANY_REGION), hold.quarantine_id)
    for refusal, number in numbers.items():
        for table in _tables_of(refusal, tables):
            held_by.setdefault((table, refusal.region), number)
            held_by.setdefault((table, ANY_REGION), number)
    # Hold from the start of each file: applying a held region's edits again changes nothing, and a batch that is
    # repeated after a kill may include earlier files than the first attempt.
    holds = {}
    for report in reports:
        for table, region in _withheld(report):
            number = held_by.get((table, region)) or held_by[table, ANY_REGION]
            holds[report.file, table, region, number] = Hold(report.file, table, region, 0, number)
    for refusal, number in numbers.items():  # each item has its own hold, even if an earlier item holds the region
        region = refusal.region
        for table in _tables_of(refusal, tables):
            holds[refusal.file, table, region, number] = Hold(refusal.file, table, region, 0, number)
    return list(holds.values())


def _withheld(report: FileReport) -> list[tuple[str, str]]:
    """The tables and regions with edits in the file that were not applied."""
    whole = () if report.complete else report.tallies
    return [*((item.table, item.region) for item in report.withheld), *((tally.table, ANY_REGION) for tally in whole)]


def _tables_of(refusal: Refusal, tables: Sequence[str]) -> Sequence[str]:
    """The run's tables that a refusal is about."""
    return tables if refusal.table == ANY_TABLE else [refusal.table]

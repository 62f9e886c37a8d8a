"""What could not be applied (R5): records its bytes and holds its regions until an operator releases it.

A hold blocks a region (or a whole table, ANY_REGION): nothing is applied from an offset of a file on. While a file has
holds, its bytes do not count as applied, and the gate to cutover is shut.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy import Connection

from walferry.apply.by_row import RowTask, apply_by_row, index_files
from walferry.apply.index import FileIndex
from walferry.apply.outcomes import FileReport, Refusal, TableTally, damage
from walferry.apply.recopy import recopy_rows
from walferry.apply.route import Route
from walferry.apply.writer_protocol import RefusedError
from walferry.errors import DamagedInputError, GapError, UsageError
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger import Hold, Quarantined, QuarantineItem, RunLedger, WalRange
from walferry.ledger.batches import Change, in_one
from walferry.ledger.regions import RegionChanges
from walferry.ledger.rows import RangeState, Resolution
from walferry.refusals import ANY_REGION, ANY_TABLE, RefusalKind
from walferry.replay.log import lineage
from walferry.replay.log.cut import as_listed
from walferry.run.run import Run
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

log = logging.getLogger(__name__)

LEAVING_OUT: tuple[Resolution, ...] = ("reread", "accept")
"""decisions after which the entry itself is never applied"""


def held_regions(run: Run) -> dict[str, set[str]]:
    """The held regions of each source table, by encoded name; ANY_REGION for the whole table."""
    held: dict[str, set[str]] = defaultdict(set)
    for hold in run.ledger.quarantine.holds():
        held[hold.table].add(hold.region)
    return held


def untouched(file: WalFile, tables: Collection[str]) -> FileReport:
    """The report of a file from which nothing was applied for these tables."""
    tallies = tuple(TableTally(table, 0, 0, 0, 0) for table in sorted(tables))
    return FileReport(file.name, file.length, False, tallies, (), ())


def record(run: Run, reports: Sequence[FileReport], also: Change, regions: RegionChanges | None = None) -> None:
    """Record reports in the ledger: quarantine items, holds, ranges, and what the reports show about `regions`.

    Everything is written in one transaction with `also`, which is fenced. A kill before the transaction makes the next
    process repeat the whole piece. A file that was not read to its end is recorded without entries, and is read again
    once it is released (`_unread`).
    """
    refusals, tables = [refusal for report in reports for refusal in report.refusals], [p.source for p in run.tables]
    kept, ids = run.ledger.quarantine, list[int]()
    holds_of = partial(_holds, tables, kept.holds(), reports, refusals)

    def quarantine(connection: Connection) -> None:
        ids[:] = kept.put_in(connection, [item_of(refusal) for refusal in refusals], holds_of)

    run.ledger.log.read_to_end({report.file: report.length for report in reports if report.complete})
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
    behind: dict[tuple[str, str], int] = {}
    for hold in known:
        behind[hold.table, hold.region] = hold.quarantine_id
        behind.setdefault((hold.table, ANY_REGION), hold.quarantine_id)
    for refusal, number in numbers.items():
        for table in _tables_of(refusal, tables):
            behind.setdefault((table, refusal.region), number)
            behind.setdefault((table, ANY_REGION), number)
    # Hold from the start of each file: applying a held region's edits again changes nothing, and a batch that is
    # repeated after a kill may include earlier files than the first attempt.
    holds = {}
    for report in reports:
        for table, region in _withheld(report):
            number = behind.get((table, region)) or behind[table, ANY_REGION]
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


# ------------------------------------------------------------------ releases


def release(run: Run, quarantine_id: int, resolution: Resolution, reason: str) -> Quarantined:
    """Record an operator's decision; the next round applies it.

    retry: apply the entry again (after somebody has fixed the target). rpc: apply the entry and the held edits by rpc,
    even if the run uses Thrift. reread: apply the held edits without the entry, then copy the rows' current state from
    the source. accept: leave the entry out, for the recorded reason.
    Raises UsageError as `check_release` does.
    """
    check_release(run, quarantine_id, resolution)
    return run.ledger.quarantine.release(quarantine_id, resolution, reason, run.actor)


def check_release(run: Run, quarantine_id: int, resolution: Resolution) -> None:
    """Raise UsageError for another run's item, for a broken lineage, which cannot be released, and for `retry` or `rpc`
    of a marker whose data the log does not hold."""
    item = find_item(run.ledger, quarantine_id)
    if resolution in ("retry", "rpc") and item.kind is RefusalKind.NOT_IN_LOG:
        raise UsageError(
            f"quarantine {quarantine_id}: {item.reason}, so it cannot be retried. Release it with reread",
            quarantine=quarantine_id,
        )
    if item.kind is RefusalKind.LINEAGE:
        raise UsageError(
            f"quarantine {quarantine_id}: {item.table} began a new history at the source; its edits do not "
            "belong to the history that was copied. Abort this run and migrate into a new target table",
            quarantine=quarantine_id,
        )


def find_item(ledger: RunLedger, quarantine_id: int) -> Quarantined:
    """Find an item of a run. Raises UsageError when the run has no such item."""
    for item in ledger.quarantine.items():
        if item.quarantine_id == quarantine_id:
            return item
    raise UsageError(
        f"run {ledger.run_id} has no quarantine item {quarantine_id}: "
        f"`walferry quarantine list {ledger.run_id}` shows its items",
        item=quarantine_id,
    )


def apply_released(run: Run, spark: SparkSession, route: Route, fence: Change) -> None:
    """Apply the edits that released items held, in row order, and lift their holds. Each transaction calls `fence`.

    A region that another item holds too stays held by that item. After a kill, the next process repeats all of this.
    """
    holds = run.ledger.quarantine.holds()
    if not holds:
        return
    items = {item.quarantine_id: item for item in run.ledger.quarantine.items()}
    waiting = [hold for hold in holds if items[hold.quarantine_id].state == "held"]
    stuck = {hold.quarantine_id for hold in holds for other in waiting
             if hold.table == other.table and ANY_REGION in (hold.region, other.region)}  # fmt: skip
    ready = {hold.quarantine_id for hold in holds} - {hold.quarantine_id for hold in waiting} - stuck
    if not ready:
        return
    for number in sorted(ready):
        item = items[number]
        log.info("quarantine %d: %s, as %s decided", number, item.resolution, item.released_by)
    mine = [hold for hold in holds if hold.quarantine_id in ready]
    for table in sorted({hold.table for hold in mine}):
        chosen = [hold for hold in mine if hold.table == table]
        _pass_on(run, chosen, [hold for hold in waiting if hold.table == table], fence)
        _apply_table(run, spark, route, table, chosen, items, fence)
    for number in sorted(ready):
        run.ledger.quarantine.drop_holds(number, fence)


def _pass_on(run: Run, released: Sequence[Hold], waiting: Sequence[Hold], fence: Change) -> None:
    """Extend other items' holds on regions to the released items' files."""
    behind = {hold.region: hold.quarantine_id for hold in waiting}
    holds = [
        Hold(hold.file, hold.table, region, 0, number)
        for hold in released
        for region, number in behind.items()
        if hold.region in (region, ANY_REGION)
    ]
    run.ledger.quarantine.hold(holds, fence)


def _apply_table(
    run: Run,
    spark: SparkSession,
    route: Route,
    table: str,
    released: Sequence[Hold],
    items: Mapping[int, Quarantined],
    fence: Change,
) -> None:
    ours = {hold.quarantine_id for hold in released}
    past_thrift = any(items[number].resolution == "rpc" for number in ours)
    kind = WriterKind.RPC if past_thrift else route.writer_kind
    narrow = replace(route, tables={table: route.tables[table]}, writer_kind=kind)
    # Earlier decisions still apply: a file is read from its start.
    left_out = [i for i in items.values() if i.state == "released" and i.resolution in LEAVING_OUT]
    known = run.ledger.log.known({hold.file for hold in released})
    files = tuple(as_listed(known[name]) for name in dict.fromkeys(hold.file for hold in released))
    still = [h for h in run.ledger.quarantine.holds() if h.table == table and h.quarantine_id not in ours]
    task = RowTask(
        narrow,
        files,
        from_offset={(hold.file, hold.region): hold.from_offset for hold in released},
        skipped=run.ledger.late.rejected()
        | {(item.file, item.start) for item in left_out if item.kind is not RefusalKind.DAMAGE},
        cut_off={item.file: item.start for item in left_out if item.kind is RefusalKind.DAMAGE},
        held=frozenset(hold.region for hold in still),
    )
    indexes = index_files(spark, narrow, files)
    unread = _unread(run, table)
    events = [event for index in indexes if index.report.file in unread for event in index.report.events]
    has_hole = not task.cut_off.keys().isdisjoint(file.name for file in files)
    before = {} if has_hole else run.ledger.regions.known([table], (event.region for event in events))
    after = lineage.trace_at(run.source, before, [] if has_hole else events)
    breaks = lineage.refusals_of({**after.breaks, **lineage.created(events, after.opens_past_closing)})
    refusals: Sequence[Refusal] = _passed_over(breaks, indexes, task, items.values())
    if not refusals:
        try:
            refusals = apply_by_row(spark, task).refusals
        except DamagedInputError as error:
            refusals = (damage(error),)
    if refusals:
        _hold_again(run, released, refusals[0], fence)
        return
    # Copy these rows last: of two puts with equal timestamps the later one wins, so an older edit of the log could
    # replace a copied one. Regions that were copied before are included, since their log was just applied again.
    for item in left_out:
        if item.resolution == "reread" and item.table in (table, ANY_TABLE):
            try:
                recopy_rows(spark, narrow, table, borders_of(run, table, item.region))
            except RefusedError as error:
                reason = f"the target refuses the rows copied from the source: {error}"
                again = Refusal(item.file, item.start, item.end, table, item.region, 0, reason, item.data, item.kind)
                _hold_again(run, released, again, fence)
                return
    told = lineage.changes(before, after, [table], {})
    _mark_applied(run, table, indexes, {hold.file for hold in still}, told, fence)
    if has_hole:
        run.ledger.regions.forget(table)


def _unread(run: Run, table: str) -> set[str]:
    """Names of the files that were held as a whole, or have no entry of the table."""
    return {r.file for r in run.ledger.log.ranges(state="sealed") if r.table == table and not r.entries}


def _passed_over(
    breaks: Sequence[Refusal], indexes: Sequence[FileIndex], task: RowTask, items: Iterable[Quarantined]
) -> list[Refusal]:
    """New refusals from files that were held as a whole, for something other than edits: bulk loads, a broken lineage.

    Refusals that are already in quarantine are left out, whatever the decision. Damage is found when the edits are
    read.
    """
    known = {(item.file, item.start) for item in items}
    found = [refusal for index in indexes for refusal in index.report.refusals]
    return [
        refusal
        for refusal in (*breaks, *found)
        if refusal.kind is not RefusalKind.DAMAGE
        and (refusal.file, refusal.start) not in known
        and refusal.region not in task.held
        and refusal.start < task.cut_off.get(refusal.file, refusal.start + 1)
    ]


def _mark_applied(
    run: Run,
    table: str,
    indexes: Sequence[FileIndex],
    waiting: Collection[str],
    regions: RegionChanges,
    fence: Change,
) -> None:
    """Record the ranges of these files, up to the files' real ends, as applied; those still held stay sealed.

    Also records the files' tallies, and what the files show about `regions`. The recorded ranges may end too early: the
    NameNode lists a file that its server has just closed with length 0. A file without a range belongs to a batch that
    was killed and will be repeated.
    """
    known = run.ledger.log.known({index.report.file for index in indexes})
    sealed = {r.file: r for r in run.ledger.log.ranges(state="sealed") if r.table == table}
    ranges = []
    for report in (index.report for index in indexes if index.report.file in sealed):
        (tally,) = report.tallies
        end = max(sealed[report.file].end, _length(run, as_listed(known[report.file])))
        ranges.append(replace(range_of(report, tally, "sealed"), end=end))
    run.ledger.log.set_ranges(ranges, regions, fence)
    run.ledger.log.mark_applied([r.file for r in ranges if r.file not in waiting], [table], fence)


def _length(run: Run, file: WalFile) -> int:
    """The length of a sealed file."""
    try:
        return open_wal(run.source_files, run.wal_root, file).locate().length
    except GapError:
        return file.length


def _hold_again(run: Run, released: Sequence[Hold], refusal: Refusal, fence: Change) -> None:
    """Released edits are refused again: put a new item into quarantine, which takes over the holds."""
    before = ", ".join(str(number) for number in sorted({hold.quarantine_id for hold in released}))
    again = replace(item_of(refusal), reason=f"again, after the release of {before}: {refusal.reason}")

    def passed_on(ids: Sequence[int]) -> list[Hold]:
        return [replace(hold, quarantine_id=ids[0]) for hold in released]

    (number,) = run.ledger.quarantine.put([again], passed_on, fence)
    log.error("quarantine %d: %s", number, again.reason)


def borders_of(run: Run, table: str, region: str) -> list[tuple[bytes, bytes]]:
    """Row ranges to copy: the region's, or all regions' when that region is unknown or no longer exists."""
    regions = run.source.regions(table)
    chosen = [r for r in regions if r.encoded == region] or regions
    return [(r.start, r.end) for r in chosen]


def quarantined_facts(item: Quarantined) -> dict[str, Any]:
    """An item as shown by `walferry quarantine`, without its bytes."""
    return {
        "id": item.quarantine_id, "state": item.state, "table": item.table, "region": item.region,
        "kind": item.kind,
        "file": item.file, "start": item.start, "end": item.end, "bytes": len(item.data), "reason": item.reason,
        "resolution": item.resolution, "released_by": item.released_by, "release_reason": item.release_reason,
    }  # fmt: skip

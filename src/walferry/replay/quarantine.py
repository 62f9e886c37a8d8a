"""What could not be applied (R5): records its bytes and holds its regions until an operator releases it.

A hold blocks a region (or a whole table, ANY_REGION): from some offset of a file on, nothing of it is applied. While a
file has holds, its bytes do not count as applied, and the gate to cutover is shut.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from walferry.apply.by_row import RowTask, apply_by_row, index_files
from walferry.apply.index import FileIndex
from walferry.apply.outcomes import Refusal, damage
from walferry.apply.recopy import recopy_rows
from walferry.apply.route import Route
from walferry.apply.writer_protocol import RefusedError
from walferry.errors import DamagedInputError, GapError, UsageError
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger import Hold, Quarantined, RunLedger
from walferry.ledger.batches import Change
from walferry.ledger.regions import RegionChanges
from walferry.ledger.rows import Resolution
from walferry.refusals import ANY_REGION, ANY_TABLE, RefusalKind
from walferry.replay.log import lineage
from walferry.replay.log.cut import as_listed
from walferry.replay.record_reports import item_of, range_of
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


def apply_released(run: Run, spark: SparkSession, route: Route, lease_check: Change) -> None:
    """Apply the edits that released items held, in row order, and lift their holds.

    Each transaction calls `lease_check`.
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
        _pass_on(run, chosen, [hold for hold in waiting if hold.table == table], lease_check)
        _apply_table(run, spark, route, table, chosen, items, lease_check)
    for number in sorted(ready):
        run.ledger.quarantine.drop_holds(number, lease_check)


def _pass_on(run: Run, released: Sequence[Hold], waiting: Sequence[Hold], lease_check: Change) -> None:
    """Extend other items' holds on regions to the released items' files."""
    held_by = {hold.region: hold.quarantine_id for hold in waiting}
    holds = [
        Hold(hold.file, hold.table, region, 0, number)
        for hold in released
        for region, number in held_by.items()
        if hold.region in (region, ANY_REGION)
    ]
    run.ledger.quarantine.hold(holds, lease_check)


def _apply_table(
    run: Run,
    spark: SparkSession,
    route: Route,
    table: str,
    released: Sequence[Hold],
    items: Mapping[int, Quarantined],
    lease_check: Change,
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
        _hold_again(run, released, refusals[0], lease_check)
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
                _hold_again(run, released, again, lease_check)
                return
    told = lineage.changes(before, after, [table], {})
    _mark_applied(run, table, indexes, {hold.file for hold in still}, told, lease_check)
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
    lease_check: Change,
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
    run.ledger.log.set_ranges(ranges, regions, lease_check)
    run.ledger.log.mark_applied([r.file for r in ranges if r.file not in waiting], [table], lease_check)


def _length(run: Run, file: WalFile) -> int:
    """The length of a sealed file."""
    try:
        return open_wal(run.wal_files, run.wal_root, file).locate().length
    except GapError:
        return file.length


def _hold_again(run: Run, released: Sequence[Hold], refusal: Refusal, lease_check: Change) -> None:
    """Released edits are refused again: put a new item into quarantine, which takes over the holds."""
    before = ", ".join(str(number) for number in sorted({hold.quarantine_id for hold in released}))
    again = replace(item_of(refusal), reason=f"again, after the release of {before}: {refusal.reason}")

    def passed_on(ids: Sequence[int]) -> list[Hold]:
        return [replace(hold, quarantine_id=ids[0]) for hold in released]

    (number,) = run.ledger.quarantine.put([again], passed_on, lease_check)
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

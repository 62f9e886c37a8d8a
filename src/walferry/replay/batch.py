"""Apply a batch of sealed files: by group for tables whose regions did not move, by row for others; then record it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from walferry.apply.by_group import GroupTask, apply_groups
from walferry.apply.by_row import RowTask, apply_by_row, index_files
from walferry.apply.outcomes import FileReport, Refusal, Withheld
from walferry.apply.route import Route
from walferry.clock import now_ms
from walferry.hbase.descriptors import Region
from walferry.ledger import KnownRegion, Round
from walferry.ledger.regions import RegionChanges, RegionKey
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.replay import lineage
from walferry.replay.cut import regions_of
from walferry.replay.quarantine import held_regions, record, untouched
from walferry.run.backlog import unapplied
from walferry.run.facts import keep_applied_cut
from walferry.run.run import Run
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """Sealed files to apply together, and the tables none of whose regions moved while the files were written."""

    files: list[WalFile]
    calm: frozenset[str]
    cut_ms: int
    """everything written before this moment is applied once the batch is"""
    before: dict[str, str] | None
    """fingerprints before the cut; None when the batch does not include all files before the cut"""
    regions: Mapping[str, Sequence[Region]]
    """each table's regions as of the cut; at the drain, as of its beginning"""


@dataclass(frozen=True)
class _Done:
    """The outcome of the files for some of the tables, and what they showed about these tables' regions."""

    reports: list[FileReport]
    regions: RegionChanges


def apply_batch(run: Run, spark: SparkSession, route: Route, batch: Batch, started_ms: int) -> Round:
    """Apply a batch and record it as a round; what is held or refused is in quarantine.

    Raises LeaseLostError, and records nothing, if the leases were lost meanwhile.
    """
    held = held_regions(run)
    stopped = {table for table, regions in held.items() if ANY_REGION in regions}
    reports = [untouched(file, stopped) for file in batch.files if stopped]
    regions: dict[RegionKey, KnownRegion | None] = {}
    moved = {pair.source for pair in run.tables} - batch.calm - stopped
    if moved and batch.files:
        done = _apply_moved(run, spark, _narrow(route, moved), batch, held)
        reports += done.reports
        regions |= done.regions
    calm = batch.calm - stopped
    if calm and batch.files:
        done = _apply_calm(run, spark, _narrow(route, calm), batch, held)
        reports += done.reports
        regions |= done.regions
    route.guard(list(route.tables.values()))  # a process that was suspended must not undo what its successor recorded
    record(run, reports, regions)
    if batch.before is not None:
        keep_applied_cut(run, batch.before)
    return _record_round(run, batch, reports, started_ms)


def _record_round(run: Run, batch: Batch, reports: Sequence[FileReport], started_ms: int) -> Round:
    ended_ms = now_ms()
    tallies = [tally for report in reports if report.complete for tally in report.tallies]
    done = Round(
        number=len(run.ledger.rounds.all()) + 1,
        started_ms=started_ms,
        finished_ms=ended_ms,
        files=len(batch.files),
        bytes=sum({report.file: report.length for report in reports if report.complete}.values()),
        entries=sum(tally.entries for tally in tallies),
        cells=sum(tally.cells for tally in tallies),
        lag_ms=ended_ms - batch.cut_ms,
        backlog_bytes=sum(file.length for file in unapplied(run.ledger)),
    )
    run.ledger.rounds.record(done)
    log.info(
        "round %d: %d files, %.1f MB, %d edits applied, lag %.1f s",
        done.number, done.files, done.bytes / 1e6, done.cells, done.lag_ms / 1000,
    )  # fmt: skip
    return done


def _narrow(route: Route, tables: Collection[str]) -> Route:
    return replace(route, tables={source: target for source, target in route.tables.items() if source in tables})


def _apply_calm(
    run: Run, spark: SparkSession, route: Route, batch: Batch, held: Mapping[str, Collection[str]]
) -> _Done:
    """Tables whose regions did not move: one pass over each group's files, whose bytes are sent unchanged."""
    families = partial(lineage.families_of, run.source)
    # Regions that were closed when the last batch ended have not moved since: whether they continued is known now.
    closed = lineage.follow(run.ledger.regions.known(route.tables), [], families)
    refusals = lineage.find_breaks(closed, batch.regions, partial(regions_of, run.source))
    broken = {refusal.table for refusal in refusals}
    sound = _narrow(route, set(route.tables) - broken)
    reports = _at_first(refusals, [untouched(file, broken) for file in batch.files if broken])
    if not sound.tables:
        return _Done(reports, {})
    groups: dict[str, list[WalFile]] = defaultdict(list)
    for file in sorted(batch.files, key=lambda file: (file.group, file.number)):
        groups[file.group].append(file)
    regions = frozenset(region for table in sound.tables for region in held.get(table, ()))
    done = apply_groups(spark, [GroupTask(sound, tuple(files), regions) for files in groups.values()])
    events = [event for report in done if report.complete for event in report.events]
    before = run.ledger.regions.known(sound.tables, (event.region for event in events))
    after = lineage.follow(before, events, families)
    # Too late for the edits of these files, but nothing of such a table is applied from here on.
    reports += _at_first(lineage.refusals_of(after.breaks), done)
    return _Done(reports, lineage.changes(before, after, set(sound.tables) - after.breaks.keys(), batch.regions))


def _at_first(refusals: Sequence[Refusal], reports: Sequence[FileReport]) -> list[FileReport]:
    """The reports; the first also gets the refusals, which may be about earlier files."""
    return [replace(reports[0], refusals=(*reports[0].refusals, *refusals)), *reports[1:]] if reports else []


def _apply_moved(
    run: Run, spark: SparkSession, route: Route, batch: Batch, held: Mapping[str, Collection[str]]
) -> _Done:
    """Tables whose regions moved: first read what the files hold, then apply in row order."""
    indexes = index_files(spark, route, batch.files)
    damaged = any(not index.report.complete for index in indexes)
    # What a damaged file hides may change the meaning of the rest: nothing of the batch is applied until its release.
    refusals: list[Refusal] = []
    events = [] if damaged else [event for index in indexes for event in index.report.events]
    before = run.ledger.regions.known(route.tables, (event.region for event in events))
    after = lineage.follow(before, events, partial(lineage.families_of, run.source))
    if not damaged:
        refusals = lineage.find_breaks(after, batch.regions, partial(regions_of, run.source))
    waiting = {table: set(held.get(table, ())) for table in route.tables}
    for refusal in (r for index in indexes for r in index.report.refusals if r.kind is not RefusalKind.DAMAGE):
        waiting[refusal.table].add(refusal.region)
    broken = {refusal.table for refusal in refusals} | _tables_with_reshaped_holds(run, waiting)
    sound = _narrow(route, set(route.tables) - broken)
    if sound.tables and not damaged:
        held_now = frozenset(region for regions in waiting.values() for region in regions)
        done = apply_by_row(spark, RowTask(sound, tuple(batch.files), held=held_now))
        refusals += done.refusals
        for refusal in done.refusals:
            waiting[refusal.table].add(refusal.region)
        broken |= _tables_with_reshaped_holds(run, waiting)
    reports = []
    for index in indexes:
        found = index.report
        mine = tuple(r for r in (*found.refusals, *refusals) if r.file == found.file)
        fine = tuple(t for t in found.tallies if t.table not in broken)
        withheld = tuple(Withheld(found.file, t, r, 0) for t, r in sorted(index.regions) if r in waiting[t])
        reports.append(replace(found, complete=not damaged, tallies=fine, refusals=mine, withheld=withheld))
        reports += [untouched(file, broken) for file in batch.files if broken and file.name == found.file]
    names = {file.name for file in batch.files}
    reports = _at_first([refusal for refusal in refusals if refusal.file not in names], reports)
    told = {} if damaged else lineage.changes(before, after, set(route.tables) - broken, batch.regions)
    return _Done(reports, told)


def _tables_with_reshaped_holds(run: Run, waiting: Mapping[str, Collection[str]]) -> set[str]:
    """Tables in which a held region was split or merged: its rows continue under other names, so all must be held."""
    return {
        table
        for table, regions in waiting.items()
        if regions and not set(regions) <= {r.encoded for r in regions_of(run.source, table)}
    }

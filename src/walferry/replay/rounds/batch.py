"""Apply a batch of sealed files in pieces, each recorded on its own, and then record the batch as a round.

Regions that stood still while the files were written go by group: one pass over each group's files. Rows of regions
that moved are sorted, in pieces that are ranges of rows. The ledger keeps this division from the batch's beginning, so
a process that continues a batch repeats only the pieces that were running.

A large batch is loaded in bulk instead (`batch_bulk`), in pieces that are ranges of rows, and recorded as a whole.

If all regions of a table stood still, a file's contents for the table are recorded with the file's piece. Otherwise
they are recorded with the batch, because only all files together show whether the table's history continued (R11).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from walferry.amounts import amount
from walferry.apply.by_group import GroupTask
from walferry.apply.by_row import RowTask, place_rows
from walferry.apply.outcomes import FileReport, Refusal, Withheld, damage
from walferry.apply.prefix import Sent
from walferry.apply.route import Route
from walferry.clock import now_ms
from walferry.errors import DamagedInputError, GapError
from walferry.ledger import Piece, Round
from walferry.ledger.batches import Change, in_one
from walferry.refusals import ANY_TABLE
from walferry.replay.log import lineage, numbering
from walferry.replay.log.cut import regions_if_exists
from walferry.replay.pieces.bulk_pieces import goes_in_bulk
from walferry.replay.pieces.group_pieces import apply_group_pieces
from walferry.replay.pieces.pieces import cut_groups, repeated
from walferry.replay.pieces.row_ranges import (
    apply_ranges,
    as_pieces,
    borders_between,
    cut_rows,
    ranges_of,
    shown_earlier,
    unfinished,
)
from walferry.replay.quarantine import held_regions
from walferry.replay.record_reports import record_reports, untouched
from walferry.replay.rights.applying import lease_check_of
from walferry.replay.rounds.batch_bulk import BULK_ATTEMPTS, load_batch
from walferry.replay.rounds.batch_work import Batch, Work, trace_regions
from walferry.run.facts import keep_lines
from walferry.run.notes.sent_early import compared
from walferry.run.progress.backlog import unapplied
from walferry.run.run import Run
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

HERE_BYTES = 8 << 20
"""up to this many bytes of rows are sorted by this process, since the first such Spark job of a JVM takes ten
seconds"""
HERE_FILES_BYTES = 256 << 20
"""the most bytes of files that this process reads to sort their rows"""

_JSON = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class _GroupDone(BaseModel):
    """The outcome of a group piece, as far as it is needed until the batch is recorded."""

    model_config = _JSON

    bytes: int
    entries: int
    cells: int
    held: frozenset[str]
    """regions that later pieces leave out"""
    reports: tuple[FileReport, ...]
    """reports on the tables that are recorded with the batch"""


class _RowsDone(BaseModel):
    """The outcome of a row piece."""

    model_config = _JSON

    refusals: tuple[Refusal, ...]


def begin_batch(run: Run, batch: Batch, started_ms: int, piece_bytes: int, lease_check: Change) -> bool:
    """Record a batch in pieces, with the currently held regions; `continue_batch` applies it. Returns whether the batch
    goes in bulk.

    `lease_check` must have been taken before the batch's files were chosen.
    """
    held = {table: frozenset(regions) for table, regions in held_regions(run).items()}
    size = sum(file.length for file in batch.files)
    bulk = BULK_ATTEMPTS if run.spec.apply in ("auto", "bulk") and goes_in_bulk(run, size, held) else 0
    batch = batch.model_copy(update={"held": held, "bulk": bulk})
    pieces = [] if bulk else cut_groups(batch.files, piece_bytes)
    run.ledger.batches.begin(batch.model_dump_json(), pieces, started_ms, lease_check)
    return bool(bulk)


def continue_batch(run: Run, spark: SparkSession, route: Route, sent: Mapping[str, Sent] | None = None) -> Round | None:
    """Apply the rest of the run's unfinished batch and record it as a round; None if there is no such batch.

    Held and refused edits go to quarantine. `sent`: by file, what was sent while the file was open. Raises
    LeaseLostError, and records nothing more, if the leases are lost; GapError when a file of the batch has vanished.
    """
    if run.ledger.batches.now() is None:
        return None
    lease_check = lease_check_of(run, route)
    kept = run.ledger.batches.now()
    if kept is None:
        return None
    work = Work(run, spark, route, Batch.model_validate_json(kept.plan), lease_check, sent or {})
    if not any(piece.attempts for piece in run.ledger.batches.pieces()):
        _look_at_closed(work)
    try:
        loaded = load_batch(work) if work.batch.bulk else None
        if loaded is not None:
            size = sum(report.length for report in loaded)
            shown = _GroupDone(bytes=size, entries=0, cells=0, held=frozenset(), reports=tuple(loaded))
            return _record(work, kept.started_ms, [shown], [])
        groups = _apply_groups(work)
        refusals = _apply_rows_or_stop(work, [report for group in groups for report in group.reports])
    except GapError as gap:
        run.ledger.log.mark_missing(gap.facts["file"])
        raise
    return _record(work, kept.started_ms, groups, refusals)


# ------------------------------------------------------------------ by group


def _apply_groups(work: Work) -> list[_GroupDone]:
    """Apply the group pieces. Returns the outcomes of all of them, including those done earlier."""
    stopped: dict[int, set[str]] = {}
    skipped = work.run.ledger.late.rejected()

    def task_of(piece: Piece, files: tuple[WalFile, ...], held: frozenset[str]) -> GroupTask | None:
        stopped[piece.number] = work.stopped()
        route = work.narrowed(set(work.route.tables) - stopped[piece.number])
        if not route.tables:
            return None
        return GroupTask(
            route,
            files,
            work.standing,
            held.union(*work.held().values()),
            skipped=skipped,
            sent={file.name: work.sent[file.name] for file in files if file.name in work.sent},
            followed=work.batch.followed,
            collects=work.run.known_rows.tables & set(route.tables),
        )

    def record(
        piece: Piece, files: tuple[WalFile, ...], reports: list[FileReport], _: Mapping[int, _GroupDone]
    ) -> _GroupDone:
        for report in reports:
            for rows in report.rows:
                work.run.known_rows.keep(report.file, rows.table, rows.packed)
        reports = [replace(report, rows=()) for report in reports]
        out = stopped.pop(piece.number)
        outcome = _record_group(work, piece, files, reports, out)
        if not out:  # otherwise `taken_back.compare_sent` must still compare, and mark, the stopped tables
            compared(work.run.ledger, [report.file for report in reports if report.compared])
        return outcome

    shown_in = _GroupDone.model_validate_json
    outcomes = apply_group_pieces(
        work.run, work.spark, work.route, work.lease_check, work.batch.files, shown_in, task_of, record
    )
    return [outcome for _, outcome in sorted(outcomes.items())]


def _record_group(
    work: Work, piece: Piece, files: Sequence[WalFile], reports: Sequence[FileReport], stopped: Collection[str]
) -> _GroupDone:
    """Record a piece as done, with its files' contents for calm tables; the other tables wait for the batch."""
    run, batch = work.run, work.batch
    calm = batch.calm - set(stopped)
    now = [_part(report, calm - {edits.table for edits in report.moved}) for report in reports]
    later = [_part(report, {t.table for t in report.tallies} - {t.table for t in part.tallies})
             for report, part in zip(reports, now, strict=True)]  # fmt: skip
    before, after = trace_regions(work, now, calm)
    told = lineage.changes(before, after, calm - after.breaks.keys(), batch.regions)
    whole = [report for report in reports if report.complete]
    tallies = [tally for report in now if report.complete for tally in report.tallies]
    outcome = _GroupDone(
        bytes=sum(report.length for report in whole),
        entries=sum(tally.entries for tally in tallies),
        cells=sum(tally.cells for tally in tallies),
        held=frozenset(region for report in reports for _, region in _held_by(report)),
        reports=tuple(report for report in later if report.tallies),
    )
    # These files' edits are already applied, but from here on nothing is applied to a table whose history broke.
    now = _at_first(lineage.refusals_of(after.breaks), now)
    now += [untouched(file, stopped) for file in files if stopped]
    done = run.ledger.batches.done(piece.number, outcome.model_dump_json(), work.lease_check)
    record_reports(run, now, in_one(numbering.number_change(run, now, calm), done), told)
    return outcome


def _look_at_closed(work: Work) -> None:
    """Stop calm tables that began a new history: the cut shows whether closed regions continued."""
    run, batch = work.run, work.batch
    known = run.ledger.regions.known(batch.calm - work.stopped())
    closed = lineage.trace_at(run.source, known, [])
    _stop(work, (), lineage.find_breaks(closed, batch.regions, partial(regions_if_exists, run.source)))


# ------------------------------------------------------------------ by row


def _apply_rows(work: Work, reports: Sequence[FileReport]) -> list[Refusal]:
    """Apply the rows of the regions that moved, unless they are held. Returns the target's refusals.

    `reports`: about the tables whose regions did not all stand still.
    """
    pieces = work.run.ledger.batches.pieces("rows")
    if not pieces:
        _stop_what_moved(work, reports)
        pieces = _plan_rows(work, reports)
        work.run.ledger.batches.add(pieces, work.lease_check)
    if not pieces:
        return []
    ranges, left = ranges_of(pieces), unfinished(pieces)
    first = ranges[0]
    names = {report.file for report in reports for edits in report.moved if edits.table in first.tables}
    task = RowTask(
        work.narrowed(first.tables),
        tuple(file for file in work.batch.files if file.name in names),
        skipped=work.run.ledger.late.rejected(),
        held=first.held | work.standing,
        borders=borders_between(ranges),
        pieces=left,
    )
    outcomes = shown_earlier(pieces, _RowsDone)
    if left:
        small = (
            sum(piece.bytes for piece in pieces) <= HERE_BYTES
            and sum(file.length for file in task.files) <= HERE_FILES_BYTES
        )
        apply = place_rows(None if small else work.spark, task)
        outcomes = apply_ranges(
            work.run, work.spark, work.route, work.lease_check, pieces, apply, "apply edits by row", _RowsDone,
            lambda _, applied: _RowsDone(refusals=applied.refusals),
        )  # fmt: skip
    return [refusal for outcome in outcomes for refusal in outcome.refusals]


def _apply_rows_or_stop(work: Work, reports: Sequence[FileReport]) -> list[Refusal]:
    """As `_apply_rows`; if a file has become unreadable since it was read by group, hold its tables for the damage."""
    try:
        return _apply_rows(work, reports)
    except DamagedInputError as error:
        _stop(work, {tally.table for report in reports for tally in report.tallies}, [damage(error)])
        return []


def _plan_rows(work: Work, reports: Sequence[FileReport]) -> list[Piece]:
    held = frozenset(region for regions in _waiting(work, reports).values() for region in regions) | work.followed
    tables = frozenset(tally.table for report in reports for tally in report.tallies) - work.stopped()
    moved = [e for report in reports for e in report.moved if e.table in tables and e.region not in held]
    first = len(work.run.ledger.batches.pieces("group"))
    return as_pieces(cut_rows(moved, tables, held, work.route.limits.piece_bytes), first)


def _stop_what_moved(work: Work, reports: Sequence[FileReport]) -> None:
    """Stop tables that began a new history, and tables in which a held region was split or merged."""
    run = work.run
    tables = {tally.table for report in reports for tally in report.tallies} - work.stopped()
    _, after = trace_regions(work, reports, tables)
    breaks = lineage.find_breaks(after, work.batch.regions, partial(regions_if_exists, run.source))
    waiting = {table: regions for table, regions in _waiting(work, reports).items() if table in tables}
    reshaped = _reshaped(run, waiting)
    refused = [r for report in reports for r in report.refusals if r.table in reshaped]
    _stop(work, reshaped, [*breaks, *refused])


def _waiting(work: Work, reports: Iterable[FileReport]) -> dict[str, set[str]]:
    """For each table the regions with edits that are not applied, because an edit before them was refused."""
    waiting: dict[str, set[str]] = defaultdict(set)
    for table, regions in work.held().items():
        waiting[table] |= regions
    for report in reports:
        for table, region in _held_by(report):
            waiting[table].add(region)
    return waiting


def _held_by(report: FileReport) -> set[tuple[str, str]]:
    """Table and region of the edits that were not applied according to the report."""
    refused = {(refusal.table, refusal.region) for refusal in report.refusals}
    return refused | {(withheld.table, withheld.region) for withheld in report.withheld}


def _reshaped(run: Run, waiting: Mapping[str, Collection[str]]) -> set[str]:
    """Tables in which a held region was split or merged: its rows continue under other names, so all must be held."""
    return {
        table
        for table, regions in waiting.items()
        if regions and not set(regions) <= {r.encoded for r in regions_if_exists(run.source, table)}
    }


# ------------------------------------------------------------------ what is recorded


def _stop(work: Work, tables: Collection[str], refusals: Sequence[Refusal]) -> None:
    """Hold these tables, and the refusals' tables, from the first file of the batch on."""
    held = {*tables, *(refusal.table for refusal in refusals)} - {ANY_TABLE}
    if held:
        work.guard()
        record_reports(
            work.run, _at_first(refusals, [untouched(file, held) for file in work.batch.files]), work.lease_check
        )


def _record(work: Work, started_ms: int, groups: Sequence[_GroupDone], refusals: Sequence[Refusal]) -> Round:
    """Record the files' contents for tables that waited for the batch, and the round."""
    run, batch = work.run, work.batch
    reports = [report for group in groups for report in group.reports]
    reports = [replace(r, refusals=(*r.refusals, *(x for x in refusals if x.file == r.file))) for r in reports]
    waiting = _waiting(work, reports)
    tables, out = {tally.table for report in reports for tally in report.tallies}, work.stopped()
    out |= _reshaped(run, {table: regions for table, regions in waiting.items() if table in tables - out})
    tables -= out
    parts = []
    for report in reports:
        part = _part(report, tables)
        rest = (Withheld(report.file, e.table, e.region, 0) for e in part.moved if e.region in waiting[e.table])
        parts.append(replace(part, refusals=report.refusals, withheld=(*part.withheld, *rest)))
        parts += [replace(report, complete=False, tallies=_part(report, out).tallies, refusals=(), withheld=())]
    before, after = trace_regions(work, parts, tables)
    pieces = run.ledger.batches.pieces()
    work.guard()
    end = in_one(numbering.number_change(run, parts, tables), run.ledger.batches.end(work.lease_check))
    record_reports(run, parts, end, lineage.changes(before, after, tables, batch.regions))
    keep_lines(run, "applied", batch.before)
    ended_ms, tallies = now_ms(), [tally for part in parts if part.complete for tally in part.tallies]
    latest = run.ledger.rounds.last()
    done = Round(
        number=1 if latest is None else latest.number + 1,
        started_ms=started_ms,
        finished_ms=ended_ms,
        files=len(batch.files),
        bytes=sum(group.bytes for group in groups),
        entries=sum(group.entries for group in groups) + sum(tally.entries for tally in tallies),
        cells=sum(group.cells for group in groups) + sum(tally.cells for tally in tallies),
        lag_ms=ended_ms - batch.cut_ms,
        backlog_bytes=sum(file.length for file in unapplied(run.ledger)),
        pieces=len(pieces),
        repeated=repeated(pieces),
    )
    run.ledger.rounds.record(done)
    log.info(
        "round %d: %s, %.1f MB, %s applied, lag %.1f s",
        done.number, amount(done.files, "file"), done.bytes / 1e6, amount(done.cells, "edit"), done.lag_ms / 1000,
    )  # fmt: skip
    return done


def _part(report: FileReport, tables: Collection[str]) -> FileReport:
    """A report for some of the tables only."""
    return replace(
        report,
        tallies=tuple(item for item in report.tallies if item.table in tables),
        refusals=tuple(item for item in report.refusals if item.table in (*tables, ANY_TABLE)),
        withheld=tuple(item for item in report.withheld if item.table in tables),
        events=tuple(item for item in report.events if item.table in tables),
        moved=tuple(item for item in report.moved if item.table in tables),
        numbers=tuple(item for item in report.numbers if item.table in tables),
    )


def _at_first(refusals: Sequence[Refusal], reports: Sequence[FileReport]) -> list[FileReport]:
    """The reports, with the refusals added to the first one: they may be about earlier files."""
    return [replace(reports[0], refusals=(*reports[0].refusals, *refusals)), *reports[1:]] if reports else []

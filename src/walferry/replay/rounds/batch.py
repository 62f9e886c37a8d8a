"""Apply a batch of sealed files in pieces, each of them recorded on its own, and then record the batch as a round.

Regions that stood still while the files were written go by group: one pass over each group's files. Rows of regions
that moved are sorted, in pieces that are ranges of rows. Both are decided when the batch begins and kept in the ledger:
a process that continues a batch repeats only the pieces that were running.

A large batch is loaded in bulk instead, in pieces that are ranges of rows, and recorded as a whole. That is for plain
ones only: if anything in it cannot be applied, is held, or shows a new history, nothing of it is loaded, and it goes by
group. So does one whose loading keeps failing: edits that were loaded may be sent again in their order.

What a file holds for a table is recorded with its piece if all of the table's regions stood still. Otherwise it waits
for the rows, because only all files together tell whether the table's history continued (R11).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from walferry.amounts import amount
from walferry.apply.by_group import GroupTask
from walferry.apply.by_row import RowTask, place_rows
from walferry.apply.in_bulk import place_in_bulk
from walferry.apply.outcomes import FileReport, Refusal, Withheld, damage
from walferry.apply.prefix import Sent
from walferry.apply.route import Route
from walferry.clock import now_ms
from walferry.errors import DamagedInputError, GapError, WalferryError, WalKeyError, is_transient
from walferry.hbase.descriptors import Region
from walferry.ledger import Piece, Round
from walferry.ledger.batches import Change, in_one
from walferry.refusals import ANY_REGION, ANY_TABLE
from walferry.replay.log import lineage, numbering
from walferry.replay.log.cut import regions_of
from walferry.replay.pieces.bulk_pieces import bulk_task, cut_in_bulk, goes_in_bulk, load_pieces
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
from walferry.replay.quarantine import held_regions, record, untouched
from walferry.replay.rights.applying import fence_of, remove_staged
from walferry.replay.rights.lease import LeaseLostError, OutcomeUnknownError
from walferry.run.facts import keep_lines
from walferry.run.notes.sent_early import compared
from walferry.run.progress.backlog import unapplied
from walferry.run.run import Run, RunEndedError
from walferry.spark.clients import workers
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

HERE_BYTES = 8 << 20
"""of rows to be sorted; fewer are sorted by this process, since the first such job of a JVM takes ten seconds"""
HERE_FILES_BYTES = 256 << 20
"""to be read for that"""
BULK_ATTEMPTS = 4
"""at loading a batch that may fail before it goes by group"""

_JSON = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class NotInBulkError(WalferryError):
    """Some of a batch's edits may have to wait, so none of them is loaded: it goes by group. Nothing has failed."""


class Batch(BaseModel):
    """Sealed files to apply together, and what was known of the regions of the run's tables when it began."""

    model_config = _JSON

    files: tuple[WalFile, ...]
    calm: frozenset[str]
    """the tables all of whose regions stood still while the files were written"""
    standing: frozenset[str]
    """the regions that did, of all tables"""
    followed: frozenset[str] = frozenset()
    """those that have moved, and all of whose edits before their last opening were sent while the logs were open"""
    cut_ms: int
    """everything written before this moment is applied once the batch is"""
    before: dict[str, dict[str, str]]
    """the lines of the regions before the cut"""
    regions: dict[str, tuple[Region, ...]]
    """each table's regions as of the cut; at the drain, as of its beginning"""
    held: dict[str, frozenset[str]] = {}
    """for each table, the regions that quarantine held"""
    bulk: int = 0
    """how many more times it may fail in bulk; 0: it goes by group"""


class _GroupDone(BaseModel):
    """What a piece of a group has shown that is needed until the batch is recorded."""

    model_config = _JSON

    bytes: int
    entries: int
    cells: int
    held: frozenset[str]
    """regions of which nothing is applied from here on"""
    reports: tuple[FileReport, ...]
    """on the tables that are recorded with the batch"""


class _RowsDone(BaseModel):
    """What a piece of rows has shown."""

    model_config = _JSON

    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class _Work:
    """A batch and what applies it."""

    run: Run
    spark: SparkSession
    route: Route
    batch: Batch
    fence: Change
    """raises LeaseLostError, within a change of the ledger, if this process has been succeeded by another one"""
    sent: Mapping[str, Sent]

    @property
    def followed(self) -> frozenset[str]:
        """The regions of `Batch.followed`, if what was sent of them is left out of all files: not by a process that
        continues the batch."""
        named = [sent.regions for sent in self.sent.values() if sent.regions]
        return self.batch.followed.intersection(*named) if named else frozenset()

    @property
    def standing(self) -> frozenset[str]:
        """The regions whose edits go by group."""
        return self.batch.standing | self.followed

    def held(self) -> dict[str, set[str]]:
        """For each table the regions that were held when the batch began, or are now: what a killed process recorded of
        a piece still counts when it is repeated."""
        held = {table: set(regions) for table, regions in self.batch.held.items()}
        for table, regions in held_regions(self.run).items():
            held.setdefault(table, set()).update(regions)
        return held

    def stopped(self) -> set[str]:
        """Tables of which nothing is applied any more."""
        return {table for table, regions in held_regions(self.run).items() if ANY_REGION in regions}

    def narrowed(self, tables: Collection[str]) -> Route:
        """The route for some of the tables."""
        return replace(self.route, tables={t: target for t, target in self.route.tables.items() if t in tables})

    def guard(self) -> None:
        """Raise LeaseLostError if the leases are no longer held; `fence` asks again where something is recorded."""
        self.route.guard(list(self.route.tables.values()))


def begin_batch(run: Run, batch: Batch, started_ms: int, piece_bytes: int, fence: Change) -> bool:
    """Record a batch in pieces, with the regions that are held now; `continue_batch` applies it. Returns whether it
    goes in bulk.

    `fence` is of before the batch's files were chosen.
    """
    held = {table: frozenset(regions) for table, regions in held_regions(run).items()}
    size = sum(file.length for file in batch.files)
    bulk = BULK_ATTEMPTS if run.spec.apply in ("auto", "bulk") and goes_in_bulk(run, size, held) else 0
    batch = batch.model_copy(update={"held": held, "bulk": bulk})
    pieces = [] if bulk else cut_groups(batch.files, piece_bytes)
    run.ledger.batches.begin(batch.model_dump_json(), pieces, started_ms, fence)
    return bool(bulk)


def continue_batch(run: Run, spark: SparkSession, route: Route, sent: Mapping[str, Sent] | None = None) -> Round | None:
    """Apply what is left of the run's unfinished batch and record it as a round; None if there is no such batch.

    `sent`: by file, what was sent of it while it was open. What is held or refused is in quarantine then. Raises
    LeaseLostError, and records nothing more, if the leases were lost meanwhile; GapError when one of its files has
    vanished.
    """
    if run.ledger.batches.now() is None:
        return None
    fence = fence_of(run, route)
    kept = run.ledger.batches.now()
    if kept is None:
        return None
    work = _Work(run, spark, route, Batch.model_validate_json(kept.plan), fence, sent or {})
    if not any(piece.attempts for piece in run.ledger.batches.pieces()):
        _look_at_closed(work)
    try:
        loaded = _apply_in_bulk(work) if work.batch.bulk else None
        if loaded is not None:
            return _record(work, kept.started_ms, [loaded], [])
        groups = _apply_groups(work)
        refusals = _apply_rows_or_stop(work, [report for group in groups for report in group.reports])
    except GapError as gap:
        run.ledger.log.mark_missing(gap.facts["file"])
        raise
    return _record(work, kept.started_ms, groups, refusals)


# ------------------------------------------------------------------ in bulk


def _apply_in_bulk(work: _Work) -> _GroupDone | None:
    """Load what is left of the batch; what its files have shown. None if it goes by group: it is cut anew then.

    Raises OutcomeUnknownError, too, for one that goes by group of which something may still be loaded.
    """
    batches, batch = work.run.ledger.batches, work.batch
    try:
        reports = _load(work)
    except (GapError, WalKeyError, LeaseLostError, RunEndedError):
        raise
    except NotInBulkError as error:
        _replan_by_rpc(work, error)
        return None
    except Exception as error:
        work.guard()
        left = batch.bulk - 1 if is_transient(error) else 0
        if left:
            batches.replan(batch.model_copy(update={"bulk": left}).model_dump_json(), None, work.fence)
            raise
        _replan_by_rpc(work, error)
        return None
    size = sum(report.length for report in reports)
    return _GroupDone(bytes=size, entries=0, cells=0, held=frozenset(), reports=tuple(reports))


def _replan_by_rpc(work: _Work, why: Exception) -> None:
    """Have the batch go by group from its beginning. Raises OutcomeUnknownError if a piece was begun."""
    batches, batch = work.run.ledger.batches, work.batch
    what = "its edits may have to wait" if isinstance(why, NotInBulkError) else "loading failed"
    log.warning("the batch goes by rpc from its beginning, not in bulk: %s: %s", what, why)
    remove_staged(work.run, work.run.tables)  # so that nothing is loaded over what is sent now
    begun = any(piece.attempts for piece in batches.pieces())
    pieces = cut_groups(batch.files, work.route.limits.piece_bytes)
    batches.replan(batch.model_copy(update={"bulk": 0}).model_dump_json(), pieces, work.fence)
    if begun:
        raise OutcomeUnknownError(f"an executor may still load edits in bulk: {why}") from why


def _load(work: _Work) -> list[FileReport]:
    """Read all files, then load what is left. Raises NotInBulkError before anything is loaded if some of the edits may
    have to wait, and whatever keeps them from being loaded."""
    run, batch = work.run, work.batch
    if held := held_regions(run):
        raise NotInBulkError(f"quarantine holds regions of {', '.join(held)}", tables=sorted(held))
    task = RowTask(work.route, batch.files, skipped=run.ledger.late.rejected())
    kept = run.ledger.batches.pieces()
    ranges = ranges_of(kept) if kept else cut_in_bulk(run, workers(work.spark), task)
    left = unfinished(kept) if kept else None
    placed = place_in_bulk(work.spark, bulk_task(run, replace(task, pieces=left), ranges))
    told = placed.read()
    reports = [file.index.report for file in told]
    _require_plain(work, reports)
    if not kept:
        run.ledger.batches.add(as_pieces(ranges), work.fence)
    load_pieces(run, work.spark, task, told, placed.apply, work.fence)
    return reports


def _require_plain(work: _Work, reports: Sequence[FileReport]) -> None:
    """Raise NotInBulkError if some of the edits may have to wait."""
    refusals = [refusal for report in reports for refusal in report.refusals]
    _, after = _follow(work, reports, work.route.tables)
    refusals += lineage.find_breaks(after, work.batch.regions, partial(regions_of, work.run.source))
    if refusals:
        raise NotInBulkError(refusals[0].reason, file=refusals[0].file, offset=refusals[0].start)


# ------------------------------------------------------------------ by group


def _apply_groups(work: _Work) -> list[_GroupDone]:
    """Apply the pieces by group; what each of them, also of those done earlier, has shown."""
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
        if not out:  # of tables that were stopped, nobody has marked any yet (`taken_back.compare_sent`)
            compared(work.run.ledger, [report.file for report in reports if report.compared])
        return outcome

    shown_in = _GroupDone.model_validate_json
    outcomes = apply_group_pieces(
        work.run, work.spark, work.route, work.fence, work.batch.files, shown_in, task_of, record
    )
    return [outcome for _, outcome in sorted(outcomes.items())]


def _record_group(
    work: _Work, piece: Piece, files: Sequence[WalFile], reports: Sequence[FileReport], stopped: Collection[str]
) -> _GroupDone:
    """Record a piece: of the calm tables all that its files hold, of the others that it is done."""
    run, batch = work.run, work.batch
    calm = batch.calm - set(stopped)
    now = [_part(report, calm - {edits.table for edits in report.moved}) for report in reports]
    later = [_part(report, {t.table for t in report.tallies} - {t.table for t in part.tallies})
             for report, part in zip(reports, now, strict=True)]  # fmt: skip
    before, after = _follow(work, now, calm)
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
    # Too late for the edits of these files, but nothing of a table whose history broke is applied from here on.
    now = _at_first(lineage.refusals_of(after.breaks), now)
    now += [untouched(file, stopped) for file in files if stopped]
    done = run.ledger.batches.done(piece.number, outcome.model_dump_json(), work.fence)
    record(run, now, in_one(numbering.follow(run, now, calm), done), told)
    return outcome


def _look_at_closed(work: _Work) -> None:
    """Stop calm tables that began a new history: whether closed regions continued is known by the time of the cut."""
    run, batch = work.run, work.batch
    known = run.ledger.regions.known(batch.calm - work.stopped())
    closed = lineage.follow_at(run.source, known, [])
    _stop(work, (), lineage.find_breaks(closed, batch.regions, partial(regions_of, run.source)))


# ------------------------------------------------------------------ by row


def _apply_rows(work: _Work, reports: Sequence[FileReport]) -> list[Refusal]:
    """Apply the rows of the regions that moved, unless they are held; what the target refused of them.

    `reports`: on the tables whose regions did not all stand still.
    """
    pieces = work.run.ledger.batches.pieces("rows")
    if not pieces:
        _stop_what_moved(work, reports)
        pieces = _plan_rows(work, reports)
        work.run.ledger.batches.add(pieces, work.fence)
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
            work.run, work.spark, work.route, work.fence, pieces, apply, "apply edits by row", _RowsDone,
            lambda _, applied: _RowsDone(refusals=applied.refusals),
        )  # fmt: skip
    return [refusal for outcome in outcomes for refusal in outcome.refusals]


def _apply_rows_or_stop(work: _Work, reports: Sequence[FileReport]) -> list[Refusal]:
    """As `_apply_rows`; if a file has become unreadable since it was read by group, its damage holds the tables."""
    try:
        return _apply_rows(work, reports)
    except DamagedInputError as error:
        _stop(work, {tally.table for report in reports for tally in report.tallies}, [damage(error)])
        return []


def _plan_rows(work: _Work, reports: Sequence[FileReport]) -> list[Piece]:
    held = frozenset(region for regions in _waiting(work, reports).values() for region in regions) | work.followed
    tables = frozenset(tally.table for report in reports for tally in report.tallies) - work.stopped()
    moved = [e for report in reports for e in report.moved if e.table in tables and e.region not in held]
    first = len(work.run.ledger.batches.pieces("group"))
    return as_pieces(cut_rows(moved, tables, held, work.route.limits.piece_bytes), first)


def _stop_what_moved(work: _Work, reports: Sequence[FileReport]) -> None:
    """Stop tables that began a new history, and those of which a held region was split or merged."""
    run = work.run
    tables = {tally.table for report in reports for tally in report.tallies} - work.stopped()
    _, after = _follow(work, reports, tables)
    breaks = lineage.find_breaks(after, work.batch.regions, partial(regions_of, run.source))
    waiting = {table: regions for table, regions in _waiting(work, reports).items() if table in tables}
    reshaped = _reshaped(run, waiting)
    refused = [r for report in reports for r in report.refusals if r.table in reshaped]
    _stop(work, reshaped, [*breaks, *refused])


def _follow(
    work: _Work, reports: Sequence[FileReport], tables: Collection[str]
) -> tuple[lineage.Known, lineage.Lineage]:
    """What was known of the regions of these tables before the reports, and what they show."""
    events = [event for report in reports if report.complete for event in report.events if event.table in tables]
    before = work.run.ledger.regions.known(tables, (event.region for event in events))
    return before, lineage.follow_at(work.run.source, before, events)


def _waiting(work: _Work, reports: Iterable[FileReport]) -> dict[str, set[str]]:
    """For each table the regions of which some edits are not applied, because of a refused one before them."""
    waiting: dict[str, set[str]] = defaultdict(set)
    for table, regions in work.held().items():
        waiting[table] |= regions
    for report in reports:
        for table, region in _held_by(report):
            waiting[table].add(region)
    return waiting


def _held_by(report: FileReport) -> set[tuple[str, str]]:
    """Table and region of what the report says was not applied."""
    refused = {(refusal.table, refusal.region) for refusal in report.refusals}
    return refused | {(withheld.table, withheld.region) for withheld in report.withheld}


def _reshaped(run: Run, waiting: Mapping[str, Collection[str]]) -> set[str]:
    """Tables in which a held region was split or merged: its rows continue under other names, so all must be held."""
    return {
        table
        for table, regions in waiting.items()
        if regions and not set(regions) <= {r.encoded for r in regions_of(run.source, table)}
    }


# ------------------------------------------------------------------ what is recorded


def _stop(work: _Work, tables: Collection[str], refusals: Sequence[Refusal]) -> None:
    """Hold these tables, and those of the refusals, from the first file of the batch on."""
    held = {*tables, *(refusal.table for refusal in refusals)} - {ANY_TABLE}
    if held:
        work.guard()
        record(work.run, _at_first(refusals, [untouched(file, held) for file in work.batch.files]), work.fence)


def _record(work: _Work, started_ms: int, groups: Sequence[_GroupDone], refusals: Sequence[Refusal]) -> Round:
    """Record what was left to be recorded with the batch, and the round."""
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
    before, after = _follow(work, parts, tables)
    pieces = run.ledger.batches.pieces()
    work.guard()
    end = in_one(numbering.follow(run, parts, tables), run.ledger.batches.end(work.fence))
    record(run, parts, end, lineage.changes(before, after, tables, batch.regions))
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
    """The reports; the first also gets the refusals, which may be about earlier files."""
    return [replace(reports[0], refusals=(*reports[0].refusals, *refusals)), *reports[1:]] if reports else []

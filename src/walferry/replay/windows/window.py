"""Replay a window of the log: exactly the edits that the source wrote in [from, to), whichever files hold them.

Entries are selected by their write time, never by a file's name: a file holds edits from its creation until its server
rolls it, and some slightly older ones. A window is complete once its end has passed, plus some time for clock skew,
and every file that may hold one of its edits is sealed.

Windows may be repeated and replayed in any order (R3). The replay also reads edits that the target has from other
windows, or from a migration. If one of them is later in a row's history and replaces or deletes a cell of this window,
the cell is left out. "Later" means by sequence number, as in the row's own history, not by clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from walferry.amounts import amount, first_of
from walferry.apply.by_row import RowTask
from walferry.apply.index import FileIndex
from walferry.apply.outcomes import Refusal
from walferry.apply.recopy import recopy_rows
from walferry.apply.route import Route
from walferry.apply.window_rows import WindowRows, WriteTimes
from walferry.clock import iso, now_ms
from walferry.errors import GapError, TransientError, UnfinishedInputError, UsageError, WalferryError, WalKeyError
from walferry.formats.markers import Marker
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger import Ledger, Quarantined, QuarantineItem, RunRecord
from walferry.refusals import ANY_TABLE, RefusalKind
from walferry.replay.log.cut import await_archive, cut_log, record_seen
from walferry.replay.log.files_of_window import covering, known_files, missing_ranges, window_of
from walferry.replay.log.lineage import FamiliesOf, created, families_of, trace
from walferry.replay.log.settled import OtherRuns, appliers, look_at_others, require_no_overlap
from walferry.replay.pieces.bulk_pieces import bulk_faults
from walferry.replay.quarantine import LEAVING_OUT, borders_of
from walferry.replay.record_reports import item_of
from walferry.replay.rights.applying import applying, shared_by_workers
from walferry.replay.targets import target_faults
from walferry.replay.windows.window_bulk import apply_in_bulk, in_bulk
from walferry.replay.windows.window_pieces import apply_in_pieces, is_small
from walferry.run.cluster_ids import on_source
from walferry.run.log_folder import require_log_folder
from walferry.run.name_nodes import require_no_old_states
from walferry.run.run import Run
from walferry.run.spec import ResolvedSpec, TimeWindow
from walferry.spark.session import LateSession, must_open
from walferry.wal.files import Place, WalFile, list_wals

if TYPE_CHECKING:
    from walferry.settings import LogTimes

OWNER = "window"
"""owner of all windows' runs, so that anybody who repeats a window continues the unfinished run"""


class WindowOpenError(UnfinishedInputError):
    """The window is not complete yet; fact `complete_at_ms`."""


class RefusedEditsError(WalferryError):
    """Some edits of the window could not be applied and are in quarantine; fact `items`."""


@dataclass(frozen=True)
class WindowPlan:
    """What a replay of the window would read. Times in ms since 1970 UTC."""

    window: TimeWindow
    complete_at_ms: int
    files: list[WalFile]
    """the files that may hold edits of the window, by group and number"""
    unsealed: list[str]
    """names of files that are still being written: these are rolled first"""
    others: OtherRuns
    """the edits that the target already has from other runs, and that this window takes into account"""
    along: list[WalFile]
    """files that are read only because of `others`"""
    missing: list[str]
    """missing ranges of the log, as text"""
    absent_at_target: frozenset[tuple[str, int]]
    """(file, offset) of entries of `others` that the target does not have: quarantined, or released by accept"""

    @property
    def size(self) -> int:
        """Bytes of the window's files."""
        return sum(file.length for file in self.files)


def open_window(ledger: Ledger, spec: ResolvedSpec, actor: str) -> RunRecord:
    """The run of a window: the unfinished run of the same spec, or a new one. Raises UsageError without a window."""
    return ledger.open_run(planned(spec).name, OWNER, spec.as_recorded(), actor, "window")


def planned(spec: ResolvedSpec) -> RunRecord:
    """The run that a window would get, without recording it. Raises UsageError without a window."""
    if spec.window is None:
        raise UsageError("a replay of the log by time needs a window: from and to")
    name = f"{spec.name}_{_stamp(spec.window.start)}_{_stamp(spec.window.end)}"
    return RunRecord(name, name, OWNER, spec.as_recorded(), "running", False, "", now_ms(), None, "window")


def complete_at_ms(window: TimeWindow, times: LogTimes) -> int:
    """The earliest time at which a window may be replayed."""
    return window.end_ms + times.clock_skew_ms


def plan_window(run: Run) -> WindowPlan:
    """Look up what a replay of the run's window needs. Changes nothing, and lists missing files instead of raising.

    Raises TransientError if the source's logs are elsewhere, UsageError if its servers name another place, or if one of
    its name nodes answers with an old state.
    """
    window = window_of(run)
    require_log_folder(run.source, "source", run.source_tables, run.wal_files, planned=False)
    require_no_old_states(run.source.address, "source")
    files = list_wals(run.wal_files, run.wal_root)
    skew_ms = run.log_times.clock_skew_ms
    wanted = covering(files, window.start_ms, window.end_ms, skew_ms)
    runs = appliers(run)
    others = look_at_others(run, runs, files)
    names = {file.name for file in wanted}
    along = [file for file in files if file.name not in names and any(key[0] == file.name for key in others.settled)]
    # The snapshot has all edits from before it was taken, so the log must have all of them too.
    end_ms = max(window.end_ms, others.copied_until_ms)
    newest = {file.group: file.name for file in files}
    alive = {server.name for server in run.source.servers()}
    ledger = run.ledger.whole
    readers = [other.run_id for other in on_source(run, ledger.runs())]
    return WindowPlan(
        window=window,
        complete_at_ms=complete_at_ms(window, run.log_times),
        files=wanted,
        unsealed=[f.name for f in (*wanted, *along) if f.place is Place.LIVE and newest[f.group] == f.name],
        others=others,
        along=along,
        missing=[
            *missing_ranges(
                files,
                alive,
                known_files(ledger, readers, window.start_ms, end_ms, skew_ms),
                window.start_ms,
                end_ms,
                skew_ms,
            ),
            *(f"{file.name}, whose edits another run has applied to the target" for file in others.gone),
        ],
        absent_at_target=frozenset(
            (item.file, item.start)
            for other in runs
            for item in ledger.of(other.run_id).quarantine.items()
            if item.kind is not RefusalKind.DAMAGE and is_absent(other, item)
        ),
    )


def window_plan_facts(plan: WindowPlan) -> dict[str, Any]:
    """A plan as plain values, for `--dry-run`."""
    return {
        "window": str(plan.window),
        "complete_at": iso(plan.complete_at_ms),
        "complete": now_ms() >= plan.complete_at_ms,
        "files": len(plan.files),
        "bytes": plan.size,
        "to_be_rolled": plan.unsealed,
        "agrees_with": list(plan.others.runs),
        "read_along": len(plan.along),
        "missing": plan.missing,
    }


def replay_window(run: Run, spark: Callable[[], SparkSession]) -> dict[str, Any]:
    """Apply the window of the run's spec and end the run. Facts: files, bytes, cells, outranked, along, pieces,
    repeated.

    `spark` opens the session, which takes a while. So it is called only once the window is complete, and in parallel
    with the work before the first job. A small window (`window_pieces.is_small`) needs no session,
    unless edits of other times have to be ranked.

    Raises WindowOpenError before the window is complete, GapError that names what is missing from the log, UsageError
    when the edits cannot be applied to the target tables, RefusedEditsError when edits were quarantined. LeaseHeldError
    and TransientError are retryable. A failure that cannot be fixed ends the run as failed.
    """
    window = window_of(run)

    def work() -> dict[str, Any]:
        at_ms = complete_at_ms(window, run.log_times)
        wait_ms = at_ms - now_ms()
        if wait_ms > 0:
            raise WindowOpenError(
                f"the window {window} will be complete at {iso(at_ms)}, in {wait_ms / 1000:.0f} s", complete_at_ms=at_ms
            )
        require_targets(run)
        session = LateSession(spark)
        if must_open():
            session()
        return _apply(run, session, window)

    try:
        facts = run.once("replay_window", work)
    except (TransientError, WindowOpenError, RefusedEditsError, WalKeyError):
        raise
    except WalferryError as error:
        if run.ledger.record.state == "running":  # somebody may have aborted the run
            run.ledger.end("failed", run.actor, str(error))
        raise
    run.ledger.end("done", run.actor, f"{amount(facts['cells'], 'cell')} of {window}")
    return facts


def _require_log(run: Run, plan: WindowPlan) -> None:
    """Raise GapError that names what is missing from the log."""
    if plan.missing:
        pieces = run.ledger.batches.pieces()
        begun = sum(piece.attempts > 0 for piece in pieces)
        applied = "Nothing of the window was applied"
        if begun:
            applied = f"{begun} of the window's {len(pieces)} pieces were applied before, fully or in part"
        raise GapError(
            f"part of the log of {plan.window} no longer exists: {first_of(plan.missing, '; ')}. {applied}. A "
            "run that adds a peer keeps logs: `walferry start`, or the DAG hbase_wal_drain",
            file=None, start=plan.window.start_ms, end=plan.window.end_ms, ranges=plan.missing,
        )  # fmt: skip


def _apply(run: Run, spark: LateSession, window: TimeWindow) -> dict[str, Any]:
    require_no_overlap(run, appliers(run))
    plan = plan_window(run)
    _require_log(run, plan)
    if not is_small((*plan.files, *plan.along), run.writing.here_bytes):
        spark.begin()
    if plan.unsealed:
        cut_log(run)
    with applying(run) as route:
        require_no_overlap(run, appliers(run))
        # Plan again under the lease: from here on other runs apply nothing.
        await_archive(run)
        plan = plan_window(run)
        _require_log(run, plan)
        # Other runs' applied edits are in sealed files: open files were created by the cut above, or later.
        files = [*plan.files, *(file for file in plan.along if file.name not in plan.unsealed)]
        record_seen(run, files, sealed={file.name for file in files})
        if not is_small(files, route.limits.here_bytes):
            route = shared_by_workers(run, route, spark())
        released = run.ledger.quarantine.items("released")
        if any(item.resolution == "rpc" for item in released):
            route = replace(route, writer_kind=WriterKind.RPC)
        left_out = [item for item in released if item.resolution in LEAVING_OUT]
        task = RowTask(
            route,
            tuple(files),
            skipped=frozenset((item.file, item.start) for item in left_out if item.kind is not RefusalKind.DAMAGE),
            cut_off={item.file: item.start for item in left_out if item.kind is RefusalKind.DAMAGE},
            window=WindowRows(WriteTimes(window.start_ms, window.end_ms), plan.others.settled, plan.absent_at_target),
        )
        apply = apply_in_bulk if in_bulk(run, plan.size) else apply_in_pieces
        done = apply(
            run, spark, task, len(plan.files), {(item.quarantine_id, item.resolution) for item in released},
            partial(
                _require_one_history,
                plan=plan, families=partial(families_of, run.source),
                opens_past_closing=run.source.release.opens_past_closing,
            ),
        )  # fmt: skip
        _reread(run, spark, route, released)
        if done.refusals:
            ids = run.ledger.quarantine.put(quarantined(done.refusals, released), lease_check=done.lease_check)
            run.ledger.batches.drop(done.lease_check)
            raise RefusedEditsError(
                f"{amount(len(done.refusals), 'edit')} of {window} could not be applied, the first: "
                f"{done.refusals[0].reason}. See `walferry quarantine list {run.run_id}`; release them, "
                "then run the window again",
                items=ids,
            )
        run.ledger.log.set_ranges(done.ranges, also=run.ledger.batches.end(done.lease_check))
    return {
        "files": len(plan.files), "bytes": done.bytes, "cells": done.cells, "outranked": done.outranked,
        "along": len(plan.along), "pieces": done.pieces, "repeated": done.repeated,
    }  # fmt: skip


def require_targets(run: Run) -> None:
    """Raise UsageError unless every source table exists, and every target table exists with the source's families."""
    faults = target_faults(run)
    if run.source.cluster_id() == run.target.cluster_id():
        faults += [f"{p.source} would be replayed into itself" for p in run.tables if p.source == p.target]
    if run.spec.apply == "bulk" and not faults:
        faults += [f"{fault}; use apply: rpc" for fault in bulk_faults(run)]
    if faults:
        raise UsageError("; ".join(faults))


def _require_one_history(
    indexes: Sequence[FileIndex], plan: WindowPlan, families: FamiliesOf, opens_past_closing: bool
) -> None:
    """Raise WalferryError when a table with earlier edits began a new history within the times read (R11)."""
    start_ms, end_ms = plan.window.start_ms, plan.window.end_ms
    events = [event for index in indexes for event in index.report.events]
    inside = [event for event in events if start_ms <= event.write_time < end_ms]
    beside = [event for event in events if plan.others.holds(event.file, event.table, event.write_time)]
    found = list(created((*inside, *beside), opens_past_closing).values())
    if all(index.report.complete for index in indexes):
        # Only the log of the window's own times is read without holes. Compactions' markers count from any file
        # nevertheless.
        compacted = [replace(e, files=frozenset()) for e in events if e.kind is Marker.COMPACTION and e not in inside]
        told = trace({}, [*inside, *compacted], families, has_holes=True, opens_past_closing=opens_past_closing)
        found += told.breaks.values()
    last = {event.table: event for event in sorted(found, key=lambda event: event.write_time)}
    for index in indexes:
        for tally in index.report.tallies:
            event = last.get(tally.table)
            if event is not None and tally.entries and tally.first_write_ms < event.write_time:
                raise WalferryError(
                    f"{tally.table} was truncated, dropped and created again, or restored, at {iso(event.write_time)}: "
                    "its edits before and after belong to two histories. Replay separate windows before and after it",
                    table=tally.table, file=event.file, at_ms=event.write_time,
                )  # fmt: skip


def is_absent(other: RunRecord, item: Quarantined) -> bool:
    """Whether the target lacks the entry of another run's item. A window that is done has applied its held items too:
    a later attempt was no longer refused."""
    held = item.state == "held" and not (other.kind == "window" and other.state == "done")
    return held or item.resolution == "accept"


def quarantined(refusals: Sequence[Refusal], released: Sequence[Quarantined]) -> list[QuarantineItem]:
    """New quarantine items for refusals, even if an operator has released an earlier item of the same edit."""
    before = {(item.file, item.start, item.table, item.region): item.quarantine_id for item in released}
    items = []
    for item in map(item_of, refusals):
        number = before.get((item.file, item.start, item.table, item.region))
        reason = item.reason if number is None else f"again, after the release of {number}: {item.reason}"
        items.append(replace(item, reason=reason))
    return items


def _reread(run: Run, spark: LateSession, route: Route, released: Sequence[Quarantined]) -> None:
    """Copy the current rows of the regions whose items were released by reread."""
    for item in released:
        if item.resolution == "reread":
            for table in [pair.source for pair in run.tables] if item.table == ANY_TABLE else [item.table]:
                recopy_rows(spark(), shared_by_workers(run, route, spark()), table, borders_of(run, table, item.region))


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y%m%dt%H%M%S}" + (f"{moment.microsecond // 1000:03d}" if moment.microsecond else "")

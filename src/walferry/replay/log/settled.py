"""The edits that other runs recorded as applied to the target tables: a window takes them into account."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from walferry.apply.window_rows import SettledEdits, WriteTimes
from walferry.errors import TransientError, UsageError
from walferry.ledger import RunLedger, RunRecord
from walferry.refusals import ANY_REGION
from walferry.replay.log.cut import as_listed
from walferry.replay.log.files_of_window import covering, window_of
from walferry.run.cluster_ids import on_source, on_target
from walferry.run.facts import fenced_ms
from walferry.run.fences import fences_of
from walferry.run.recorded_spec import options_of, source_tables, spec_of
from walferry.run.run import Run
from walferry.run.spec import TimeWindow
from walferry.wal.files import WalFile

ALWAYS = WriteTimes(0, 1 << 62)
Part = tuple[str, str, SettledEdits]
"""a file, a source table, and the table's edits in the file that the target has"""


class OverlappingRunError(TransientError):
    """An unfinished run applies edits of the same times to the same tables; fact `run`."""


@dataclass(frozen=True)
class OtherRuns:
    """What other runs have applied to the target tables of a window's run."""

    runs: tuple[str, ...]
    """ids of the runs that applied edits which the window takes into account"""
    settled: Mapping[tuple[str, str], tuple[SettledEdits, ...]]
    """those edits, by file and source table"""
    gone: tuple[WalFile, ...]
    """files that held some of them and no longer exist at the source"""
    copied_until_ms: int
    """edits written before this time came with a snapshot; 0 without one"""

    def holds(self, file: str, table: str, write_time: int) -> bool:
        """Whether the target has the table's edits in the file that were written at this time."""
        parts = self.settled.get((file, table), ())
        return any(part.span.has(write_time) for part in parts)


def appliers(run: Run) -> list[RunRecord]:
    """Other runs that have held the lease on one of this run's target tables, or cloned one."""
    ledger = run.ledger.whole
    cluster, tables = run.target.cluster_id(), {pair.target for pair in run.tables}
    runs = {lease.run_id for table in tables for lease in ledger.leases(f"{cluster} {table}")}
    for other in ledger.runs():
        if other.kind in ("migration", "copy", "standby"):
            made = {(o.kind, o.name) for o in ledger.of(other.run_id).objects.all() if o.state == "made"}
            if any(("table", table) in made for table in tables) and on_target(run, other):
                runs.add(other.run_id)
    return [ledger.run(run_id) for run_id in sorted(runs - {run.run_id})]


def look_at_others(run: Run, others: Sequence[RunRecord], listed: Sequence[WalFile]) -> OtherRuns:
    """The edits that other runs recorded as applied, file by file; `listed`: the source's current files.

    Includes only edits that may be later in their rows' history than the window's own. A run that recorded nothing,
    such as a window's run that failed or was aborted, counts as having applied nothing: it is repeated or given up.
    Raises UsageError for edits of another source or table: their order relative to the window's edits is unknown.
    """
    # Clocks differ, and a row's order does not follow them: edits from shortly before the window may be later in a row.
    skew_ms = run.log_times.clock_skew_ms
    begins = window_of(run).start_ms - skew_ms
    present = {file.name for file in listed}
    settled: dict[tuple[str, str], list[SettledEdits]] = defaultdict(list)
    gone: dict[str, WalFile] = {}
    runs, copied_until = [], 0
    for other in others:
        _require_same_tables(run, other)
        theirs = run.ledger.whole.of(other.run_id)
        known = {file.name: file for file in (*map(as_listed, theirs.log.files()), *listed)}
        later = {file.name: file for file in covering(known.values(), begins, ALWAYS.end_ms, skew_ms)}
        parts = list(_applied(theirs, other, begins))
        if (until := _copied_until(theirs, other, skew_ms)) > begins:
            copied_until = max(copied_until, until)
            parts += _copied(run, theirs, covering(listed, begins, until, skew_ms), until)
        parts = [part for part in parts if part[0] in later]
        for file, table, part in parts:
            if file in present:
                settled[file, table].append(part)
            else:
                gone[file] = later[file]
        runs += [other.run_id] if parts else []
    frozen = {key: tuple(parts) for key, parts in settled.items()}
    return OtherRuns(tuple(runs), frozen, tuple(gone.values()), copied_until)


def require_no_overlap(run: Run, others: Sequence[RunRecord]) -> None:
    """Raise OverlappingRunError when another unfinished run applies edits from the window's times.

    If two windows overlap, the run that took the lease first continues, so that they never wait for each other.
    """
    window = window_of(run)
    for other in others:
        if other.state != "running" or not _overlaps(run.ledger.whole.of(other.run_id), other, window):
            continue
        if other.kind != "window" or not _began_before(run, other):
            raise OverlappingRunError(
                f"run {other.run_id} has not finished applying edits of {window} to the same tables. Wait for it, "
                f"or end it with `walferry abort {other.run_id} --reason …`; then repeat this window",
                run=other.run_id,
            )


def _overlaps(theirs: RunLedger, other: RunRecord, window: TimeWindow) -> bool:
    """Whether a run may still apply edits that were written in the window."""
    own = options_of(other).window
    if own is not None:
        return own.start_ms < window.end_ms and window.start_ms < own.end_ms
    if theirs.batches.now() is not None:  # part of the batch may be applied, but not yet recorded by table
        return True
    last = theirs.rounds.last()
    return window.end_ms > (last.covered_ms if last else fenced_ms(theirs) or 0)


def _began_before(run: Run, other: RunRecord) -> bool:
    """Whether this run was the first of the two to take the lease on a table that both write to."""
    cluster = run.target.cluster_id()
    for pair in run.tables:
        holders = [lease.run_id for lease in run.ledger.whole.leases(f"{cluster} {pair.target}")]
        if other.run_id in holders:
            return run.run_id in holders and holders.index(run.run_id) < holders.index(other.run_id)
    return False


def _require_same_tables(run: Run, other: RunRecord) -> None:
    spec = spec_of(other)
    if not on_source(run, [other]):
        raise UsageError(
            f"run {other.run_id} applied edits of another source ({spec.source.zookeeper}) to a target table of "
            "this window; their order is unknown. Replay into a separate table",
            run=other.run_id,
        )
    mine = {pair.target: pair.source for pair in run.tables}
    for pair in spec.tables:
        if mine.get(pair.target, pair.source) != pair.source:
            raise UsageError(
                f"run {other.run_id} applied edits of {pair.source} to {pair.target}, and this window those of "
                f"{mine[pair.target]}; their order is unknown. Replay into a separate table",
                run=other.run_id, table=pair.target,
            )  # fmt: skip


def _applied(theirs: RunLedger, other: RunRecord, begins: int) -> Iterator[Part]:
    """Parts from the ranges that a run recorded as applied; from a file with held regions, only the other regions."""
    own = options_of(other).window
    span = ALWAYS if own is None else WriteTimes(own.start_ms, own.end_ms)
    held: dict[tuple[str, str], set[str]] = defaultdict(set)
    for hold in theirs.quarantine.holds():
        held[hold.file, hold.table].add(hold.region)
    for r in theirs.log.ranges(since_ms=max(begins, span.start_ms)):
        if r.first_write_ms is not None and r.last_write_ms is not None:
            if r.last_write_ms < max(begins, span.start_ms) or r.first_write_ms >= span.end_ms:
                continue
        elif own is not None:
            continue  # no entry of the table
        regions = held.get((r.file, r.table), set())
        if r.state in ("applied", "verified"):
            yield r.file, r.table, SettledEdits(span)
        elif regions and ANY_REGION not in regions:
            yield r.file, r.table, SettledEdits(span, frozenset(regions))


def _copied_until(theirs: RunLedger, other: RunRecord, skew_ms: int) -> int:
    """The time up to which edits came to the target with snapshots; 0 unless all tables were cloned."""
    tables = source_tables(other)
    if any(theirs.phases.facts("clone", table) is None for table in tables):
        return 0
    # Use the time when a snapshot was planned: a phase that is repeated after a kill starts later than its snapshot.
    taken = [o.planned_ms for o in theirs.objects.all() if (o.cluster, o.kind) == ("source", "snapshot")]
    return min(taken, default=skew_ms) - skew_ms


def _copied(run: Run, theirs: RunLedger, files: Sequence[WalFile], until_ms: int) -> Iterator[Part]:
    """The edits that came with snapshots: all edits of files before the start fence, and of the other files those
    written before `until_ms`."""
    fences = fences_of(theirs)
    tables = [pair.source for pair in run.tables]
    for file in files:
        before = not fences.starts_by(file)
        for table in tables:
            yield file.name, table, SettledEdits(ALWAYS if before else WriteTimes(0, until_ms))

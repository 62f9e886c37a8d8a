"""Replay: bring the target up with the source's log, round by round.

A round cuts the log, applies every sealed file that is not applied yet, and records it. Only the ledger says what is
applied (R2): a round that was killed is repeated as a whole by the next one, which converges because nothing later
was applied in between (R3).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from walferry.apply.by_group import GroupTask, apply_groups
from walferry.apply.by_row import EVERY_REGION, RowTask, apply_by_row, index_files
from walferry.apply.outcomes import FileReport, Withheld
from walferry.apply.route import Route
from walferry.apply.writer import Limits
from walferry.errors import GapError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.thrift import TIMEOUT_SECONDS as THRIFT_SECONDS
from walferry.ledger import Round, WalRange
from walferry.replay import lease
from walferry.replay.cut import (
    Cut,
    as_listed,
    as_seen,
    await_archive,
    behind_start,
    cut_until,
    fingerprint,
    record_seen,
    regions_of,
    see,
)
from walferry.replay.lineage import find_breaks
from walferry.replay.protect import queued_files, require_peer
from walferry.replay.quarantine import apply_released, held_regions, record, untouched
from walferry.run.progress import unapplied
from walferry.run.run import Run
from walferry.spark.clients import shared_client
from walferry.wal.files import WalFile, list_wals

log = logging.getLogger(__name__)

STEP_BYTES = 1 << 30
LEASE_WAIT_SECONDS = 90.0


@dataclass(frozen=True)
class Batch:
    """Sealed files to apply together, and which tables had no region move while they were written."""

    files: list[WalFile]
    calm: frozenset[str]
    cut_ms: int
    """everything written before this moment is applied once the batch is"""
    before: dict[str, str] | None
    """fingerprints before the cut; None when the batch leaves files in front of the cut"""


def replay(run: Run, spark: SparkSession, *, until: Callable[[], bool], pause_seconds: float = 2.0) -> None:
    """Follow the log until `until` says so after a round; holds the leases of all target tables meanwhile.

    Raises GapError when a file of the log is missing, LeaseHeldError when another run applies,
    TransientError when something stays unreachable for longer than the bounded retries.
    """
    with applying(run) as route:
        while True:
            wait_while_paused(run)
            run_round(run, spark, route)
            if until():
                return
            time.sleep(pause_seconds)


def follow(run: Run, spark: SparkSession, interrupted: Callable[[], bool] = lambda: False) -> None:
    """The phase `replay`: follow the log until the phase `write_stop` is done.

    When the phase is started once more elsewhere (a task that was given up and repeated), the older one ends.
    `interrupted` is asked after each round whether to end at once. Raises RunEndedError in both cases.
    """

    def attempts() -> int:
        return max(p.attempts for p in run.ledger.phases.all() if p.phase == "replay")

    def work() -> dict[str, Any]:
        mine = attempts()

        def stopped() -> bool:
            if attempts() != mine:
                raise RunEndedError(f"the replay of {run.run_id} was taken over by a newer attempt")
            if interrupted():
                raise RunEndedError(f"the replay of {run.run_id} was interrupted")
            return run.ledger.phases.facts("write_stop") is not None

        replay(run, spark, until=stopped)
        return {}

    run.once("replay", work)


@contextmanager
def applying(run: Run) -> Iterator[Route]:
    """Hold the leases of all target tables, and make the pipe that the executors use under them."""
    thrift = run.spec.apply == "thrift"
    limits = Limits(request_seconds=THRIFT_SECONDS) if thrift else Limits()
    target = run.spec.target.address()
    with lease.hold(
        run.target.zk,
        [pair.target for pair in run.tables],
        holder=f"run {run.run_id} ({run.actor})",
        request_seconds=limits.request_seconds + limits.settle_seconds,
        wait_seconds=LEASE_WAIT_SECONDS,
    ) as fences:
        # Numbers rise within one target cluster only.
        names = {table: f"{run.target.cluster_id()} {table}" for table in fences}
        for table, fence in fences.items():
            run.ledger.leases.take(names[table], run.actor, fence.number)
        uuid = run.source.cluster_uuid()
        yield Route(
            source=run.spec.source.address(),
            root=run.source_root,
            source_id=(uuid.int & (1 << 64) - 1, uuid.int >> 64),
            target=target,
            tables={pair.source: pair.target for pair in run.tables},
            guard=partial(guard, target, dict(fences)),
            limits=limits,
            way="thrift" if thrift else "rpc",
        )
        for table, fence in fences.items():
            run.ledger.leases.release(names[table], fence.number)


def guard(target: ClusterAddress, fences: Mapping[str, lease.Fence], tables: Collection[str]) -> None:
    """Raise LeaseLostError unless this run still holds the leases of `tables`. Runs before each request."""
    zk = shared_client(target).zk
    for table in tables:
        lease.check(zk, fences[table])


def wait_while_paused(run: Run) -> None:
    """Return at once unless an operator paused the run; then when it is resumed. An aborted run ends here."""
    announced = False
    while True:
        record = run.ledger.record
        if record.state != "running":
            raise RunEndedError(
                f"run {record.run_id} was {record.state}: {record.outcome or 'no reason given'}", run=record.run_id
            )
        if not record.paused:
            return
        if not announced:
            log.info("paused; `walferry resume %s` goes on", record.name)
            announced = True
        time.sleep(1.0)


class RunEndedError(WalferryError):
    """Somebody ended the run while it was at work; fact `run`."""


# ------------------------------------------------------------------ one round


def run_round(run: Run, spark: SparkSession, route: Route) -> Round:
    """Cut the log, apply what is sealed, record it. Raises GapError when the log has a hole."""
    started_ms = _now_ms()
    apply_released(run, spark, route)
    window = _window(run)
    cut = _settled_cut(run, window)
    below = see(run, cut)
    check_complete(run, cut)
    pending = _pending(run, below)
    calm = frozenset(table for table, before in window.items() if before == cut.after.get(table))
    if len(calm) == len(window) and (first := _first(pending)) != pending:
        # A long backlog goes in steps, so that a kill costs little; the window stays open until it is all applied.
        return _apply(run, spark, route, Batch(first, calm, _covered_ms(run), None), started_ms)
    batch = Batch(pending, calm, cut.started_ms, cut.before)
    return _apply(run, spark, route, batch, started_ms)


def drain(run: Run, spark: SparkSession) -> dict[str, Any]:
    """Apply everything up to the end fence. Facts: files, cells; quarantine may still hold regions back."""

    def work() -> dict[str, Any]:
        with applying(run) as route:
            started_ms = _now_ms()
            apply_released(run, spark, route)
            end = {p.group: p.number for p in run.ledger.log.fence("end") or []}
            # Groups of servers that joined behind the end fence hold nothing in front of it.
            known = {file.group for file in run.ledger.log.files()} | end.keys()
            files = [file for file in await_archive(run) if file.group in known]
            wanted = behind_start(run, files)
            below = [file for file in wanted if file.number < end.get(file.group, file.number + 1)]
            record_seen(run, below, sealed={file.name for file in below})
            window = _window(run)
            now = {table: fingerprint(run.source, table) for table in window}
            calm = frozenset(table for table, before in window.items() if before == now[table])
            fence = run.done("end_fence")
            batch = Batch(_pending(run, below), calm, fence["at_ms"], fence["before"])
            done = _apply(run, spark, route, batch, started_ms)
        return {"files": done.files, "cells": done.cells, "bytes": done.bytes}

    return run.once("drain", work)


def _settled_cut(run: Run, window: Mapping[str, str]) -> Cut:
    """Cut the log so that the files below the cut hold, for every edit, the earlier edits of its row, too.

    While regions stand still any cut does. When regions moved since the last one, the cut must be quiet: then
    whatever preceded a move was rolled into a sealed file before.
    """

    def moving(cut: Cut) -> list[str]:
        moved = [table for table, before in window.items() if before != cut.after[table]]
        if moved:
            log.info("regions of %s moved; their edits are applied in row order", ", ".join(moved))
        if moved and cut.splitting():
            await_archive(run)
            return moved
        return moved if not all(cut.is_quiet(table) for table in moved) else []

    return cut_until(run, moving)


def _window(run: Run) -> dict[str, str]:
    """Fingerprints taken before the last cut whose files are all applied (at first: before the start fence)."""
    facts = run.ledger.notes.get("applied cut") or run.done("fence")
    return dict(facts["before"])


def check_complete(run: Run, cut: Cut) -> None:
    """Raise GapError when a file that must be there is not (R1).

    Two lists that are made independently of each other have to agree with what is on the file system: the files
    that the ledger saw earlier and has not applied, and the queue in which HBase keeps every WAL for the peer.
    Raises PeerChangedError when that peer is not there any more, or enabled: then nothing keeps the WALs.
    """
    require_peer(run)
    present = {file.name for file in cut.files}
    applied = run.ledger.log.applied_files()
    known = {file.name for file in run.ledger.log.files()}
    expected = known - applied
    start = {p.group: p.number for p in run.ledger.log.fence("start") or []}
    for name in queued_files(run):
        group, _, number = name.rpartition(".")
        if int(number) >= start.get(group, 0) and name not in applied:
            expected.add(name)
    # The queue may be newer than the listing: look again before crying wolf.
    missing = expected - present
    if missing:
        present |= {file.name for file in list_wals(run.source_files, run.source_root)}
        missing = {name for name in expected - present if not _was_empty(run, name)}
        _account_for_empty(run, expected - present - missing)
    if missing:
        for name in sorted(missing & known):
            run.ledger.log.mark_missing(name)
        first = min(missing)
        raise GapError(
            f"WAL file {first} is missing at the source and was not applied ({len(missing)} in all): "
            "the log has a gap; abort this run and begin anew with a fresh snapshot",
            file=first, start=0, end=None, files=sorted(missing),
        )  # fmt: skip


def _was_empty(run: Run, name: str) -> bool:
    """A log without a byte is deleted, not archived, when its server dies at once.

    An open log is listed with length 0, too, whatever it holds: only the last one of a dead server counts as empty.
    """
    files = {f.name: f for f in run.ledger.log.files()}
    file = files.get(name)
    if file is None or file.length or file.state != "open":
        return False
    alive = {server.name for server in run.source.servers()}
    return file.server not in alive and all(f.number <= file.number for f in files.values() if f.group == file.group)


def _account_for_empty(run: Run, names: Collection[str]) -> None:
    """Record files that were deleted without ever having held a byte as sealed and applied."""
    files = {f.name: f for f in run.ledger.log.files()}
    for file in (files[name] for name in sorted(names)):
        log.info("WAL file %s never held a byte and is gone with its server", file.name)
        run.ledger.log.see_files([as_seen(as_listed(file), sealed=True)])
        nothing = [WalRange(file.name, 0, 0, pair.source, 0, 0, None, None, "applied") for pair in run.tables]
        run.ledger.log.set_ranges(nothing)


def _first(pending: Sequence[WalFile]) -> list[WalFile]:
    """Of each group the first files, up to `STEP_BYTES` and at least one."""
    taken: dict[str, int] = defaultdict(int)
    first = []
    for file in sorted(pending, key=lambda file: (file.group, file.number)):
        if taken[file.group] < STEP_BYTES:
            first.append(file)
        taken[file.group] += file.length
    return first


def _covered_ms(run: Run) -> int:
    """The moment up to which everything is applied now: the start of the last cut whose files all are."""
    rounds = run.ledger.rounds.all()
    if not rounds:
        return int(run.done("fence")["at_ms"])
    return rounds[-1].covered_ms


def _pending(run: Run, sealed: Sequence[WalFile]) -> list[WalFile]:
    """The sealed files that are neither applied nor wholly handed to the quarantine's holds."""
    tables = {pair.source for pair in run.tables}
    handled = defaultdict(set)
    waiting = {(hold.file, hold.table) for hold in run.ledger.quarantine.holds()}
    # A batch's ranges are written last and at once: holds without them are of a batch to be repeated.
    for r in run.ledger.log.ranges():
        if r.state in ("applied", "verified") or (r.file, r.table) in waiting:
            handled[r.file].add(r.table)
    pending = [file for file in sealed if handled[file.name] < tables or not handled[file.name]]
    return sorted(pending, key=lambda file: (file.group, file.number))


# ------------------------------------------------------------------ applying a batch


def _apply(run: Run, spark: SparkSession, route: Route, batch: Batch, started_ms: int) -> Round:
    held = held_regions(run)
    stopped = {table for table, regions in held.items() if EVERY_REGION in regions}
    reports = [untouched(file, stopped) for file in batch.files if stopped]
    moved = {pair.source for pair in run.tables} - batch.calm - stopped
    if moved and batch.files:
        reports += _apply_moved(run, spark, _narrow(route, moved), batch, held)
    calm = batch.calm - stopped
    if calm and batch.files:
        reports += _apply_calm(spark, _narrow(route, calm), batch, held)
    record(run, reports)
    if batch.before is not None:
        run.ledger.notes.keep("applied cut", {"before": batch.before})
    return _record_round(run, batch, reports, started_ms)


def _record_round(run: Run, batch: Batch, reports: Sequence[FileReport], started_ms: int) -> Round:
    now_ms = _now_ms()
    tallies = [tally for report in reports if report.complete for tally in report.tallies]
    done = Round(
        number=len(run.ledger.rounds.all()) + 1,
        started_ms=started_ms,
        finished_ms=now_ms,
        files=len(batch.files),
        bytes=sum({report.file: report.length for report in reports if report.complete}.values()),
        entries=sum(tally.entries for tally in tallies),
        cells=sum(tally.cells for tally in tallies),
        lag_ms=now_ms - batch.cut_ms,
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
    spark: SparkSession, route: Route, batch: Batch, held: Mapping[str, Collection[str]]
) -> list[FileReport]:
    """Tables whose regions stood still: one pass over each group's files, the bytes go through unchanged."""
    groups: dict[str, list[WalFile]] = defaultdict(list)
    for file in sorted(batch.files, key=lambda file: (file.group, file.number)):
        groups[file.group].append(file)
    regions = frozenset(region for table in route.tables for region in held.get(table, ()))
    return apply_groups(spark, [GroupTask(route, tuple(files), regions) for files in groups.values()])


def _apply_moved(
    run: Run, spark: SparkSession, route: Route, batch: Batch, held: Mapping[str, Collection[str]]
) -> list[FileReport]:
    """Tables whose regions moved: read first what the files hold, then apply in row order."""
    indexes = index_files(spark, route, batch.files)
    refusals = find_breaks([event for index in indexes for event in index.events])
    damaged = any(not index.report.complete for index in indexes)
    waiting = {table: set(held.get(table, ())) for table in route.tables}
    for refusal in (refusal for index in indexes for refusal in index.report.refusals if refusal.region):
        waiting[refusal.table].add(refusal.region or EVERY_REGION)
    broken = {refusal.table for refusal in refusals} | _with_heirs(run, waiting)
    sound = _narrow(route, set(route.tables) - broken)
    if sound.tables and not damaged:
        held_now = frozenset(region for regions in waiting.values() for region in regions)
        done = apply_by_row(spark, RowTask(sound, tuple(batch.files), held=held_now))
        refusals += done.refusals
        for refusal in done.refusals:
            waiting[refusal.table].add(refusal.region or EVERY_REGION)
        broken |= _with_heirs(run, waiting)
    reports = []
    for index in indexes:
        found = index.report
        mine = tuple(r for r in (*found.refusals, *refusals) if r.file == found.file)
        fine = tuple(t for t in found.tallies if t.table not in broken)
        withheld = tuple(Withheld(found.file, t, r, 0) for t, r in sorted(index.regions) if r in waiting[t])
        reports.append(replace(found, complete=not damaged, tallies=fine, refusals=mine, withheld=withheld))
        reports += [untouched(file, broken) for file in batch.files if broken and file.name == found.file]
    return reports


def _with_heirs(run: Run, waiting: Mapping[str, Collection[str]]) -> set[str]:
    """Tables in which a waiting region was split or merged: its rows live on under other names, so all must wait."""
    return {
        table
        for table, regions in waiting.items()
        if regions and not set(regions) <= {r.encoded for r in regions_of(run.source, table)}
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

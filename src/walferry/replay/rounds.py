"""Replay: bring the target up with the source's log, round by round.

A round cuts the log, applies every sealed file that is not applied yet, and records it. Only the ledger says what is
applied (R2): the next round repeats a killed one as a whole, which converges because nothing later was applied in
between (R3).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from walferry.apply.route import Route
from walferry.clock import now_ms
from walferry.ledger import Round
from walferry.replay.applying import applying
from walferry.replay.batch import Batch, apply_batch
from walferry.replay.completeness import check_complete
from walferry.replay.cut import (
    Cut,
    await_archive,
    cut_until,
    fingerprint,
    record_seen,
    regions_of,
    see,
)
from walferry.replay.quarantine import apply_released
from walferry.run.facts import applied_cut, fence_facts
from walferry.run.run import Run
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

STEP_BYTES = 1 << 30


def run_round(run: Run, spark: SparkSession, route: Route) -> Round:
    """Cut the log, apply what is sealed, record it. Raises GapError when the log has a hole."""
    started_ms = now_ms()
    apply_released(run, spark, route)
    fingerprints = applied_cut(run)
    cut = _settled_cut(run, fingerprints)
    below = see(run, cut)
    check_complete(run, cut.files)
    pending = _pending(run, below)
    calm = frozenset(table for table, before in fingerprints.items() if before == cut.after.get(table))
    if len(calm) == len(fingerprints) and (first := _first(pending)) != pending:
        # A long backlog is applied in steps, so that a kill costs little; the fingerprints stay until all is applied.
        return apply_batch(run, spark, route, Batch(first, calm, _covered_ms(run), None, cut.regions), started_ms)
    batch = Batch(pending, calm, cut.started_ms, cut.before, cut.regions)
    return apply_batch(run, spark, route, batch, started_ms)


def drain(run: Run, spark: SparkSession) -> dict[str, Any]:
    """Apply everything up to the end fence. Facts: files, cells, bytes; regions may still be held by quarantine."""

    def work() -> dict[str, Any]:
        with applying(run) as route:
            started_ms = now_ms()
            apply_released(run, spark, route)
            listed = await_archive(run)
            check_complete(run, listed, to_end_fence=True)
            below = run.fences().within(listed)
            record_seen(run, below, sealed={file.name for file in below})
            fingerprints = applied_cut(run)
            regions = {table: regions_of(run.source, table) for table in fingerprints}
            now = {table: fingerprint(run.source, table, regions[table]) for table in fingerprints}
            calm = frozenset(table for table, before in fingerprints.items() if before == now[table])
            fence = fence_facts(run, "end")
            batch = Batch(_pending(run, below), calm, fence.at_ms, fence.before, regions)
            done = apply_batch(run, spark, route, batch, started_ms)
        return {"files": done.files, "cells": done.cells, "bytes": done.bytes}

    return run.once("drain", work)


def _settled_cut(run: Run, fingerprints: Mapping[str, str]) -> Cut:
    """Cut the log such that the files before the cut hold, for every edit, the earlier edits of its row too.

    While no region moves, any cut does. When regions have moved since the last applied cut (`fingerprints`), the cut
    must be quiet: then whatever preceded a move is in a sealed file.
    """

    def moving(cut: Cut) -> list[str]:
        moved = [table for table, before in fingerprints.items() if before != cut.after[table]]
        if moved:
            log.info("regions of %s moved; their edits are applied in row order", ", ".join(moved))
        if moved and cut.splitting():
            await_archive(run)
            return moved
        return moved if not all(cut.is_quiet(table) for table in moved) else []

    return cut_until(run, moving)


def _first(pending: Sequence[WalFile]) -> list[WalFile]:
    """The first files of each group, up to `STEP_BYTES` and at least one."""
    taken: dict[str, int] = defaultdict(int)
    first = []
    for file in sorted(pending, key=lambda file: (file.group, file.number)):
        if taken[file.group] < STEP_BYTES:
            first.append(file)
        taken[file.group] += file.length
    return first


def _covered_ms(run: Run) -> int:
    """The moment up to which everything is applied now: the start of the last completely applied cut."""
    rounds = run.ledger.rounds.all()
    if not rounds:
        return fence_facts(run, "start").at_ms
    return rounds[-1].covered_ms


def _pending(run: Run, sealed: Sequence[WalFile]) -> list[WalFile]:
    """The sealed files that are neither applied nor completely held by quarantine."""
    tables = {pair.source for pair in run.tables}
    handled = defaultdict(set)
    waiting = {(hold.file, hold.table) for hold in run.ledger.quarantine.holds()}
    # A batch's ranges are written last and all at once: holds without ranges belong to a batch to be repeated.
    for r in run.ledger.log.ranges():
        if r.state in ("applied", "verified") or (r.file, r.table) in waiting:
            handled[r.file].add(r.table)
    pending = [file for file in sealed if handled[file.name] < tables or not handled[file.name]]
    return sorted(pending, key=lambda file: (file.group, file.number))

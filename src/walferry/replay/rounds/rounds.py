"""Replay: bring the target up with the source's log, round by round.

A round cuts the log and applies every sealed file that is not applied yet, as one batch. Only the ledger says what is
applied (R2). After a kill the next process continues the batch and repeats the pieces that were running. This
converges, because no later edit of their rows was applied in between (R3).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from pyspark.sql import SparkSession

from walferry.apply.prefix import Sent
from walferry.apply.route import Route, mark_tables
from walferry.clock import now_ms
from walferry.errors import TransientError
from walferry.hbase.descriptors import Region
from walferry.ledger import Round
from walferry.replay.log.cut import (
    Cut,
    await_archive,
    cut_until,
    lines_of,
    record_seen,
    regions_if_exists,
    see,
    standing,
)
from walferry.replay.log.taken_back import compare_sent
from walferry.replay.quarantine import apply_released
from walferry.replay.rights.applying import applying, lease_check_of, shared_by_workers
from walferry.replay.rounds.batch import begin_batch, continue_batch
from walferry.replay.rounds.batch_work import Batch
from walferry.replay.rounds.completeness import check_complete
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.replay.rounds.sent_before_batch import sent_before, sent_earlier
from walferry.run.facts import Lines, fence_facts, kept_lines
from walferry.run.run import Run
from walferry.wal.files import WalFile, parse_wal_name

log = logging.getLogger(__name__)


class NotCutError(TransientError):
    """The source's log could not be cut or checked: a server or the master does not answer, or regions keep moving. No
    batch was begun."""


def run_round(run: Run, spark: SparkSession, route: Route, open_logs: OpenLogs | None = None) -> Round:
    """Finish an interrupted batch, then cut the log and apply the sealed files.

    `open_logs` are followed at the same time. Raises GapError when the log has a gap, NotCutError when the log cannot
    be cut.
    """
    route = shared_by_workers(run, route, spark)
    continue_batch(run, spark, route, sent_earlier(run))
    started_ms, lease_check = now_ms(), lease_check_of(run, route)
    apply_released(run, spark, route, lease_check)  # rereads rows of the source, so it runs before open logs are sent
    with open_logs.beside() if open_logs else nullcontext():
        applied = kept_lines(run, "applied")
        try:
            cut = _settled_cut(run, applied)
            files = _pending(run, see(run, cut))
            check_complete(run, cut.files)
        except TransientError as error:
            raise NotCutError(error.message, **error.facts) from error
        early = open_logs.settle(cut, files, applied, route) if open_logs else sent_before(run, cut)
        batch = _batch(files, applied, cut.after, cut.started_ms, cut.before, cut.regions, early.followed)
        mark_overtaken(run, route, batch.files)
        in_bulk = begin_batch(run, batch, started_ms, route.limits.piece_bytes, lease_check)
        if open_logs and in_bulk:
            open_logs.stop()
        done = _finish(run, spark, route, early.sent)
        compare_sent(run, route, early.logs)
        if open_logs:
            open_logs.applied(cut)
    return done


def drain(run: Run, spark: SparkSession) -> dict[str, Any]:
    """Apply everything up to the end fence. Facts: files, cells, bytes. Quarantine may still hold regions."""

    def work() -> dict[str, Any]:
        with applying(run) as held:
            route = shared_by_workers(run, held, spark)
            sent = sent_earlier(run)
            earlier = continue_batch(run, spark, route, sent)
            started_ms, lease_check = now_ms(), lease_check_of(run, route)
            apply_released(run, spark, route, lease_check)
            listed = await_archive(run)
            check_complete(run, listed, to_end_fence=True)
            below = run.fences().within(listed)
            record_seen(run, below, sealed={file.name for file in below})
            applied = kept_lines(run, "applied")
            regions = {pair.source: regions_if_exists(run.source, pair.source) for pair in run.tables}
            now = {table: lines_of(run.source, table, found) for table, found in regions.items()}
            before, at_ms = kept_lines(run, "end fence"), fence_facts(run, "end").at_ms
            batch = _batch(_pending(run, below), applied, now, at_ms, before, regions, frozenset())
            mark_overtaken(run, route, batch.files)
            begin_batch(run, batch, started_ms, route.limits.piece_bytes, lease_check)
            done = [*filter(None, [earlier]), _finish(run, spark, route, sent)]
            compare_sent(run, route)
        return {name: sum(getattr(one, name) for one in done) for name in ("files", "cells", "bytes")}

    return run.once("drain", work)


def _finish(run: Run, spark: SparkSession, route: Route, sent: Mapping[str, Sent]) -> Round:
    done = continue_batch(run, spark, route, sent)
    assert done is not None, "the batch has just been recorded"
    return done


def _batch(
    files: Sequence[WalFile],
    applied: Lines,
    now: Lines,
    cut_ms: int,
    before: Lines,
    regions: Mapping[str, Sequence[Region]],
    followed: frozenset[str],
) -> Batch:
    """The batch of sealed files. `applied`: the lines of the last applied cut; `before`: the lines of this one.
    `followed`: regions that have moved since, but whose edits before the move were all sent."""
    return Batch(
        files=tuple(files),
        calm=frozenset(table for table, lines in now.items() if lines == applied.get(table)),
        standing=frozenset().union(*standing(applied, now).values()),
        followed=followed,
        cut_ms=cut_ms,
        before={table: dict(lines) for table, lines in before.items()},
        regions={table: tuple(found) for table, found in regions.items()},
    )


def mark_overtaken(run: Run, route: Route, files: Sequence[WalFile]) -> None:
    """Mark the tables of files that turn up only after newer edits of their WAL group were applied.

    Such a file's edits are applied after the newer ones. A file turns up late if no queue named it, or if somebody put
    it back.
    """
    reached = run.ledger.log.reached()
    for file in files:
        tables = [table for table in route.tables if file.number < reached.get((file.group, table), 0)]
        if not tables:
            continue
        passed = {
            part.table
            for part in run.ledger.log.ranges(groups={file.group})
            if part.state in ("applied", "verified") and part.cells and part.table in tables
            and (newer := parse_wal_name(part.file)) is not None and newer.number > file.number
        }  # fmt: skip
        why = f"old edits of {file.name}, which turned up after newer edits of its server had been applied"
        if passed:
            log.warning("rows of %s may hold %s", ", ".join(sorted(passed)), why)
            mark_tables(route, passed, why)


def _settled_cut(run: Run, applied: Lines) -> Cut:
    """Cut the log so that, for every edit in the files before the cut, the earlier edits of the row are in them, too.

    For a region that stood still since the last applied cut, whose lines are `applied`, any cut will do. For regions
    that have moved since, the cut must be quiet: then all edits from before a move are in sealed files.
    """

    def moving(cut: Cut) -> list[str]:
        moved = [table for table, lines in cut.after.items() if lines != applied.get(table)]
        if moved:
            log.info("regions of %s have moved since the last round", ", ".join(moved))
        if moved and cut.splitting():
            await_archive(run)
            return moved
        still = standing(applied, cut.after)
        return [table for table in moved if not cut.is_quiet(table, still[table])]

    return cut_until(run, moving, applied=applied)


def _pending(run: Run, sealed: Sequence[WalFile]) -> list[WalFile]:
    """The sealed files that are not applied, and not completely held by quarantine."""
    waiting = run.ledger.log.pending([file.name for file in sealed])
    return sorted((file for file in sealed if file.name in waiting), key=lambda file: (file.group, file.number))

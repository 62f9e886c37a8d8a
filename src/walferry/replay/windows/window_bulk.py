"""Apply a window's edits in bulk: sorted into HFiles, which the target's regions take; each piece recorded on its own.

Works like `window_pieces`, but with the pieces of `bulk_pieces`. `window_pieces.kept_plan` decides whether pieces may
be loaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from walferry.apply.by_row import RowTask
from walferry.apply.in_bulk import InFile, place_here, place_in_bulk
from walferry.apply.index import FileIndex
from walferry.apply.outcomes import Refusal
from walferry.clock import now_ms
from walferry.errors import DamagedInputError
from walferry.refusals import RefusalKind
from walferry.replay.pieces.bulk_pieces import bulk_task, cut_in_bulk, goes_in_bulk, load_pieces
from walferry.replay.pieces.pieces import repeated
from walferry.replay.pieces.row_ranges import as_pieces, ranges_of, unfinished
from walferry.replay.rights.applying import lease_check_of
from walferry.replay.windows.window_pieces import (
    Found,
    WindowApplied,
    concerns,
    digest_of,
    found_in,
    is_small,
    kept_plan,
)
from walferry.run.run import Run
from walferry.spark.clients import workers
from walferry.spark.fan_out import AT_ONCE_HERE

log = logging.getLogger(__name__)


def in_bulk(run: Run, size: int) -> bool:
    """Whether the run's window is applied in bulk; `size`: bytes of its files."""
    return run.spec.apply == "bulk" or (run.spec.apply == "auto" and goes_in_bulk(run, size))


def apply_in_bulk(
    run: Run,
    spark: Callable[[], SparkSession],
    task: RowTask,
    own: int,
    released: Collection[tuple[int, str | None]],
    require_one_history: Callable[[Sequence[FileIndex]], None],
) -> WindowApplied:
    """Apply the rest of a window's edits in bulk; in all other respects as `window_pieces.apply_in_pieces`."""
    session = None if is_small(task.files, task.route.limits.here_bytes) else spark()
    place = place_here if session is None else partial(place_in_bulk, session)
    lease_check = lease_check_of(run, task.route)
    planned_from = digest_of(task, released, "bulk")
    found = kept_plan(run, planned_from, lease_check)
    if found is None:
        ranges = cut_in_bulk(run, AT_ONCE_HERE if session is None else workers(session), task)
        left = None
    else:
        pieces = run.ledger.batches.pieces("rows")
        ranges, left = ranges_of(pieces), unfinished(pieces)
    with closing(place(bulk_task(run, replace(task, pieces=left), ranges))) as placed:
        # A process that continues reads the files too: one may have become unreadable.
        told = placed.read()
        refusals = _refusals(task, told, own)
        if found is None or refusals:
            require_one_history([file.index for file in told])
            found = _found(run, task, told, own, planned_from)
        if refusals:
            return WindowApplied(0, 0, found.bytes, 0, 0, refusals, (), lease_check)
        if left is None:
            run.ledger.batches.begin(found.model_dump_json(), as_pieces(ranges), now_ms(), lease_check)
        loaded = load_pieces(run, session, task, told, placed.apply, lease_check)
    pieces = run.ledger.batches.pieces()
    outranked = sum(piece.outranked for piece in loaded)
    return WindowApplied(
        cells=found.cells - outranked,
        outranked=found.outranked + outranked,
        bytes=found.bytes,
        pieces=len(pieces),
        repeated=repeated(pieces),
        refusals=(),
        ranges=found.ranges,
        lease_check=lease_check,
    )


def _refusals(task: RowTask, told: Sequence[InFile], own: int) -> tuple[Refusal, ...]:
    """The refusals from the window's files, which are the first `own`.

    Raises DamagedInputError if another file cannot be read: the edits that the target has from it count too.
    """
    for file in told[own:]:
        for refusal in file.index.report.refusals:
            if refusal.kind is RefusalKind.DAMAGE and refusal.file not in task.cut_off:
                raise DamagedInputError(refusal.reason, file=refusal.file, offset=refusal.start, reason=refusal.reason)
    return tuple(r for file in told[:own] for r in file.index.report.refusals if concerns(r, task))


def _found(run: Run, task: RowTask, told: Sequence[InFile], own: int, planned_from: str) -> Found:
    outranked = sum(file.outranked for file in told)
    cells = sum(file.cells for file in told) - outranked
    reports = [file.index.report for file in told[:own]]
    found = found_in(run, task, reports, planned_from, frozenset(), cells)
    return found.model_copy(update={"outranked": outranked})

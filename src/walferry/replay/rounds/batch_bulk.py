"""Load a batch in bulk: sorted into HFiles, which the target's regions take, each piece recorded on its own.

Only plain batches are loaded. If anything in a batch cannot be applied, is held, or shows a new history, nothing is
loaded and the batch goes by group. So does a batch that keeps failing to load: edits that were loaded may be sent again
in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from walferry.apply.by_row import RowTask
from walferry.apply.in_bulk import place_in_bulk
from walferry.apply.outcomes import FileReport
from walferry.errors import GapError, WalferryError, WalKeyError, is_transient
from walferry.replay.log import lineage
from walferry.replay.log.cut import regions_if_exists
from walferry.replay.pieces.bulk_pieces import bulk_task, cut_in_bulk, load_pieces
from walferry.replay.pieces.pieces import cut_groups
from walferry.replay.pieces.row_ranges import as_pieces, ranges_of, unfinished
from walferry.replay.quarantine import held_regions
from walferry.replay.rights.applying import remove_staged
from walferry.replay.rights.lease import LeaseLostError, OutcomeUnknownError
from walferry.replay.rounds.batch_work import Work, trace_regions
from walferry.run.run import RunEndedError
from walferry.spark.clients import workers

log = logging.getLogger(__name__)

BULK_ATTEMPTS = 4
"""failed attempts to load a batch before it goes by group"""


class NotInBulkError(WalferryError):
    """Some edits of a batch may have to wait, so none is loaded: the batch goes by group. Nothing has failed."""


def load_batch(work: Work) -> list[FileReport] | None:
    """Load the rest of a batch. Returns its files' reports; None if the batch goes by group, with new pieces.

    Raises OutcomeUnknownError if the batch goes by group while an executor may still load some of its edits.
    """
    batches, batch = work.run.ledger.batches, work.batch
    try:
        return _load(work)
    except (GapError, WalKeyError, LeaseLostError, RunEndedError):
        raise
    except NotInBulkError as error:
        _replan_by_rpc(work, error)
        return None
    except Exception as error:
        work.guard()
        left = batch.bulk - 1 if is_transient(error) else 0
        if left:
            batches.replan(batch.model_copy(update={"bulk": left}).model_dump_json(), None, work.lease_check)
            raise
        _replan_by_rpc(work, error)
        return None


def _replan_by_rpc(work: Work, why: Exception) -> None:
    """Send the batch by group from its beginning. Raises OutcomeUnknownError if a piece was started."""
    batches, batch = work.run.ledger.batches, work.batch
    what = "its edits may have to wait" if isinstance(why, NotInBulkError) else "loading failed"
    log.warning("the whole batch is applied by rpc, not in bulk: %s: %s", what, why)
    remove_staged(work.run, work.run.tables)  # so that no late load replaces edits sent from now on
    begun = any(piece.attempts for piece in batches.pieces())
    pieces = cut_groups(batch.files, work.route.limits.piece_bytes)
    batches.replan(batch.model_copy(update={"bulk": 0}).model_dump_json(), pieces, work.lease_check)
    if begun:
        raise OutcomeUnknownError(f"an executor may still load edits in bulk: {why}") from why


def _load(work: Work) -> list[FileReport]:
    """Read all files, then load the pieces that are left. Raises NotInBulkError, before anything is loaded, if some
    edits may have to wait; also raises any error of the load."""
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
        run.ledger.batches.add(as_pieces(ranges), work.lease_check)
    load_pieces(run, work.spark, task, told, placed.apply, work.lease_check)
    return reports


def _require_plain(work: Work, reports: Sequence[FileReport]) -> None:
    """Raise NotInBulkError if some edits may have to wait."""
    refusals = [refusal for report in reports for refusal in report.refusals]
    _, after = trace_regions(work, reports, work.route.tables)
    refusals += lineage.find_breaks(after, work.batch.regions, partial(regions_if_exists, work.run.source))
    if refusals:
        raise NotInBulkError(refusals[0].reason, file=refusals[0].file, offset=refusals[0].start)

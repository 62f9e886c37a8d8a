"""Apply a window's edits in pieces, each recorded on its own: a kill costs only the pieces that were running.

The files are read first, and the ledger keeps what they hold, together with the pieces. Rows that need sorting go
before the edits that go by group: edits from before a region opened are older than all later ones. A process that
continues starts over if an item was released from quarantine since, or if another run has held the lease on one of the
tables: that run may have applied older edits over the edits of pieces that are done. It also starts over if a target
table was emptied or created again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from walferry.apply.by_group import GroupTask
from walferry.apply.by_row import RowsApplied, RowTask, index_files, place_rows
from walferry.apply.index import FileIndex, InWindow, merge
from walferry.apply.outcomes import FileReport, Refusal
from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.ledger import Piece, WalRange
from walferry.ledger.batches import Change
from walferry.refusals import RefusalKind
from walferry.replay.log.cut import line_of, lines_of, regions_if_exists
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
from walferry.replay.record_reports import range_of
from walferry.replay.rights.applying import lease_check_of, shared_by_workers
from walferry.replay.rights.lease import resource
from walferry.run.run import Run
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

_JSON = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class Found(BaseModel):
    """What a window's files hold, and the plan that follows from it."""

    model_config = _JSON

    planned_from: str
    """digest of everything else that this depends on, besides the files"""
    leases: dict[str, int]
    """number of the lease on each target table"""
    targets: dict[str, frozenset[str]]
    """the regions of each target table"""
    standing: frozenset[str]
    """regions whose edits in the window go by group"""
    cells: int
    """cells of the window in those regions; in bulk, all cells of the window"""
    refusals: tuple[Refusal, ...]
    ranges: tuple[WalRange, ...]
    """ranges of the window's files, as applied"""
    bytes: int
    outranked: int = 0
    """cells that were left out while reading, because the target has later ones"""


class _RowsDone(BaseModel):
    """The outcome of a row piece."""

    model_config = _JSON

    cells: int
    outranked: int
    refusals: tuple[Refusal, ...]


class _GroupDone(BaseModel):
    """The outcome of a group piece."""

    model_config = _JSON

    held: frozenset[str]
    """regions that later pieces leave out"""
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class WindowApplied:
    """The outcome of applying a window's edits."""

    cells: int
    outranked: int
    """cells that were left out because the target has later ones"""
    bytes: int
    """bytes of the window's files"""
    pieces: int
    repeated: int
    """attempts at pieces, not counting each piece's first"""
    refusals: tuple[Refusal, ...]
    ranges: tuple[WalRange, ...]
    """ranges to record if nothing was refused"""
    lease_check: Change
    """raises LeaseLostError, within a change of the ledger, if another process has taken the leases"""


def apply_in_pieces(
    run: Run,
    spark: Callable[[], SparkSession],
    task: RowTask,
    own: int,
    released: Collection[tuple[int, str | None]],
    require_one_history: Callable[[Sequence[FileIndex]], None],
) -> WindowApplied:
    """Apply the rest of a window's edits.

    `task`: the window's edits, and the edits of other times that the target already has; its first `own` files are the
    window's. `released`: released quarantine items with their resolutions. `require_one_history` raises when the files'
    edits belong to two histories. Nothing is applied if a file is damaged.

    The batch stays in the ledger: the caller removes it when recording the result. Raises LeaseLostError, and records
    nothing more, if the leases are lost; GapError when a file has vanished.

    Calls `spark` only when needed: not if the files are small, unless edits of other times have to be ranked.
    """
    session = None if is_small(task.files, task.route.limits.here_bytes) else spark()
    lease_check = lease_check_of(run, task.route)
    planned_from = digest_of(task, released)
    found = kept_plan(run, planned_from, lease_check)
    if found is None:
        indexes = index_files(session, task.route, task.files, task)
        require_one_history(indexes)
        found = _found(run, task, indexes, own, planned_from)
        if any(refusal.kind is RefusalKind.DAMAGE for refusal in found.refusals):
            return WindowApplied(0, 0, found.bytes, 0, 0, found.refusals, (), lease_check)
        pieces = _cut(task, found, indexes)
        run.ledger.batches.begin(found.model_dump_json(), pieces, now_ms(), lease_check)
    rows = _apply_rows(run, spark, task, found, lease_check)
    groups = _apply_groups(run, session, task, found, lease_check)
    of_rows, of_groups = [r for done in rows for r in done.refusals], [r for done in groups for r in done.refusals]
    pieces = run.ledger.batches.pieces()
    return WindowApplied(
        cells=sum(done.cells for done in rows) + found.cells,
        outranked=sum(done.outranked for done in rows),
        bytes=found.bytes,
        pieces=len(pieces),
        repeated=repeated(pieces),
        refusals=tuple(dict.fromkeys([*found.refusals, *of_rows, *of_groups])),
        ranges=found.ranges,
        lease_check=lease_check,
    )


# ------------------------------------------------------------------ plan


def is_small(files: Iterable[WalFile], here_bytes: int) -> bool:
    """Whether files are so small that this process reads them before Spark would start, and applies them as fast as
    Spark."""
    return sum(file.length for file in files) <= here_bytes


def digest_of(task: RowTask, released: Collection[tuple[int, str | None]], *more: str) -> str:
    """A digest of everything that a plan depends on, besides the files' contents."""
    settled = [
        (file, table, [(part.span.start_ms, part.span.end_ms, sorted(part.held)) for part in parts])
        for (file, table), parts in sorted(task.window.settled.items())
    ]
    names = [file.name for file in task.files]
    told = json.dumps([names, settled, sorted(task.window.absent_at_target), sorted(released), *more])
    return hashlib.sha256(told.encode()).hexdigest()


def kept_plan(run: Run, planned_from: str, lease_check: Change) -> Found | None:
    """The plan of an earlier attempt, if it can be continued; otherwise None, and its batch is removed."""
    batch = run.ledger.batches.now()
    if batch is None:
        return None
    found = Found.model_validate_json(batch.plan)
    emptied = [name for name, before in found.targets.items() if not before & target_regions(run, name)]
    why = f"{emptied[0]} has been emptied or created again" if emptied else _disturbed(run, found.leases)
    if why is None and found.planned_from != planned_from:
        why = "the edits that other runs have applied, or the decisions about quarantine, have changed"
    if why is None:
        return found
    log.warning("%s is applied again from its beginning: %s since the last attempt", run.run_id, why)
    run.ledger.batches.drop(lease_check)
    return None


def target_regions(run: Run, target: str) -> set[str]:
    """Encoded names of a table's regions: truncating or recreating the table changes all of them, a split only few."""
    return {region.encoded for region in run.target.regions(target)}


def _disturbed(run: Run, leases: Mapping[str, int]) -> str | None:
    """Who else has held one of these leases since its recorded number, as text; None if nobody has."""
    for name, number in leases.items():
        later = {lease.fencing_number: lease.run_id for lease in run.ledger.whole.leases(name)}
        for since in range(number + 1, max(later) + 1):
            if later.get(since) != run.run_id:
                who = f"run {later[since]}" if since in later else "an attempt that recorded nothing"
                return f"{who} has held the lease number {since} on {name}"
    return None


def found_in(
    run: Run, task: RowTask, reports: Sequence[FileReport], planned_from: str, standing: frozenset[str], cells: int
) -> Found:
    """What the window's files hold, according to their reports."""
    cluster = run.target.cluster_id()
    names = [resource(cluster, target) for target in task.route.tables.values()]
    return Found(
        planned_from=planned_from,
        leases={name: run.ledger.leases.newest(name) for name in names},
        targets={name: frozenset(target_regions(run, name)) for name in task.route.tables.values()},
        standing=standing,
        cells=cells,
        refusals=tuple(r for report in reports for r in report.refusals if concerns(r, task)),
        ranges=tuple(range_of(report, tally, "applied") for report in reports for tally in report.tallies),
        bytes=sum(report.length for report in reports),
    )


def _found(run: Run, task: RowTask, indexes: Sequence[FileIndex], own: int, planned_from: str) -> Found:
    edits: dict[tuple[str, str], InWindow] = {}
    for index in indexes:
        for key, more in index.in_window.items():
            edits[key] = merge(edits.get(key), more)
    mine = {key: found for key, found in edits.items() if found.cells}
    # With accepted damage a file ends early, so the order of its edits proves nothing.
    # Groups are applied by write time alone.
    by_row = bool(task.cut_off) or task.window.numbers is not None
    candidates = {} if by_row else {key: found for key, found in mine.items() if found.settled < found.lowest}
    still = _open_since(run, candidates)
    reports = [index.report for index in indexes[:own]]
    standing = frozenset(region for _, region in still)
    return found_in(run, task, reports, planned_from, standing, sum(mine[key].cells for key in still))


def _open_since(run: Run, edits: Mapping[tuple[str, str], InWindow]) -> set[tuple[str, str]]:
    """The regions that have stayed open on one server since the first of their edits was written.

    hbase:meta has the sequence number of a region's latest opening, and every later edit has a higher number. So all of
    these edits are in one WAL group, in order. Other regions' edits of the same rows are older than that opening.
    """
    found = set()
    for table in {table for table, _ in edits}:
        regions = regions_if_exists(run.source, table)
        lines = lines_of(run.source, table, regions)
        for region in regions:
            mine = edits.get((table, region.encoded))
            if mine is not None and lines[region.encoded] == line_of(region) and region.open_sequence <= mine.lowest:
                found.add((table, region.encoded))
    return found


def concerns(refusal: Refusal, task: RowTask) -> bool:
    """Whether a refusal belongs to the window and was not released."""
    if refusal.kind is RefusalKind.DAMAGE:
        return refusal.file not in task.cut_off
    inside = task.window.has(refusal.region, refusal.sequence_number, refusal.write_time)
    return inside and (refusal.file, refusal.start) not in task.skipped


def _cut(task: RowTask, found: Found, indexes: Sequence[FileIndex]) -> list[Piece]:
    """The pieces by row, then those by group."""
    limit, tables = task.route.limits.piece_bytes, frozenset(task.route.tables)
    by_row = [e for index in indexes for e in index.inside if e.region not in found.standing]
    settled = [edits for index in indexes for edits in index.settled]
    ranges = cut_rows([*by_row, *settled], tables, frozenset(), limit) if by_row else []
    pieces = as_pieces(ranges)
    names = {index.report.file for index in indexes if any(e.region in found.standing for e in index.inside)}
    names |= {refusal.file for refusal in found.refusals}  # a refused marker holds its region from its offset on
    return pieces + cut_groups([file for file in task.files if file.name in names], limit, len(pieces))


# ------------------------------------------------------------------ pieces


def _apply_rows(
    run: Run, spark: Callable[[], SparkSession], task: RowTask, found: Found, lease_check: Change
) -> list[_RowsDone]:
    pieces = run.ledger.batches.pieces("rows")
    left = unfinished(pieces)
    if not left:
        return shown_earlier(pieces, _RowsDone)
    session = None if not task.ranked and is_small(task.files, task.route.limits.here_bytes) else spark()
    task = replace(
        task,
        route=task.route if session is None else shared_by_workers(run, task.route, session),
        window=replace(task.window, by_group=found.standing),
        borders=borders_between(ranges_of(pieces)),
        pieces=left,
    )

    def shown_by(piece: Piece, applied: RowsApplied) -> _RowsDone:
        return _RowsDone(cells=applied.cells, outranked=applied.outranked, refusals=applied.refusals)

    apply = place_rows(session, task)
    return apply_ranges(run, session, task.route, lease_check, pieces, apply, "apply edits by row", _RowsDone, shown_by)


def _apply_groups(
    run: Run, spark: SparkSession | None, task: RowTask, found: Found, lease_check: Change
) -> list[_GroupDone]:
    def task_of(piece: Piece, files: tuple[WalFile, ...], held: frozenset[str]) -> GroupTask:
        return GroupTask(task.route, files, found.standing, held, window=task.window.times, skipped=task.skipped)

    def record(
        piece: Piece, files: tuple[WalFile, ...], reports: list[FileReport], shown: Mapping[int, _GroupDone]
    ) -> _GroupDone:
        refusals = tuple(refusal for report in reports for refusal in report.refusals)
        left = [report.file for report in reports if report.withheld or not report.complete]
        if left and not refusals and not any(other.refusals for other in shown.values()):
            raise WalferryError(
                f"edits of the window in {left[0]} were not applied, for no recorded reason; please report this",
                file=left[0],
            )
        held = {r.region for r in refusals} | {item.region for report in reports for item in report.withheld}
        if any(not report.complete for report in reports):
            held |= found.standing  # nothing after damage in a group is applied
        outcome = _GroupDone(held=frozenset(held), refusals=refusals)
        run.ledger.batches.finish(piece.number, outcome.model_dump_json(), lease_check)
        return outcome

    shown_in = _GroupDone.model_validate_json
    return list(apply_group_pieces(run, spark, task.route, lease_check, task.files, shown_in, task_of, record).values())

"""Apply a window's edits in bulk: sorted into HFiles, which the target's regions take; each piece recorded on its own.

As in `window_pieces`, but a piece is a range of rows with all of its edits, whichever regions they were written to:
what is sorted needs no calm region. A piece that is applied again is loaded again, which changes nothing as long as
nobody else has written to the table meanwhile (`window_pieces.kept_plan`).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from walferry.apply.bulk_loader import staging_folder
from walferry.apply.by_row import RowTask
from walferry.apply.in_bulk import BulkApplied, BulkTask, InFile, place_here, place_in_bulk, sample_rows
from walferry.apply.index import FileIndex
from walferry.apply.outcomes import Refusal
from walferry.clock import now_ms
from walferry.errors import DamagedInputError, WalferryError
from walferry.formats.hfile_writer import BLOOMS, COMPRESSIONS, ENCODINGS, StoreFormat
from walferry.hbase.descriptors import Family
from walferry.ledger import Piece
from walferry.ledger.batches import Change
from walferry.refusals import RefusalKind
from walferry.replay.applying import remove_staged
from walferry.replay.batch import fence_of
from walferry.replay.pieces import apply_pieces
from walferry.replay.row_ranges import RowRange
from walferry.replay.window_pieces import (
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
from walferry.storage import PermissionDeniedError, QuotaExceededError

log = logging.getLogger(__name__)

BULK_FROM_BYTES = 64 << 20
"""of a window's files from which on `apply: auto` goes in bulk (docs/performance.md)"""


class _Loaded(BaseModel):
    """What a piece has shown."""

    model_config = ConfigDict(frozen=True)

    cells: int
    outranked: int
    files: int
    bytes: int


def bulk_faults(run: Run) -> list[str]:
    """Why edits cannot be applied to the target tables in bulk, each as text."""
    faults = []
    for pair in run.tables:
        table = run.target.describe(pair.target)
        for family in table.families.values():
            if family.new_version_behavior:
                faults.append(f"{pair.target}:{family.name} has NEW_VERSION_BEHAVIOR: the order of its edits counts")
            if "ENCRYPTION" in family.attributes:
                faults.append(f"{pair.target}:{family.name} is encrypted; HFiles are written as they are")
            if family.is_mob:
                faults.append(f"{pair.target}:{family.name} keeps large values in MOB files")
        if any(name.lower().startswith("coprocessor$") for name in table.attributes):
            faults.append(f"{pair.target} has coprocessors, which see no edit that comes in bulk")
    return faults


def _staging_faults(run: Run) -> list[str]:
    """Why files cannot be staged for the target tables, each as text."""
    root, faults = run.spec.target.address().root_path, []
    for pair in run.tables:
        try:
            run.target_files.mkdirs(staging_folder(root, pair.target))
        except (PermissionDeniedError, QuotaExceededError) as error:
            faults.append(f"{error.message} (bulk loads wait there)")
    return faults


def in_bulk(run: Run, size: int) -> bool:
    """Whether the run's window, of files of so many bytes, is applied in bulk."""
    asked = run.spec.apply
    if asked == "bulk":
        return True
    if asked != "auto" or size < BULK_FROM_BYTES:
        return False
    faults = bulk_faults(run) or _staging_faults(run)
    if faults:
        log.warning("the edits go by rpc, not in bulk: %s", "; ".join(faults))
    return not faults


def apply_in_bulk(
    run: Run,
    spark: Callable[[], SparkSession],
    task: RowTask,
    own: int,
    released: Collection[tuple[int, str | None]],
    require_one_history: Callable[[Sequence[FileIndex]], None],
) -> WindowApplied:
    """Apply what is left of a window's edits in bulk; as `window_pieces.apply_in_pieces`."""
    session = None if is_small(task.files, task.route.limits) else spark()
    place = place_here if session is None else partial(place_in_bulk, session)
    fence = fence_of(run, task.route)
    planned_from = digest_of(task, released, "bulk")
    found = kept_plan(run, planned_from, fence)
    if found is None:
        ranges = _cut(run, AT_ONCE_HERE if session is None else workers(session), task)
        left = None
    else:
        pieces = run.ledger.batches.pieces("rows")
        ranges = [RowRange.model_validate_json(piece.plan) for piece in pieces]
        left = frozenset(piece.number for piece in pieces if piece.state != "done")
    with closing(place(_bulk(run, replace(task, pieces=left), ranges))) as placed:
        # Also by a process that continues: a file may have become unreadable.
        told = placed.read()
        refusals = _refusals(task, told, own)
        if found is None or refusals:
            require_one_history([file.index for file in told])
            found = _found(run, task, told, own, planned_from)
        if refusals:
            return WindowApplied(0, 0, found.bytes, 0, 0, refusals, (), fence)
        if left is None:
            pieces = [Piece(part.number, "rows", part.subject, part.model_dump_json(), part.size) for part in ranges]
            run.ledger.batches.begin(found.model_dump_json(), pieces, now_ms(), fence)
        loaded = _load(run, session, task, told, placed.apply, fence)
    remove_staged(run)
    attempts = [piece.attempts for piece in run.ledger.batches.pieces()]
    outranked = sum(piece.outranked for piece in loaded)
    log.info("%d HFiles with %d cells, %d bytes, were loaded", sum(piece.files for piece in loaded),
             sum(piece.cells for piece in loaded), sum(piece.bytes for piece in loaded))  # fmt: skip
    return WindowApplied(
        cells=found.cells - outranked,
        outranked=found.outranked + outranked,
        bytes=found.bytes,
        pieces=len(attempts),
        repeated=sum(max(0, count - 1) for count in attempts),
        refusals=(),
        ranges=found.ranges,
        fence=fence,
    )


def _refusals(task: RowTask, told: Sequence[InFile], own: int) -> tuple[Refusal, ...]:
    """What cannot be applied of the window's files, the first `own`.

    Raises DamagedInputError if one of the others cannot be read: what the target has of it counts too.
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


# ------------------------------------------------------------------ plan


def _bulk(run: Run, task: RowTask, ranges: Sequence[RowRange]) -> BulkTask:
    formats: dict[str, Mapping[bytes, StoreFormat]] = {}
    keeps = set()
    for source, target in task.route.tables.items():
        families = run.target.describe(target).families
        formats[source] = {name.encode(): _format(family) for name, family in families.items()}
        keeps |= {
            (source, name.encode())
            for name, family in families.items()
            if family.attributes.get("KEEP_DELETED_CELLS", "FALSE").upper() != "FALSE"
        }
    borders = tuple(part.start for part in ranges if part.start is not None)
    return BulkTask(replace(task, borders=borders), formats, frozenset(keeps), run.spec.target.address().root_path)


def _format(family: Family) -> StoreFormat:
    """As the family says, as far as it can be written; its next compaction does the rest."""

    def known(name: str, usual: str, values: Collection[str]) -> str:
        value = family.attributes.get(name, usual).upper()
        return value if value in values else "NONE"

    return StoreFormat(
        int(family.attributes.get("BLOCKSIZE", StoreFormat.block_bytes)),
        known("COMPRESSION", "NONE", COMPRESSIONS),
        known("DATA_BLOCK_ENCODING", "NONE", ENCODINGS),
        known("BLOOMFILTER", "ROW", BLOOMS),
    )


def _cut(run: Run, at_once: int, task: RowTask) -> list[RowRange]:
    """Ranges of rows with about the same number of edits, one table each; they begin where regions do if those are
    many, so that few regions are written by two."""
    total = sum(file.length for file in task.files)
    count = max(at_once, -(-total // task.route.limits.piece_bytes))
    samples = sample_rows(task)
    starts = {table: [r.start for r in run.target.regions(target)] for table, target in task.route.tables.items()}
    borders = {(table, b"") for table in task.route.tables}
    for number in range(1, count):
        if samples:
            table, row = samples[len(samples) * number // count]
            regions = starts[table]
            borders.add((table, regions[bisect_right(regions, row) - 1] if len(regions) > count else row))
    tables = frozenset(task.route.tables)
    return [
        RowRange(number=number, start=start, size=total // len(borders), tables=tables, held=frozenset())
        for number, start in enumerate(sorted(borders))
    ]


# ------------------------------------------------------------------ pieces


def _load(
    run: Run,
    spark: SparkSession | None,
    task: RowTask,
    told: Sequence[InFile],
    apply: Callable[[int, str], BulkApplied],
    fence: Change,
) -> list[_Loaded]:
    pieces = run.ledger.batches.pieces("rows")
    outcomes = [_Loaded.model_validate_json(piece.outcome) for piece in pieces if piece.state == "done"]

    def begin(piece: Piece) -> Callable[[], BulkApplied]:
        return partial(apply, piece.number, f"load edits in bulk, piece {piece.number + 1} of {len(pieces)}")

    def done(piece: Piece, applied: BulkApplied) -> None:
        placed = sum(file.placed.get(piece.number, 0) for file in told)
        if applied.taken != placed:
            raise WalferryError(
                f"{piece.subject}: {placed} cells were read, but {applied.taken} came to be loaded; please report this",
                piece=piece.number,
            )
        outcome = _Loaded(cells=applied.cells, outranked=applied.outranked, files=applied.files, bytes=applied.bytes)
        run.ledger.batches.finish(piece.number, outcome.model_dump_json(), fence)
        outcomes.append(outcome)

    apply_pieces(run, spark, task.route, fence, pieces, begin, done)
    return outcomes

"""History in bulk: write the cells of a table's snapshot to HFiles for the target table's regions, which load them.

This is the alternative to `copy`. walferry writes only to the staging folder, not to HBase's own folders, and the
target table has its own region borders. Each source region is read, written, loaded and recorded as one, since no other
region has its rows. If a killed attempt loaded a region without recording it, the region is loaded again. Readers see
no difference: nothing else is written to the table before the replay, which needs this phase.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from walferry.apply.bulk_loader import Cells, Loader, StagedHFile, staging_folder
from walferry.apply.route import Route
from walferry.clock import now_ms
from walferry.errors import TransientError, UsageError
from walferry.formats.cells import as_run
from walferry.formats.hfile_writer import StoreFormat
from walferry.formats.order import stepped_over
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import TableDescriptor, table_name
from walferry.hbase.errors import TableExistsError
from walferry.ledger import Piece
from walferry.migration.schema import as_cloned, family_differences, left_out, make_namespace, schema_text
from walferry.migration.sides.digest import Outcome, RangePair
from walferry.migration.sides.stored_sides import StoredTables, compare_stored, rules_of
from walferry.replay.keeping.objects import made, plan_own
from walferry.replay.pieces.bulk_pieces import keeping_deleted, store_formats
from walferry.replay.pieces.pieces import run_pieces
from walferry.replay.rights.applying import is_paused, leased, remove_staged
from walferry.replay.rights.throttle_share import sending
from walferry.run.run import Run
from walferry.snapshots.manifest import SnapshotRegion, StoreFile, cells_of, read_manifest, size_of, snapshot_regions
from walferry.spark.byte_counts import count_bytes
from walferry.spark.clients import shared_files, workers
from walferry.spark.fan_out import AT_ONCE_HERE, cancel_jobs, fan_out, progress_line
from walferry.spark.session import session_for

log = logging.getLogger(__name__)

_LOADED = "history loaded"
"""note: what was loaded of a source region"""
_EXISTED = "target existed"
"""note: the target table existed, empty, before the run wrote to it"""


@dataclass(frozen=True)
class RegionTask:
    """A region of the snapshot whose cells are to be loaded."""

    route: Route
    table: str
    """its name at the source"""
    folder: str
    """the staging folder, where the region's files wait"""
    region: SnapshotRegion
    formats: Mapping[bytes, StoreFormat]
    """by family of the target"""
    keeps_deleted: frozenset[bytes]


@dataclass(frozen=True)
class LoadedRegion:
    """What was loaded of a region."""

    cells: int
    files: int
    bytes: int
    """size of the files written"""


def load_history(
    run: Run, spark: Callable[[], SparkSession], table: str, manifest: pb.SnapshotDataManifest
) -> dict[str, Any]:
    """Load the cells of a table's snapshot into its target table, which is created unless it exists and is empty.

    Facts: files, bytes, cells, and for the check one row per source region, with both sides as they are afterwards.
    """
    pair = run.pair(table)
    regions = snapshot_regions(run.source_root, manifest)
    session = session_for(spark, size_of(manifest), run.writing.here_bytes)
    folder = staging_folder(run.target_root, pair.target)
    with leased(run, [pair]) as (route, _):
        _prepare_table(run, table, manifest, regions)
        # Not `there`: the process with the lease has removed the folder.
        plan_own(run, "target", "staging folder", folder, there=False)
        made(run, "target", "staging folder", folder)
        route = replace(route, source=run.source_address(workers(session)))
        try:
            loaded = _load(run, session, route, table, folder, regions)
        except BaseException:
            if (
                run.ledger.record.state != "running"
            ):  # the process that ended the run may have looked before the last files were there
                remove_staged(run, [pair])
            raise
        remove_staged(run, [pair])
        run.ledger.objects.removed("target", "staging folder", folder)
        rows = _compared(run, session, table, manifest, regions)
    return {
        "files": sum(region.files for region in loaded),
        "bytes": sum(region.bytes for region in loaded),
        "cells": sum(region.cells for region in loaded),
        "loaded": rows,
    }


def load_rows(run: Run, table: str) -> list[dict[str, Any]]:
    """The rows for the gate after the copy: one per source region and one for the schema, each with both sides."""
    loaded = run.done("copy", table)["loaded"]
    manifest = read_manifest(run.source_files, run.source_root, run.snapshot(table))
    schema = {
        "table": table, "kind": "schema", "region": "all",
        "source_schema": schema_text(TableDescriptor(manifest.table_schema)),
        "target_schema": schema_text(run.target.describe(run.pair(table).target)),
    }  # fmt: skip
    return [*loaded, schema]


# ------------------------------------------------------------------ the target table


def _prepare_table(run: Run, table: str, manifest: pb.SnapshotDataManifest, regions: Sequence[SnapshotRegion]) -> None:
    """Create the target table like the clone, or check that the existing one is empty and has the source's families.

    If the table is empty, none of its history counts as loaded: somebody may have emptied or dropped the table after a
    load.
    """
    target = run.pair(table).target
    there = run.target.table_exists(target)
    empty = not there or next(iter(run.target.scan_raw(target)), None) is None
    if empty:
        for subject in run.ledger.notes.named(_LOADED).keys() & {_subject(table, region) for region in regions}:
            run.ledger.notes.drop(_LOADED, subject)
    own = any((o.cluster, o.kind, o.name) == ("target", "table", target) for o in run.ledger.objects.all())
    if there and not own:
        if run.ledger.notes.get(_EXISTED, table) is None:
            if not empty:
                raise UsageError(
                    f"target table {target} is not empty, and `history: bulk` loads only into an empty table; "
                    "truncate or drop it",
                    table=target,
                )
            run.ledger.notes.keep(_EXISTED, {}, table)
        differences = family_differences(TableDescriptor(manifest.table_schema), run.target.describe(target))
        if differences:
            raise UsageError(f"target table {target} does not fit: {'; '.join(differences)}", table=target)
        return
    make_namespace(run, target)
    plan_own(run, "target", "table", target, there=there)
    if not there:
        schema = as_cloned(manifest.table_schema, left_out(run, table))
        schema.table_name.CopyFrom(table_name(target))
        try:
            run.target.create_table_of(TableDescriptor(schema), [region.start for region in regions if region.start])
        except TableExistsError as error:
            raise TransientError(
                f"somebody else has just created target table {target}; the next attempt checks whether it is empty",
                table=target,
            ) from error
    made(run, "target", "table", target)


# ------------------------------------------------------------------ loading


def _load(
    run: Run, spark: SparkSession | None, route: Route, table: str, folder: str, regions: Sequence[SnapshotRegion]
) -> list[LoadedRegion]:
    """Load the regions that are not recorded as loaded. Returns what was loaded of each region."""
    descriptor = run.target.describe(route.tables[table])
    formats, keeps = store_formats(descriptor), keeping_deleted(descriptor)
    lost = sorted({file.family for region in regions for file in region.files} - formats.keys())
    if lost:
        raise UsageError(
            f"target table {descriptor.name} has lost family {lost[0].decode('utf-8', 'replace')}, but the snapshot "
            f"of {table} has files of it; add the family again",
            table=descriptor.name, family=lost[0],
        )  # fmt: skip
    known = {number: run.ledger.notes.get(_LOADED, _subject(table, region)) for number, region in enumerate(regions)}
    done = {number: LoadedRegion(**facts) for number, facts in known.items() if facts is not None}
    pieces = [
        Piece(number, "rows", region.name, "", sum(file.size for file in region.files))
        for number, region in enumerate(regions)
        if number not in done
    ]
    sizes, counts = [piece.bytes for piece in pieces], Counter[int]()
    started = time.monotonic()

    def begin(piece: Piece) -> Callable[[], LoadedRegion]:
        region = regions[piece.number]
        task = RegionTask(route, table, f"{folder}/{piece.number}", region, formats, keeps)
        what = f"load {table}, region {piece.number + 1} of {len(regions)}"

        def load() -> LoadedRegion:
            with nullcontext() if spark is None else sending(run):
                return fan_out(spark, _load_region, [task], what=what, sizes=[piece.bytes])[0]

        return load

    def ended(piece: Piece, loaded: LoadedRegion) -> None:
        route.guard([route.tables[table]])
        run.ledger.notes.keep(_LOADED, asdict(loaded), _subject(table, regions[piece.number]))
        done[piece.number] = loaded
        counts[pieces.index(piece)] = piece.bytes
        log.info("%s", progress_line(f"Load history of {table}", counts, sizes, time.monotonic() - started))

    run_pieces(
        pieces, begin, ended,
        at_once=AT_ONCE_HERE if spark is None else workers(spark),
        may_begin=lambda: not is_paused(run),
        cancel=None if spark is None else partial(cancel_jobs, spark),
    )  # fmt: skip
    return list(done.values())


def _subject(table: str, region: SnapshotRegion) -> str:
    return f"{table} {region.name}"


def _load_region(task: RegionTask) -> Iterator[LoadedRegion]:
    """Write a region's cells, a file for each family and target region, and have them loaded; runs in an executor."""
    context, route = TaskContext.get(), task.route
    if context is not None:
        # An attempt that Spark repeats first waits for the one before it to end.
        name = f"{context.stageId()}-{context.partitionId()}"
        route = replace(route, guard=route.guard.of_attempt(name, context.attemptNumber()))
    loader = Loader(route, task.table, task.folder)
    staged: list[StagedHFile] = []
    at_ms = now_ms()
    for family in sorted({file.family for file in task.region.files}):
        files = [file for file in task.region.files if file.family == family]
        staged += loader.stage(family, b"", task.formats[family], _cells(task, family, files, at_ms))
    loader.load(staged)
    yield LoadedRegion(sum(file.cells for file in staged), len(staged), sum(file.bytes for file in staged))


def _cells(task: RegionTask, family: bytes, files: Sequence[StoreFile], at_ms: int) -> Cells:
    """The cells of a family in a region in order, markers too; one cell for each key."""
    source, region = shared_files(task.route.source), replace(task.region, files=tuple(files))
    for found in cells_of(source, region, at_ms, count=count_bytes):
        buffer, positions = as_run(found)
        if family not in task.keeps_deleted:
            positions = positions[~stepped_over(buffer, positions)]
        yield buffer, positions


# ------------------------------------------------------------------ checking


def _compared(
    run: Run, spark: SparkSession | None, table: str, manifest: pb.SnapshotDataManifest,
    regions: Sequence[SnapshotRegion],
) -> list[dict[str, Any]]:  # fmt: skip
    """For each source region, what the snapshot shows when read once more, and what the target's region servers show.

    Raises TransientError if cells expired and so could not be compared: the next attempt only compares.
    """
    pair = run.pair(table)
    rules = rules_of(TableDescriptor(manifest.table_schema))
    source, target = run.source_address(workers(spark)), run.target_address()
    pairs = [
        RangePair(source, target, pair.source, pair.target, region.name, region.start, region.end, rules)
        for region in regions
    ]
    moment = now_ms()
    outcomes = compare_stored(run, spark, pairs, StoredTables(tuple(regions), None, moment, moment))
    if uncompared := sum(outcome.uncompared for outcome in outcomes):
        raise TransientError(
            f"{uncompared} cells of {pair.target} expired while they were compared with the snapshot, and one side "
            "has dropped them. Run this again: nothing is loaded twice. If it keeps happening, set the clocks",
            table=pair.target,
        )  # fmt: skip
    return [_row(table, region, outcome) for region, outcome in zip(regions, outcomes, strict=True)]


def _row(table: str, region: SnapshotRegion, outcome: Outcome) -> dict[str, Any]:
    sides = {
        f"{side}_{what}": value
        for side, found in (("source", outcome.source), ("target", outcome.target))
        for what, value in (("rows", found.rows), ("cells", found.cells), ("digest", f"{found.total:032x}"))
    }
    return {"table": table, "region": region.name, "kind": "region", "uncompared": outcome.uncompared} | sides

"""Edits in bulk, for windows and rounds: whether tables take them, and their pieces, which are ranges of rows.

A piece has all edits of its rows, whichever regions they were written to: since the edits are sorted, the regions need
not stand still. Loading a piece again changes nothing as long as nobody else has written to the table in between.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from walferry.amounts import amount
from walferry.apply.bulk_loader import staging_folder
from walferry.apply.by_row import RowTask
from walferry.apply.in_bulk import BulkApplied, BulkTask, InFile, sample_rows
from walferry.errors import WalferryError
from walferry.formats.hfile_writer import BLOOMS, COMPRESSIONS, ENCODINGS, StoreFormat
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Family, TableDescriptor
from walferry.ledger import Piece
from walferry.ledger.batches import Change
from walferry.replay.pieces.row_ranges import RowRange, apply_ranges, borders_between
from walferry.replay.rights.applying import remove_staged
from walferry.run.run import Run
from walferry.storage import PermissionDeniedError, QuotaExceededError

log = logging.getLogger(__name__)

BULK_FROM_BYTES = 64 << 20
"""size of the files from which on `apply: auto` goes in bulk (docs/performance.md)"""
BULK_REGION_BYTES = 2 << 20
"""least size of the files per region of the target tables: each load flushes a region and adds a file to it, so small
loads into many regions cost more than they save"""


class Loaded(BaseModel):
    """The recorded outcome of a piece."""

    model_config = ConfigDict(frozen=True)

    cells: int
    outranked: int
    files: int
    bytes: int


def table_faults(name: str, table: TableDescriptor) -> list[str]:
    """The reasons, as text, why a target table of this name and schema cannot take edits in bulk."""
    faults = []
    for family in table.families.values():
        if family.new_version_behavior:
            faults.append(f"{name}:{family.name} has NEW_VERSION_BEHAVIOR: the order of its edits matters")
        if "ENCRYPTION" in family.attributes:
            faults.append(f"{name}:{family.name} is encrypted; HFiles are written as they are")
        if family.is_mob:
            faults.append(f"{name}:{family.name} keeps large values in MOB files")
    if any(attribute.lower().startswith("coprocessor$") for attribute in table.attributes):
        faults.append(f"{name} has coprocessors, which do not see edits that are loaded in bulk")
    return faults


def cluster_fault(target: HBaseClient) -> str | None:
    """The reason, as text, why no table of a target can be loaded in bulk; None if there is none."""
    if target.address.hbase_kerberos is None or target.release.loads_with_kerberos:
        return None
    return (
        f"the target, HBase {target.version()} with Kerberos, loads HFiles of others only through its coprocessor "
        "SecureBulkLoadEndpoint, which walferry does not use"
    )


def bulk_faults(run: Run) -> list[str]:
    """The reasons, as text, why the target tables cannot take edits in bulk."""
    if (fault := cluster_fault(run.target)) is not None:
        return [fault]
    return [fault for pair in run.tables for fault in table_faults(pair.target, run.target.describe(pair.target))]


def _staging_faults(run: Run) -> list[str]:
    """The reasons, as text, why files cannot be staged for the target tables."""
    root, faults = run.spec.target.address().root_path, []
    for pair in run.tables:
        try:
            run.target_files.mkdirs(staging_folder(root, pair.target))
        except (PermissionDeniedError, QuotaExceededError) as error:
            faults.append(f"{error.message} (files for bulk loads are staged there)")
    return faults


def goes_in_bulk(run: Run, size: int, held: Collection[str] = ()) -> bool:
    """Whether `size` bytes of log are applied faster in bulk than by rpc, and the tables allow it; if not, logs why.

    `held`: source tables with regions in quarantine.
    """
    if size < BULK_FROM_BYTES:
        return False
    regions = sum(len(run.target.regions(pair.target)) for pair in run.tables)
    if size < regions * BULK_REGION_BYTES:
        return False
    faults = [f"quarantine holds regions of {table}" for table in held] or bulk_faults(run) or _staging_faults(run)
    if faults:
        log.warning("%.1f MB of log are applied by rpc, not in bulk: %s", size / 1e6, "; ".join(faults))
    return not faults


def bulk_task(run: Run, task: RowTask, ranges: Sequence[RowRange]) -> BulkTask:
    """The cells to load, and the format of the files for each of the target's families."""
    formats: dict[str, Mapping[bytes, StoreFormat]] = {}
    keeps: set[tuple[str, bytes]] = set()
    for source, target in task.route.tables.items():
        descriptor = run.target.describe(target)
        formats[source] = store_formats(descriptor)
        keeps |= {(source, family) for family in keeping_deleted(descriptor)}
    task = replace(task, borders=borders_between(ranges))
    return BulkTask(task, formats, frozenset(keeps), run.spec.target.address().root_path)


def store_formats(table: TableDescriptor) -> dict[bytes, StoreFormat]:
    """The format of the files for each family of a target table."""
    return {name.encode(): _format(family) for name, family in table.families.items()}


def keeping_deleted(table: TableDescriptor) -> frozenset[bytes]:
    """The families that keep deleted cells readable (KEEP_DELETED_CELLS)."""
    return frozenset(
        name.encode()
        for name, family in table.families.items()
        if family.attributes.get("KEEP_DELETED_CELLS", "FALSE").upper() != "FALSE"
    )


def _format(family: Family) -> StoreFormat:
    """The family's own format, where it can be written; otherwise NONE until the family's next compaction."""

    def known(name: str, usual: str, values: Collection[str]) -> str:
        value = family.attributes.get(name, usual).upper()
        return value if value in values else "NONE"

    return StoreFormat(
        int(family.attributes.get("BLOCKSIZE", StoreFormat.block_bytes)),
        known("COMPRESSION", "NONE", COMPRESSIONS),
        known("DATA_BLOCK_ENCODING", "NONE", ENCODINGS),
        known("BLOOMFILTER", "ROW", BLOOMS),
    )


def cut_in_bulk(run: Run, at_once: int, task: RowTask) -> list[RowRange]:
    """Ranges of rows with about the same number of edits, each within one table. If a table has many regions, ranges
    begin where regions do, so that two ranges rarely write to one region."""
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


def load_pieces(
    run: Run,
    spark: SparkSession | None,
    task: RowTask,
    told: Sequence[InFile],
    apply: Callable[[int, str], BulkApplied],
    lease_check: Change,
) -> list[Loaded]:
    """Load the pieces that are not done. Returns the outcomes of all pieces, including those done earlier.

    `told` counts the cells placed into each piece, `apply` loads one piece.
    """

    def shown_by(piece: Piece, applied: BulkApplied) -> Loaded:
        placed = sum(file.placed.get(piece.number, 0) for file in told)
        if applied.taken != placed:
            raise WalferryError(
                f"{piece.subject}: {placed} cells were read, but {applied.taken} reached the load; please report this",
                piece=piece.number,
            )
        return Loaded(cells=applied.cells, outranked=applied.outranked, files=applied.files, bytes=applied.bytes)

    pieces = run.ledger.batches.pieces("rows")
    outcomes = apply_ranges(run, spark, task.route, lease_check, pieces, apply, "load edits in bulk", Loaded, shown_by)
    remove_staged(run, run.tables)
    files, cells = sum(piece.files for piece in outcomes), sum(piece.cells for piece in outcomes)
    size = sum(piece.bytes for piece in outcomes)
    log.info("loaded in bulk: %s with %s, %d bytes", amount(files, "HFile"), amount(cells, "cell"), size)
    return outcomes

"""Compare: are source and target equal, and if a row differs, why?

Both sides are read raw, resolved by one function at one fixed moment, and what remains visible is compared: row,
family, qualifier, timestamp, type, value, tags. The moment lies ahead of the scans, so that a cell that expires
between the two scans is expired on both sides.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from walferry.formats.cells import CellType, cells_to_arrow, index_cells
from walferry.formats.resolve import FamilyRules, Fate, resolve
from walferry.hbase.descriptors import TableDescriptor
from walferry.ledger import Difference, RangeComparison
from walferry.migration.context import Migration
from walferry.migration.cut import fingerprint
from walferry.spark.clients import shared_files
from walferry.spark.digest import Span, SpanDigest, differing_rows, digest_spans
from walferry.spark.sealed import table_cells
from walferry.wal.files import Place, WalFile

log = logging.getLogger(__name__)

HORIZON_MS = 10 * 60 * 1000
SHOWN_ROWS = 200

IN_FLIGHT = "in flight"
NOT_IN_LOG = "not in the log"
HISTORY = "history-dependent"
UNEXPLAINED = "unexplained"

Cell = tuple[bytes, bytes, int, int, bytes, bytes]
"""family, qualifier, timestamp, type, value, tags"""


@dataclass(frozen=True)
class TableComparison:
    """The outcome for one table."""

    table: str
    ranges: list[RangeComparison]
    differences: list[Difference]
    differing_rows: int

    @property
    def unexplained(self) -> int:
        """Rows without an explanation, those beyond the shown ones counted as such."""
        shown = sum(1 for difference in self.differences if difference.kind == UNEXPLAINED)
        return shown + self.differing_rows - len(self.differences)


def compare(migration: Migration, spark: SparkSession, table: str, attempt: int) -> TableComparison:
    """Compare one table, region by region of the source, and record the outcome in the ledger."""
    pair = migration.pair(table)
    while True:
        now_ms = time.time_ns() // 1_000_000 + HORIZON_MS
        before = fingerprint(migration.source, table)
        spans = _spans(migration, table, now_ms)
        digests = digest_spans(spark, [span for both in spans.values() for span in both])
        if time.time_ns() // 1_000_000 > now_ms:
            log.warning("comparing %s took longer than the moment it was fixed at; comparing again", table)
            continue
        if fingerprint(migration.source, table) == before:
            break
        log.info("regions of %s moved during the comparison; comparing again", table)
    ranges = _ranges(table, digests)
    unequal = [span for r in ranges if not equal(r) for span in spans[r.start]]
    count, rows = differing_rows(spark, unequal, SHOWN_ROWS) if unequal else (0, [])
    differences = explain(migration, table, rows, now_ms) if rows else []
    result = TableComparison(table, ranges, differences, count)
    migration.ledger.record_comparison(migration.run_id, attempt, ranges, differences)
    if not result.unexplained:
        migration.ledger.mark_verified(migration.run_id, table)
    log.info(
        "%s and %s: %d regions, %d rows, %d cells at the source; %d rows differ, %d unexplained",
        pair.source, pair.target, len(ranges), sum(r.source_rows for r in ranges),
        sum(r.source_cells for r in ranges), count, result.unexplained,
    )  # fmt: skip
    return result


def last_comparison(migration: Migration, spark: SparkSession, table: str) -> None:
    """The comparison after the drain, as the phase `compare`. Differences are for the gate that follows."""

    def work() -> dict[str, Any]:
        result = compare(migration, spark, table, attempt=1)
        return {"regions": len(result.ranges), "rows": result.differing_rows, "unexplained": result.unexplained}

    migration.once("compare", work, table)


def equal(r: RangeComparison) -> bool:
    """Whether both sides of a range are alike."""
    return (r.source_rows, r.source_cells, r.source_digest) == (r.target_rows, r.target_cells, r.target_digest)


def rules_of(descriptor: TableDescriptor) -> dict[bytes, FamilyRules]:
    """What a table's families keep."""
    return {
        name.encode(): FamilyRules(family.max_versions, family.min_versions, family.ttl_ms)
        for name, family in descriptor.families.items()
    }


def _spans(migration: Migration, table: str, now_ms: int) -> dict[bytes, tuple[Span, Span]]:
    """Both sides of every region of the source, by start row."""
    pair = migration.pair(table)
    rules = rules_of(migration.source.describe(table))
    source, target = migration.spec.source.address(), migration.spec.target.address()
    return {
        region.start: (
            Span("source", source, pair.source, region.encoded, region.start, region.end, rules, now_ms),
            Span("target", target, pair.target, region.encoded, region.start, region.end, rules, now_ms),
        )
        for region in migration.source.regions(table)
    }


def _ranges(table: str, digests: Sequence[SpanDigest]) -> list[RangeComparison]:
    sides: dict[bytes, dict[str, SpanDigest]] = defaultdict(dict)
    for digest in digests:
        sides[digest.start][digest.side] = digest
    return [
        RangeComparison(
            table=table, region=both["source"].region, start=start, stop=both["source"].stop,
            source_rows=both["source"].digest.rows, source_cells=both["source"].digest.cells,
            source_digest=f"{both['source'].digest.total:032x}",
            target_rows=both["target"].digest.rows, target_cells=both["target"].digest.cells,
            target_digest=f"{both['target'].digest.total:032x}",
            dropped={side: digest.dropped for side, digest in both.items()},
        )
        for start, both in sorted(sides.items())
    ]  # fmt: skip


# ------------------------------------------------------------------ why does a row differ


def explain(migration: Migration, table: str, rows: Sequence[bytes], now_ms: int) -> list[Difference]:
    """Name the class of each differing row, from both sides' raw cells and from the log."""
    pair = migration.pair(table)
    rules = rules_of(migration.source.describe(table))
    logged = logged_cells(migration, table, set(rows))
    differences = []
    for row in rows:
        stop = row + b"\x00"
        source = [bytes(block) for block in migration.source.scan_raw(pair.source, row, stop)]
        target = [bytes(block) for block in migration.target.scan_raw(pair.target, row, stop)]
        kind, detail = classify(b"".join(source), b"".join(target), logged.get(row, set()), rules, now_ms)
        if kind is not None:
            differences.append(Difference(table, row, kind, detail))
        else:  # equal now: what differed was under way
            differences.append(Difference(table, row, IN_FLIGHT, "equal when read again"))
    return differences


def classify(
    source: bytes, target: bytes, logged: set[Cell], rules: Mapping[bytes, FamilyRules], now_ms: int
) -> tuple[str | None, str]:
    """The class of one row's difference and what shows it; (None, "") when the sides are equal.

    `source` and `target` are the row's raw cells as a cell block. A cell that only the source shows and that
    neither the log nor the target ever had was never logged. A difference is history-dependent when one side
    still has what masked, outlived or displaced the cell, and the other side's flush or compaction dropped it.
    """
    source_all, source_seen = _cells(source, rules, now_ms)
    target_all, target_seen = _cells(target, rules, now_ms)
    kinds, details = set(), []
    for cell in sorted(source_seen ^ target_seen):
        side, there = ("source", target_all) if cell in source_seen else ("target", source_all)
        if cell in there:
            kind, why = HISTORY, "the other side has it, behind a marker or newer versions"
        elif side == "source" and cell not in logged and not _covered(cell, target_all):
            kind, why = NOT_IN_LOG, "no WAL between the fences holds it"
        elif side == "target" and _was_displaced(cell, logged | source_all, rules):
            kind, why = HISTORY, "displaced by newer versions before those were deleted"
        else:
            kind, why = UNEXPLAINED, "no explanation"
        kinds.add(kind)
        details.append(f"only the {side} shows {_show(cell)}: {why}")
    if not kinds:
        return None, ""
    worst = next(kind for kind in (UNEXPLAINED, NOT_IN_LOG, HISTORY) if kind in kinds)
    return worst, "; ".join(details[:3])


def _cells(block: bytes, rules: Mapping[bytes, FamilyRules], now_ms: int) -> tuple[set[Cell], set[Cell]]:
    if not block:
        return set(), set()
    index = index_cells(np.frombuffer(block, np.uint8))
    fates = resolve(index, rules, now_ms)
    table = cells_to_arrow(index)
    names = ("family", "qualifier", "timestamp", "type", "value", "tags")
    cells: list[Cell] = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    return set(cells), {cell for cell, fate in zip(cells, fates, strict=True) if fate == Fate.VISIBLE}


def _covered(cell: Cell, raw: set[Cell]) -> bool:
    """Whether a marker among the raw cells hides the cell."""
    family, qualifier, timestamp, *_ = cell
    for other_family, other_qualifier, at, kind, *_ in raw:
        if other_family != family:
            continue
        if kind == CellType.DELETE_FAMILY and timestamp <= at:
            return True
        if kind == CellType.DELETE_FAMILY_VERSION and timestamp == at:
            return True
        if other_qualifier == qualifier and (
            (kind == CellType.DELETE_COLUMN and timestamp <= at) or (kind == CellType.DELETE and timestamp == at)
        ):
            return True
    return False


def _was_displaced(cell: Cell, logged: set[Cell], rules: Mapping[bytes, FamilyRules]) -> bool:
    """Whether the log holds as many newer versions of the column as the family keeps, so that a flush drops it."""
    family, qualifier, timestamp, *_ = cell
    newer = {c[2] for c in logged if c[:2] == (family, qualifier) and c[3] == CellType.PUT and c[2] > timestamp}
    return len(newer) >= rules[family].max_versions


def _show(cell: Cell) -> str:
    family, qualifier, timestamp, kind, *_ = cell
    return f"{family.decode('latin-1')}:{qualifier.hex() or '(empty)'} at {timestamp}, type {CellType(kind).name}"


def logged_cells(migration: Migration, table: str, rows: set[bytes]) -> dict[bytes, set[Cell]]:
    """The cells of these rows in every WAL file that the run applied."""
    wanted = pa.array(sorted(rows), pa.binary())
    found: dict[bytes, set[Cell]] = defaultdict(set)
    files = shared_files(migration.spec.source.address())
    for known in migration.ledger.files(migration.run_id):
        file = WalFile(known.name, known.group, known.server, known.number, known.path, Place.ARCHIVED, known.length)
        for cells in table_cells(files, migration.source_root, file, table):
            mine = cells.filter(pc.is_in(cells["row"], wanted))
            names = ("row", "family", "qualifier", "timestamp", "type", "value", "tags")
            for row, *cell in zip(*(mine[name].to_pylist() for name in names), strict=True):
                found[row].add(tuple(cell))
    return found

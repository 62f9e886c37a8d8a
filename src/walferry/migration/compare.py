"""Compare: are source and target equal, and if a row differs, why?

Both sides are read raw, resolved by one function at one fixed moment, and what remains visible is compared: row,
family, qualifier, timestamp, type, value, tags. The moment lies ahead of the scans, so that a cell that expires
between the two scans is expired on both sides.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from walferry.errors import DamagedInputError, GapError, TransientError
from walferry.formats.cells import CellType, cells_to_arrow, index_cells
from walferry.formats.resolve import FamilyRules, Fate, resolve
from walferry.hbase.descriptors import TableDescriptor
from walferry.ledger import Difference, RangeComparison
from walferry.migration.digest import RangeDigest, RowRange, differing_rows, digest_ranges
from walferry.replay.cut import as_listed
from walferry.run.run import Run
from walferry.wal.files import WalFile, list_wals
from walferry.wal.open import Until, cells_of, open_wal

log = logging.getLogger(__name__)

HORIZON_MS = 10 * 60 * 1000
"""how far ahead of its start the first attempt fixes the moment; each further one takes four times as long"""
SHOWN_ROWS = 200
ATTEMPTS = 5

IN_FLIGHT = "in flight"
NOT_IN_LOG = "not in the log"
HISTORY = "history-dependent"
ACCEPTED = "left out by decision"
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
        return self.differing_rows - sum(1 for difference in self.differences if difference.kind != UNEXPLAINED)


def compare(run: Run, spark: SparkSession, table: str) -> TableComparison:
    """Compare one table, region by region of the source, and record the outcome as the newest in the ledger.

    Raises TransientError when the source's regions split or merge, or the time runs out, in each of ATTEMPTS tries.
    """
    pair = run.pair(table)
    for attempt in range(ATTEMPTS):
        applied = applied_files(run, table)
        started_ms = time.time_ns() // 1_000_000
        now_ms = started_ms + HORIZON_MS * 4**attempt
        before = _names(run, table)
        spans = _spans(run, table, now_ms)
        digests = digest_ranges(spark, [span for both in spans.values() for span in both])
        if time.time_ns() // 1_000_000 > now_ms:
            log.warning("comparing %s took longer than the moment it was fixed at; comparing again", table)
            continue
        if _names(run, table) == before:
            break
        log.info("regions of %s were split or merged during the comparison; comparing again", table)
    else:
        raise TransientError(f"{table} could not be compared in {ATTEMPTS} attempts; try again later", table=table)
    ranges = _ranges(table, digests)
    unequal = [span for r in ranges if not equal(r) for span in spans[r.start]]
    count, rows = differing_rows(spark, unequal, SHOWN_ROWS) if unequal else (0, [])
    differences = explain(run, table, rows, now_ms, started_ms) if rows else []
    if count > len(rows) and differences[-1].kind != UNEXPLAINED:
        # The gate looks at recorded rows: those left out must not pass behind explained ones of their region.
        message = f"{count - len(rows)} more rows from here on differ"
        differences.append(Difference(table, rows[-1], UNEXPLAINED, message))
    result = TableComparison(table, ranges, differences, count)
    number = run.ledger.comparisons.last() + 1
    run.ledger.comparisons.record(number, ranges, differences)
    if not result.unexplained:
        run.ledger.log.mark_verified(table, applied)
    log.info(
        "%s and %s: %d regions, %d rows, %d cells at the source; %d rows differ, %d unexplained",
        pair.source, pair.target, len(ranges), sum(r.source_rows for r in ranges),
        sum(r.source_cells for r in ranges), count, result.unexplained,
    )  # fmt: skip
    return result


def last_comparison(run: Run, spark: SparkSession, table: str) -> None:
    """The comparison after the drain, as the phase `compare`. Differences are for the gate that follows."""

    def work() -> dict[str, Any]:
        result = compare(run, spark, table)
        return {"regions": len(result.ranges), "rows": result.differing_rows, "unexplained": result.unexplained}

    run.once("compare", work, table)


def equal(r: RangeComparison) -> bool:
    """Whether both sides of a range are alike."""
    return (r.source_rows, r.source_cells, r.source_digest) == (r.target_rows, r.target_cells, r.target_digest)


def rules_of(descriptor: TableDescriptor) -> dict[bytes, FamilyRules]:
    """What a table's families keep."""
    return {
        name.encode(): FamilyRules(family.max_versions, family.min_versions, family.ttl_ms)
        for name, family in descriptor.families.items()
    }


def _names(run: Run, table: str) -> list[str]:
    """The source's regions, wherever they are served: a scan follows a region that moves."""
    return [region.encoded for region in run.source.regions(table)]


def _spans(run: Run, table: str, now_ms: int) -> dict[bytes, tuple[RowRange, RowRange]]:
    """Both sides of every region of the source, by start row."""
    pair = run.pair(table)
    rules = rules_of(run.source.describe(table))
    source, target = run.spec.source.address(), run.spec.target.address()
    return {
        region.start: (
            RowRange("source", source, pair.source, region.encoded, region.start, region.end, rules, now_ms),
            RowRange("target", target, pair.target, region.encoded, region.start, region.end, rules, now_ms),
        )
        for region in run.source.regions(table)
    }


def _ranges(table: str, digests: Sequence[RangeDigest]) -> list[RangeComparison]:
    sides: dict[bytes, dict[str, RangeDigest]] = defaultdict(dict)
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


def explain(run: Run, table: str, rows: Sequence[bytes], now_ms: int, until_ms: int) -> list[Difference]:
    """Name the class of each differing row, from both sides' raw cells and from the log.

    `now_ms` is the moment that the sides are resolved at, `until_ms` the latest that a cell can have been stamped by
    the source's clock.
    """
    pair = run.pair(table)
    rules = rules_of(run.source.describe(table))
    logs = logged_cells(run, table, set(rows), until_ms)
    differences = []
    for row in rows:
        stop = row + b"\x00"
        source = [bytes(block) for block in run.source.scan_raw(pair.source, row, stop)]
        target = [bytes(block) for block in run.target.scan_raw(pair.target, row, stop)]
        kind, detail = classify(b"".join(source), b"".join(target), logs[row], rules, now_ms)
        if kind is not None:
            differences.append(Difference(table, row, kind, detail))
        else:  # equal now: what differed was under way
            differences.append(Difference(table, row, IN_FLIGHT, "equal when read again"))
    return differences


@dataclass
class RowLog:
    """What the log between the fences holds of one row."""

    since_ms: int
    """the start fence: what the source's clock stamped earlier came with the snapshot"""
    until_ms: int
    """what is stamped later than this was stamped by the application, and tells nothing of when it was written"""
    applied: dict[Cell, int] = field(default_factory=dict)
    """cells that the target must have, each with the sequence number of its newest edit"""
    pending: set[Cell] = field(default_factory=set)
    """cells of files that are not applied yet"""
    accepted: set[Cell] = field(default_factory=set)
    """cells of quarantined entries that an operator released by `accept`"""

    def stamped_behind_the_fence(self, cell: Cell) -> bool:
        """Whether the cell's timestamp is one of the source's clock since the start fence."""
        return self.since_ms <= _timestamp(cell) <= self.until_ms


def classify(
    source: bytes, target: bytes, log: RowLog, rules: Mapping[bytes, FamilyRules], now_ms: int
) -> tuple[str | None, str]:
    """The class of one row's difference and what shows it; (None, "") when the sides are equal.

    `source` and `target` are the row's raw cells as a cell block. A cell of the row counts as explained only when
    what hides it on the other side is known from the log or from the source, and when nothing that the target must
    have is missing there. Where the log cannot tell, the difference stays unexplained.
    """
    source_all, source_seen = _cells(source, rules, now_ms)
    target_all, target_seen = _cells(target, rules, now_ms)
    kinds, details = set(), []
    for cell in sorted(source_seen ^ target_seen):
        if cell in source_seen:
            side, (kind, why) = "source", _why_missing(cell, source_all, target_all, log, rules)
        else:
            side, (kind, why) = "target", _why_shown(cell, source_all, target_all, log, rules)
        kinds.add(kind)
        details.append(f"only the {side} shows {_show(cell)}: {why}")
    if not kinds:
        return None, ""
    worst = next(kind for kind in (UNEXPLAINED, NOT_IN_LOG, IN_FLIGHT, ACCEPTED, HISTORY) if kind in kinds)
    return worst, "; ".join(details[:3])


def _why_missing(
    cell: Cell, source: set[Cell], target: set[Cell], log: RowLog, rules: Mapping[bytes, FamilyRules]
) -> tuple[str, str]:
    """Why the target does not show a cell that the source shows."""
    known = source | log.applied.keys()
    if cell in log.pending:
        return IN_FLIGHT, "its WAL file is not applied yet"
    if cell in log.accepted - log.applied.keys():
        return ACCEPTED, "its entry was released from the quarantine by accept"
    markers = _markers_over(cell, target)
    if markers & known:
        return HISTORY, "a marker of the source hides it, which the source has dropped by now"
    if _displaced(cell, target & known, rules):
        return HISTORY, "newer versions of the source displace it, which the source has dropped by now"
    if not markers and cell not in log.applied and log.stamped_behind_the_fence(cell):
        return NOT_IN_LOG, "no WAL behind the start fence holds it"
    return UNEXPLAINED, "no explanation"


def _why_shown(
    cell: Cell, source: set[Cell], target: set[Cell], log: RowLog, rules: Mapping[bytes, FamilyRules]
) -> tuple[str, str]:
    """Why the target still shows a cell that the source does not show."""
    if cell not in source and cell not in log.applied and _timestamp(cell) >= log.since_ms:
        return UNEXPLAINED, "the source never had it"
    if _markers_over(cell, log.pending) or _displaced(cell, log.pending, rules):
        return IN_FLIGHT, "what hides it stands in a WAL file that is not applied yet"
    left_out = log.accepted - log.applied.keys()
    if _markers_over(cell, left_out) or _displaced(cell, left_out, rules):
        return ACCEPTED, "what hides it was released from the quarantine by accept"
    for marker in _markers_over(cell, source | log.applied.keys()) - target:
        if marker in log.applied:
            if log.applied.get(cell, -1) < log.applied[marker]:
                return UNEXPLAINED, "a marker that hides it is in the log and not at the target"
        elif log.stamped_behind_the_fence(marker):
            return NOT_IN_LOG, "no WAL behind the start fence holds the marker that hides it"
        else:
            return UNEXPLAINED, "a marker that hides it is not at the target"
    if _displaced(cell, source | log.applied.keys(), rules):
        return HISTORY, "displaced by newer versions before those were deleted"
    if _markers_over(cell, log.applied.keys()):
        return HISTORY, "written again behind the marker that hides it, which the target has dropped by now"
    return UNEXPLAINED, "no explanation"


def _cells(block: bytes, rules: Mapping[bytes, FamilyRules], now_ms: int) -> tuple[set[Cell], set[Cell]]:
    if not block:
        return set(), set()
    index = index_cells(np.frombuffer(block, np.uint8))
    fates = resolve(index, rules, now_ms)
    table = cells_to_arrow(index)
    names = ("family", "qualifier", "timestamp", "type", "value", "tags")
    cells: list[Cell] = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    return set(cells), {cell for cell, fate in zip(cells, fates, strict=True) if fate == Fate.VISIBLE}


def _markers_over(cell: Cell, cells: Collection[Cell]) -> set[Cell]:
    """Those of `cells` that are markers and hide the cell."""
    family, qualifier, timestamp, *_ = cell
    found = set()
    for other in cells:
        other_family, other_qualifier, at, kind, *_ = other
        whole_family = (kind == CellType.DELETE_FAMILY and timestamp <= at) or (
            kind == CellType.DELETE_FAMILY_VERSION and timestamp == at
        )
        column = (kind == CellType.DELETE_COLUMN and timestamp <= at) or (kind == CellType.DELETE and timestamp == at)
        if other_family == family and (whole_family or (column and other_qualifier == qualifier)):
            found.add(other)
    return found


def _displaced(cell: Cell, cells: Collection[Cell], rules: Mapping[bytes, FamilyRules]) -> bool:
    """Whether `cells` hold as many newer versions of the column as the family keeps, so that a flush drops it."""
    family, qualifier, timestamp, *_ = cell
    newer = {c[2] for c in cells if c[:2] == (family, qualifier) and c[3] == CellType.PUT and c[2] > timestamp}
    return len(newer) >= rules[family].max_versions


def _timestamp(cell: Cell) -> int:
    return cell[2]


def _show(cell: Cell) -> str:
    family, qualifier, timestamp, kind, *_ = cell
    return f"{family.decode('latin-1')}:{qualifier.hex() or '(empty)'} at {timestamp}, type {CellType(kind).name}"


def logged_cells(run: Run, table: str, rows: set[bytes], until_ms: int) -> dict[bytes, RowLog]:
    """What every WAL file at or behind the start fence holds of these rows, be it applied or not."""
    since_ms = run.done("fence")["at_ms"]
    logs = {row: RowLog(since_ms, until_ms) for row in rows}
    wanted = pa.array(sorted(rows), pa.binary())
    applied = applied_files(run, table)
    accepted = {
        (item.file, item.start)
        for item in run.ledger.quarantine.items("released")
        if item.resolution == "accept" and item.table == table
    }
    for file in _files_behind_the_fence(run):
        for batch in _entries(run, file, table, sealed=file.name in applied):
            mine = batch.filter(pc.is_in(batch["row"], wanted))
            names = ("row", "sequence_number", "offset", "family", "qualifier", "timestamp", "type", "value", "tags")
            for row, sequence_number, offset, *fields in zip(*(mine[name].to_pylist() for name in names), strict=True):
                cell: Cell = tuple(fields)
                if (file.name, offset) in accepted:
                    logs[row].accepted.add(cell)
                elif file.name in applied:
                    logs[row].applied[cell] = max(sequence_number, logs[row].applied.get(cell, -1))
                else:
                    logs[row].pending.add(cell)
    return logs


def applied_files(run: Run, table: str) -> set[str]:
    """Names of the WAL files of which the target has all that they hold of the table."""
    ranges = run.ledger.log.ranges()
    return {r.file for r in ranges if r.table == table and r.state in ("applied", "verified")}


def _files_behind_the_fence(run: Run) -> list[WalFile]:
    """The files that the ledger knows, and those that came after its last listing."""
    files = {known.name: as_listed(known) for known in run.ledger.log.files()}
    fences = run.fences()
    for file in list_wals(run.source_files, run.source_root):
        if fences.starts_by(file):
            files.setdefault(file.name, file)
    return list(files.values())


def _entries(run: Run, file: WalFile, table: str, *, sealed: bool) -> Iterator[pa.RecordBatch]:
    """The cells of one table in a file; of one that is still written to, what stands in it now."""
    until, gone = (Until.SEALED, ()) if sealed else (Until.NOW, (GapError,))
    with suppress(DamagedInputError, *gone):  # what precedes damage explains; what is gone explains nothing
        yield from cells_of(open_wal(run.source_files, run.source_root, file, until), file.name, table)

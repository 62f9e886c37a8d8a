"""Compare the rows touched since the last whole comparison, at a cost that does not depend on the size of the tables.

A row is equal on both sides if a whole comparison found it equal and it was not touched since, by an applied log or by
anything else (`touched`). Touched rows are read from both sides, by scans that skip from one row to the next or, in a
region with little other data, read everything between them.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from walferry.amounts import amount
from walferry.apply.written import RowCollector, WrittenRows
from walferry.clock import CLOCKS_APART_MS, now_ms, steady_s
from walferry.formats.cells import CellIndex
from walferry.hbase.descriptors import Range, Region
from walferry.ledger import ComparedTable
from walferry.migration.repairing.known_differences import known_rows
from walferry.migration.sides.digest import Outcome, RangePair, Scan, compare_pair, scans
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.migration.sides.row_sides import Bounds, differing_cells, row_sides
from walferry.migration.sides.store_files import Files, store_files
from walferry.migration.sides.stored_sides import rules_of
from walferry.migration.touching import equality
from walferry.migration.touching.equality import Equality, ToRead
from walferry.replay.log.cut import as_listed
from walferry.run.notes.looks import last_look
from walferry.run.notes.newest import note_newest
from walferry.run.run import Run
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""the most log to read for the rows; beyond that, a whole comparison is faster"""
MOST_ROWS = 300_000
ROWS_AT_ONCE = 2_000
"""rows in one scan"""
SCANNED_BYTES = 8 << 10
"""bytes of a region per row to read; if a region has fewer, scanning everything is faster than skipping from row to
row"""
FEW_ROWS = 500
"""if fewer rows of a region than this are to be read, they are read row by row in any case"""
READERS = 8
RANGES_AT_ONCE, PARTS_FOR_EACH = 200, 4
"""at most so many ranges in one scan, as long as each reader has so many scans"""
LOOKED_AT_AGAIN = 1_000
"""the most differing rows that are examined one by one; if more differ, something is wrong, or much is under way"""


@dataclass(frozen=True)
class TouchedRows:
    """The rows of a table that were written, or otherwise touched, since its last clean comparison."""

    files: frozenset[str]
    """the logs that hold the written rows"""
    rows: int = 0
    read_bytes: int = 0
    """bytes read on both sides"""
    differing: Mapping[bytes, str] = field(default_factory=dict)
    """rows that differ, each with the digest of its differing cells, as from the function `differing`"""
    why: str = ""
    """why the rows could not be compared; the other fields mean nothing then"""
    also: ToRead | None = None
    """rows touched by something else"""
    equal: Equality | None = None
    """the table's equality if none of the rows differs for an unknown reason"""
    by_file: Mapping[str, pa.Array] = field(default_factory=dict)
    """the rows that each log holds"""
    log_bytes: int = 0
    """bytes of log read for the rows"""
    before: Sequence[Files] = ()
    """the store files, at moments before the rows were read, of regions that may hold delete markers in these or other
    rows"""

    def keep(self, run: Run, table: str, but: Collection[bytes] = ()) -> None:
        """Record that all rows are equal except `but`: the next comparison starts here, and reads again the logs that
        hold edits of those rows."""
        if not but and self.also is not None and self.equal is not None:
            equality.keep_read(run, self.also, self.equal)
        run.ledger.log.mark_verified(table, self.files - files_with(self.by_file, but))


def compare_written(run: Run, table: str, since: ComparedTable, *, watched: bool = False) -> TouchedRows:
    """Compare the touched rows of a table, and its `known_rows`. If no look has followed the comparison `since` yet,
    also compare the rows that differed in it.

    Rows touched by something other than the source's log are known up to the last `touched.look`. With `watched`, this
    also records the store files in `before` ahead of reading.

    Raises the errors of reading the log and both sides.
    """
    names = uncovered(run, table) - run.ledger.log.without_cells(table)
    files = _files(run, names)
    log_bytes = _unread_bytes(run, table, files)
    if why := _too_much_log(table, log_bytes):
        return TouchedRows(frozenset(names), why=why)
    also = equality.to_read(run, table, since)
    if isinstance(also, str):
        return TouchedRows(frozenset(names), why=also)
    if why := _too_large(run, table, also.ranges):
        return TouchedRows(frozenset(names), why=why)
    look, more = last_look(run.ledger, table), known_rows(run, table) + also.rows
    if look is None or look.at_ms < since.ended_ms:
        more += [item.row for item in run.ledger.comparisons.differences([since])]
    by_file = rows_by_file(run, table, files)
    if isinstance(by_file, str):
        return TouchedRows(frozenset(names), why=by_file)
    rows = _rows(table, by_file, more)
    if isinstance(rows, str):
        return TouchedRows(frozenset(names), why=rows)
    began, began_ms = steady_s(), now_ms()
    before: Sequence[Files] = ()
    if watched:  # regions that may hold markers afterwards: they are read now, or held markers before
        spans = RowSpans.of(
            [*RowSpans.of_rows(rows), *(RowSpan(*one) for one in also.ranges), *also.equal.fragile.marked]
        )
        before = (also.files, store_files(run, table, spans))  # the first ones decided which rows are due
    found = _read(run, table, rows, also.ranges)
    note_newest(run.ledger, table, found.newest, began_ms, whole=False)
    if rows or also.ranges:
        log.info(
            "%s: %s touched since it was compared, read again; %d of them not in the source's log: "
            "%.3f MB of both sides in %.1f s, %.3f MB of log; %d differ", table,
            amount(found.rows, "row was", "rows were"), found.rows - len(rows) + len(also.rows), found.size / 1e6,
            steady_s() - began, log_bytes / 1e6, len(found.differing),
        )  # fmt: skip
    return TouchedRows(
        frozenset(names), found.rows, found.size, found.differing, also=also, equal=also.after(rows, found.fragile),
        by_file=by_file, log_bytes=log_bytes, before=before,
    )  # fmt: skip


def files_with(by_file: Mapping[str, pa.Array], rows: Collection[bytes]) -> set[str]:
    """The files that hold edits of some of the rows."""
    wanted = pa.array(sorted(rows), pa.binary())
    return {name for name, found in by_file.items() if rows and pc.any(pc.is_in(found, wanted)).as_py()}


def read_written(run: Run, table: str, names: Collection[str]) -> tuple[Shown, Mapping[str, pa.Array]] | str:
    """Compare the rows whose edits some logs hold, and return the result with the rows by log; or return why that would
    take too long or is not possible."""
    files = _files(run, set(names) - run.ledger.log.without_cells(table))
    if why := _too_much_log(table, _unread_bytes(run, table, files)):
        return why
    by_file = rows_by_file(run, table, files)
    if isinstance(by_file, str):
        return by_file
    rows = _rows(table, by_file, ())
    if isinstance(rows, str):
        return rows
    began_ms = now_ms()
    shown = _read(run, table, rows, ())
    note_newest(run.ledger, table, shown.newest, began_ms, whole=False)
    return shown, by_file


def uncovered(run: Run, table: str) -> set[str]:
    """Names of the logs whose edits of a table are at the target and that no comparison covers."""
    return run.ledger.log.applied_for(table) - run.ledger.log.applied_for(table, verified=True)


def _files(run: Run, names: Collection[str]) -> list[WalFile]:
    return [as_listed(file) for file in run.ledger.log.known(names).values()]


def _too_much_log(table: str, size: int) -> str:
    """Why so many bytes of log are not read; "" if they are."""
    return f"{size / 1e6:.0f} MB of log were written since {table} was compared" if size > MOST_BYTES else ""


def _unread_bytes(run: Run, table: str, files: Sequence[WalFile]) -> int:
    """The bytes of the files whose rows were not collected when the files were applied."""
    return sum(file.length for file in files if run.known_rows.of(file.name, table) is None)


def _too_large(run: Run, table: str, ranges: Sequence[Range]) -> str:
    """Why this process does not read the ranges; "" if it does."""
    if not ranges:
        return ""
    spans = RowSpans.of(RowSpan(*one) for one in ranges)
    regions = run.source.regions(table)
    size = run.source.held_bytes().get(table, 0) * sum(spans.meet((r.start, r.end)) for r in regions) // len(regions)
    return f"about {size / 1e6:.0f} MB of {table} were touched since it was compared" if size > MOST_BYTES else ""


def differing(run: Run, table: str, rows: Sequence[bytes]) -> dict[bytes, str]:
    """Those of `rows` (in order) that differ, each with a digest of exactly its differing cells.

    Cells that expire now count as expired. If more than LOOKED_AT_AGAIN rows differ, the digests are "".
    """
    return _read(run, table, rows, ()).differing


@dataclass(frozen=True)
class Shown:
    """The result of reading rows and ranges on both sides."""

    differing: dict[bytes, str]
    """as from the function `differing`"""
    fragile: RowSpans
    rows: int
    size: int
    """bytes read"""
    newest: int
    """the newest timestamp"""


def _read(run: Run, table: str, rows: Sequence[bytes], ranges: Sequence[Range]) -> Shown:
    pair = run.pair(table)
    source, target = run.source_address(), run.target_address()
    rules = rules_of(run.source.describe(table))
    whole = RangePair(source, target, pair.source, pair.target, "", b"", b"", rules, names_expiring=True)
    parts = list(_in_parts(run, rows, run.source.regions(table)))
    asked = [
        replace(whole, start=some[0], stop=some[-1] + b"\0", named=sys.maxsize if is_scanned else len(some),
                rows=() if is_scanned else some)
        for some, is_scanned in parts
    ]  # fmt: skip
    together = _together(ranges)
    asked += [
        replace(whole, start=some[0][0], stop=_last_stop(some), named=(LOOKED_AT_AGAIN + 1) * len(some),
                rows=some if len(some) > 1 else ())
        for some in together
    ]  # fmt: skip

    def compared(part: RangePair, mine: Collection[bytes] | None) -> tuple[Outcome, int]:
        sizes: list[int] = []
        here, there = scans(part)
        outcome = compare_pair(part, _counted(here, sizes), _counted(there, sizes))
        found = tuple(row for row in outcome.rows if mine is None or row in mine)
        return replace(outcome, rows=found), sum(sizes)

    def again(row: bytes) -> str | None:
        here = b"".join(bytes(block) for block in run.source.scan_raw(pair.source, row, row + b"\0"))
        there = b"".join(bytes(block) for block in run.target.scan_raw(pair.target, row, row + b"\0"))
        sides = row_sides(here, there, rules, now_ms() + CLOCKS_APART_MS, Bounds.of_each(LOOKED_AT_AGAIN))
        return None if sides is None else differing_cells(sides)

    with ThreadPoolExecutor(READERS, thread_name_prefix="both sides") as readers:
        outcomes = list(readers.map(compared, asked, [*(set(some) for some, _ in parts), *([None] * len(together))]))
        found = sorted({row for outcome, _ in outcomes for row in outcome.rows})
        in_ranges = sum(max(one.source.rows, one.target.rows) for one, _ in outcomes[len(outcomes) - len(together) :])
        # Not one by one: each sum looks at all spans before it.
        fragile = RowSpans.of(span for outcome, _ in outcomes for span in outcome.fragile)
        differ: dict[bytes, str]
        if len(found) > LOOKED_AT_AGAIN:
            differ = dict.fromkeys(found, "")
        else:
            looked = zip(found, readers.map(again, found), strict=True)
            differ = {row: cells for row, cells in looked if cells is not None}
    newest = max((outcome.newest for outcome, _ in outcomes), default=-1)
    return Shown(differ, fragile, len(rows) + in_ranges, sum(size for _, size in outcomes), newest)


def _counted(scan: Scan, sizes: list[int]) -> Scan:
    """The same scan, which also adds the size of each block to a list."""

    def blocks(start: bytes, stop: bytes) -> Iterator[bytes | CellIndex]:
        for block in scan(start, stop):
            sizes.append(len(block) if isinstance(block, bytes) else block.buffer.nbytes)
            yield block

    return blocks


def rows_by_file(run: Run, table: str, files: Sequence[WalFile]) -> dict[str, pa.Array] | str:
    """The rows whose edits each file holds; or why they are unknown. Reads only files whose rows were not collected
    when the files were applied."""

    def of_file(file: WalFile) -> pa.Array | str:
        if (packed := run.known_rows.of(file.name, table)) is not None:
            return WrittenRows(table, packed).rows
        mine, others = RowCollector({table}, limited=False), RowCollector(run.known_rows.tables - {table})
        for batch in open_wal(run.wal_files, run.wal_root, file):
            mine.add(batch)
            others.add(batch)
        for rows in (*mine.rows(), *others.rows()):
            run.known_rows.keep(file.name, rows.table, rows.packed)
        for rows in mine.rows():
            return rows.rows
        return f"{file.name} has a bulk load into {table}, whose rows the log does not name"

    with ThreadPoolExecutor(READERS, thread_name_prefix="rows") as readers:
        parts = list(readers.map(of_file, files))
    for part in parts:
        if isinstance(part, str):
            return part
    return {file.name: part for file, part in zip(files, parts, strict=True)}


def _rows(table: str, by_file: Mapping[str, pa.Array], more: Sequence[bytes]) -> list[bytes] | str:
    """The rows of all files and `more`, in order; or why they are not read one by one."""
    every = pc.unique(pa.concat_arrays([pa.array(more, pa.binary()), *by_file.values()]))
    if len(every) > MOST_ROWS:
        return f"{amount(len(every), f'row of {table} was', f'rows of {table} were')} written since it was compared"
    return sorted(every.to_pylist())


def _together(ranges: Sequence[Range]) -> list[tuple[Range, ...]]:
    """The ranges in parts, each for one scan: thousands take too long one by one, a few go on side by side."""
    size = max(1, min(RANGES_AT_ONCE, len(ranges) // (PARTS_FOR_EACH * READERS)))
    ordered = sorted(ranges)
    return [tuple(ordered[begin : begin + size]) for begin in range(0, len(ordered), size)]


def _last_stop(ranges: Sequence[Range]) -> bytes:
    stops = [stop for _, stop in ranges]
    return max(stops) if all(stops) else b""


def _in_parts(run: Run, rows: Sequence[bytes], regions: Sequence[Region]) -> Iterator[tuple[tuple[bytes, ...], bool]]:
    """The rows in parts, each of one region, with whether to scan everything between the rows of the part."""
    ordered = sorted(regions, key=lambda region: region.start)
    borders = [0, *(bisect_left(rows, region.start) for region in ordered[1:]), len(rows)]
    mine = [(region, first, end) for region, (first, end) in zip(ordered, pairwise(borders), strict=True)]
    sizes = run.source.regions_bytes([region for region, first, end in mine if end - first >= FEW_ROWS])
    for region, first, end in mine:
        is_scanned = region.encoded in sizes and sizes[region.encoded] <= (end - first) * SCANNED_BYTES
        for begin in range(first, end, ROWS_AT_ONCE):
            yield tuple(rows[begin : min(begin + ROWS_AT_ONCE, end)]), is_scanned

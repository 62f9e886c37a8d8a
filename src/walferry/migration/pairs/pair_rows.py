"""Read differing rows of a pair again until late edits have arrived."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from walferry.amounts import amount
from walferry.clock import CLOCKS_APART_MS, now_ms, steady_s
from walferry.formats.cells import CellIndex, CellType, index_cells
from walferry.hbase.rowkey import shown_row
from walferry.ledger import PassDifference
from walferry.ledger.rows import ClusterSide
from walferry.migration.comparing.written_rows import LOOKED_AT_AGAIN, READERS, differing
from walferry.migration.pairs.pair_log import is_fragile
from walferry.migration.pairs.pair_shipping import NOT_LOOKED_AT, Shipping
from walferry.migration.sides.digest import Outcome, RangePair, Scan, compare_pair, scans
from walferry.migration.sides.row_sides import Bounds, Cell, RowSides, row_sides
from walferry.migration.sides.stored_sides import rules_of
from walferry.run.run import Run

SHOWN_CELLS = 5
"""the most cells shown of a differing row, on each side"""
_PAUSES = 4
"""about how many more readings fit until `max_lag` has passed"""


@dataclass(frozen=True)
class PairRead:
    """A row range that was read on both sides."""

    outcome: Outcome
    rows: int
    size: int
    """bytes of the cells"""
    fragile: bool
    """whether its cells make it fragile (`pair_log.is_fragile`)"""


def read_pair(pair: RangePair) -> Iterator[PairRead]:
    """Compare a row range and count the bytes and rows read, in an executor."""
    size, fragile = 0, False

    def counted(scan: Scan) -> Scan:
        def read(start: bytes, stop: bytes) -> Iterator[bytes | CellIndex]:
            nonlocal size, fragile
            for block in scan(start, stop):
                cells = block if isinstance(block, CellIndex) else index_cells(np.frombuffer(block, np.uint8))
                size += cells.buffer.nbytes
                fragile = fragile or is_fragile(cells)
                yield cells

        return read

    source, target = scans(pair)
    outcome = compare_pair(pair, counted(source), counted(target))
    rows = len(pair.rows) or max(outcome.source.rows, outcome.target.rows)
    yield PairRead(outcome, rows, size, fragile)


def still_differing(
    run: Run,
    found: Sequence[PassDifference],
    shipping: Shipping,
    pause: Callable[[float], None] = time.sleep,
    proved_cells: dict[bytes, Collection[Cell]] | None = None,
) -> tuple[list[PassDifference], int]:
    """The rows that still differ after `max_lag` and, if a peer feeds the pair, after that has shipped what was
    written; and how many rows were read to find out.

    A row `differs` if the same cell differed at the first and at the last reading, between which a peer has shipped all
    that it had at the first one. Peers in both directions ship twice, and the cell differed in between, too. If other
    cells differed each time, the row is `under way`: it is written all the time.
    A row of which too little is known `differs` without a peer, and with one is `under way` and leaves the pass
    unjudged: it may only wait to be shipped. `proved_cells` gets the cells that made a row differ although all was
    shipped.
    """
    left: dict[str, dict[bytes, PassDifference]] = {}
    for item in found:
        left.setdefault(item.table, {})[item.row] = item
    deadline, read = steady_s() + run.spec.max_lag, 0

    def read_again() -> None:
        nonlocal read
        for table, rows in left.items():
            still = differing(run, table, sorted(rows)) if rows else {}
            read += len(rows)
            left[table] = {row: item for row, item in rows.items() if row in still}

    looks = [] if shipping.peer is not None else [_look_at_all(run, left)]
    while any(left.values()):
        read_again()
        if steady_s() >= deadline or not any(left.values()):
            break
        pause(min(run.spec.max_lag / _PAUSES, max(0.1, deadline - steady_s())))
    if shipping.peer is not None:
        for _ in range(shipping.times):
            if any(left.values()):
                looks.append(_look_at_all(run, left))
                shipping.ship()
                read_again()
    last = _look_at_all(run, left)
    result = []
    for table, rows in left.items():
        for row, item in rows.items():
            if row in last[table] and last[table][row] is None:
                continue
            if shipping.peer is None:
                result.append(judged(item, looks[0][table].get(row), last[table].get(row)))
            else:
                readings = [look[table] for look in looks]
                judgement = judged_by_shipping(item, readings, last[table], shipping)
                result.append(judgement)
                if proved_cells is not None and judgement.state == "differs":
                    proved_cells[row] = {cell for _, cell in lasting_cells(row, readings, last[table])}
    return result, read + sum(map(len, last.values()))


def _look_at_all(
    run: Run, rows: Mapping[str, Mapping[bytes, PassDifference]]
) -> dict[str, Mapping[bytes, RowSides | None]]:
    return {table: _look(run, table, sorted(of)) for table, of in rows.items()}


def judged(item: PassDifference, before: RowSides | None, now: RowSides | None) -> PassDifference:
    """Judge a row that differs `now` by what differed `before`; None: unknown."""
    if now is None:
        return replace(item, state="differs", detail=NOT_LOOKED_AT)
    lasting = before is None or _is_cut(before) or _is_cut(now) or bool(_cells(before) & _cells(now))
    return replace(item, state="differs" if lasting else "under way", detail=differing_cells_text(now))


def judged_by_shipping(
    item: PassDifference,
    earlier: Sequence[Mapping[bytes, RowSides | None]],
    last: Mapping[bytes, RowSides | None],
    shipping: Shipping,
) -> PassDifference:
    """Judge a row that differs at the `last` reading. After each `earlier` one, all that was written before it was
    shipped, unless `shipping` says why not. Only a cell seen at all readings makes the row differ."""
    row, now = item.row, last.get(item.row)
    found = replace(item, state="under way", detail=NOT_LOOKED_AT if now is None else differing_cells_text(now))
    looked_at = all(row in one for one in earlier)
    lasting = bool(lasting_cells(row, earlier, last))
    if lasting and (shipping.proved(found) or (looked_at and not shipping.why)):
        return replace(found, state="differs")
    readings = [*(one.get(row, now) for one in earlier), now]
    if now is None or not looked_at:
        shipping.leave_unjudged(too_many(item.table, LOOKED_AT_AGAIN))
    elif None not in readings and any(one is not None and _is_cut(one) for one in readings):
        shipping.leave_unjudged(f"a row of {item.table} differs in more cells than are kept: {shown_row(row)}")
    return found


def lasting_cells(
    row: bytes, earlier: Sequence[Mapping[bytes, RowSides | None]], last: Mapping[bytes, RowSides | None]
) -> set[tuple[ClusterSide, Cell]]:
    """The cells that only one side showed at all readings of a row, each with that side. What an earlier pass has
    proved needs no other reading than the last."""
    now = last.get(row)
    readings = [one.get(row, now) for one in (*earlier, last)]
    seen = [_cells(one) for one in readings if one is not None]
    return set.intersection(*seen) if len(seen) == len(readings) else set()


def too_many(table: str, most: int, of: str = "") -> str:
    """Why rows of a table are not judged. `of`: the part of it that has too many."""
    return f"more than {most:,} rows of {of}{table} differ, and only so many are followed cell by cell"


def differing_cells_text(sides: RowSides) -> str:
    """The cells that only one side shows, without their values, which may be confidential."""
    parts = []
    for side, cells, other in (
        ("source", sides.only_source, sides.only_target),
        ("target", sides.only_target, sides.only_source),
    ):
        if cells:
            places = {cell[:3] for cell in other}
            shown = ", ".join(_shown(cell, places) for cell in cells[:SHOWN_CELLS])
            more = f" and {len(cells) - SHOWN_CELLS} more" if len(cells) > SHOWN_CELLS else ""
            parts.append(f"only at the {side}: {shown}{more}")
    if sides.differing > len(sides.only_source) + len(sides.only_target):
        parts.append(f"{amount(sides.differing, 'cell differs', 'cells differ')} in all")
    return "; ".join(parts)


def _shown(cell: Cell, places: set[tuple[bytes, bytes, int]]) -> str:
    family, qualifier, timestamp, kind, _, _ = cell
    other = " (another value, type or tags)" if (family, qualifier, timestamp) in places else ""
    return f"{CellType(kind).name.lower()} {shown_row(family)}:{shown_row(qualifier)} at {timestamp}{other}"


def _is_cut(sides: RowSides) -> bool:
    return sides.differing > len(sides.only_source) + len(sides.only_target)


def _cells(sides: RowSides) -> set[tuple[ClusterSide, Cell]]:
    return {("source", cell) for cell in sides.only_source} | {("target", cell) for cell in sides.only_target}


def _look(run: Run, table: str, rows: Sequence[bytes]) -> Mapping[bytes, RowSides | None]:
    """Read both sides of the first LOOKED_AT_AGAIN rows; None for rows that are equal now."""
    pair, rules = run.pair(table), rules_of(run.source.describe(table))
    bounds = Bounds.of_each(max(1, len(rows[:LOOKED_AT_AGAIN])))

    def look(row: bytes) -> RowSides | None:
        there = b"".join(bytes(block) for block in run.target.scan_raw(pair.target, row, row + b"\0"))
        here = b"".join(bytes(block) for block in run.source.scan_raw(pair.source, row, row + b"\0"))
        return row_sides(here, there, rules, now_ms() + CLOCKS_APART_MS, bounds)

    some = rows[:LOOKED_AT_AGAIN]
    with ThreadPoolExecutor(READERS, thread_name_prefix="rows that differ") as readers:
        return dict(zip(some, readers.map(look, some), strict=True))

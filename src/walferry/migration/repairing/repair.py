"""Repair: make rows of the target show what the source shows, whatever made them differ.

Rows are read and written while the replay stands still (`replay.rights.standstill`), so that no older reading replaces
a newer edit; edits that the source has taken since the reading are applied afterwards. A flush and a major compaction
of the region purge a marker that only the target has. The compaction drops every marker of the region, and all cells
that these markers hide. So walferry sends again all markers that the source still has in the region, and then the row
itself. Until the markers are sent, a note in the ledger names the range, and the next repair starts there. After any
other kill, the next look finds the rows that are left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from uuid import uuid4

import numpy as np
from sqlalchemy import Connection

from walferry.amounts import amount
from walferry.apply.permit import Permit
from walferry.apply.recopy import send_cells
from walferry.apply.route import Route
from walferry.apply.writer_protocol import RefusedError
from walferry.apply.writers import writer_to
from walferry.clock import CLOCKS_APART_MS, now_ms, steady_s
from walferry.errors import TransientError
from walferry.formats.cells import CellIndex, CellType, as_run, index_cells
from walferry.formats.resolve import FamilyRules
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.ledger import RepairedRow, RunLedger
from walferry.migration.explaining.client_writes import edits_of_clients
from walferry.migration.explaining.difference_classes import Clients
from walferry.migration.repairing.row_plan import RawCell, RowRepair, TooLargeError, plan_row, raw_cells
from walferry.migration.sides.row_sides import Bounds
from walferry.migration.sides.stored_sides import rules_of
from walferry.replay.rights.applying import lease_check_of
from walferry.replay.rights.lease import LeaseHeldError, LeaseLostError
from walferry.replay.rights.standstill import NoStandstillError, Standstill
from walferry.run.facts import opened_ms
from walferry.run.progress.lag import covered_ms
from walferry.run.progress.repair_times import Repaired, note_repaired
from walferry.run.run import Run

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 500
"""how many rows are read and sent while the replay stands still"""
READERS = 8
COMPACTIONS = 3
"""the most compactions of a region until its markers are gone"""
NO_COMPACTION = 0
ANY_REGION_BYTES = 1 << 62
_OWED = "markers to send again"
_LATE = "puts whose markers a late compaction has dropped"
_HIDDEN = (
    "markers that hide it at the target were not purged: an open scan or KEEP_DELETED_CELLS keeps them, or the repair "
    "ended first"
)


class OpenedMeanwhileError(TransientError):
    """The target was opened to clients after a repair started."""


Refusal = Callable[[bytes, RowRepair, Sequence[RawCell]], str]
"""why the planned repair of a row must not be done, by the row, the plan and the target's raw cells; "" if it may"""


def refuse_none(row: bytes, plan: RowRepair, target: Sequence[RawCell]) -> str:
    """The Refusal of a caller that has nothing against any plan."""
    return ""


_NOT_OURS = (LeaseLostError, LeaseHeldError, NoStandstillError, OpenedMeanwhileError)
"""errors that end a repair: the process that has the leases now does the rest"""


@dataclass(frozen=True)
class Planned:
    """The planned repair of a row; `fault` says why no repair is possible."""

    row: bytes
    plan: RowRepair | None
    """None if both sides show the same by now, or if there is a fault"""
    fault: str = ""

    def describe(self) -> str:
        """The plan as a clause."""
        return self.fault or (self.plan.describe() if self.plan else "nothing: both sides show the same by now")


@dataclass(frozen=True)
class _Sides:
    """Raw cells of a row on both sides."""

    row: bytes
    source: Sequence[RawCell]
    target: Sequence[RawCell]
    fault: str = ""
    """why the cells are missing here"""


@dataclass
class _Table:
    """A table under repair, and the progress of each row."""

    run: Run
    standstill: Standstill
    source: str
    target: str
    rules: Mapping[bytes, FamilyRules]
    over: Callable[[], bool]
    clients: Callable[[bytes], Clients | None]
    """the known edits of clients to a row at the open target"""
    opened: int | None
    """when the target was opened, as known at the start of the repair"""
    refuses: Refusal = refuse_none
    compacts: bool = True
    """whether regions may be compacted"""
    done: dict[bytes, tuple[str, int, str]] = field(default_factory=dict)
    """by row: the action, the number of cells sent, the fault"""
    hidden: dict[bytes, RowRepair] = field(default_factory=dict)
    """rows that wait until markers are purged"""
    deleted: dict[bytes, RowRepair] = field(default_factory=dict)
    """rows whose own deletes, sent by this repair, are still to be purged"""
    taken: Repaired = field(default_factory=Repaired)
    """how long the repair took so far"""

    def add(self, row: bytes, action: str, cells: int = 0, fault: str = "") -> None:
        """Record an outcome for a row, after its earlier ones."""
        before, sent, _ = self.done.get(row, ("", 0, ""))
        self.done[row] = "; ".join(filter(None, (before, action))), sent + cells, fault


def repair(
    run: Run,
    standstill: Standstill,
    table: str,
    kinds: Mapping[bytes, str],
    *,
    region_bytes: int = ANY_REGION_BYTES,
    over: Callable[[], bool] = lambda: False,
    refuses: Refusal = refuse_none,
) -> list[RepairedRow]:
    """Repair rows of a source table's copy. `kinds`: the rows, each with the class of its difference. Returns the
    recorded outcome of each row; rows that show the same by now are left out.

    `region_bytes`: larger target regions are not compacted, so rows that need a compaction stay different, as a fault.
    Once `over` returns True, the remaining rows are given up. A row whose plan the caller `refuses` is a fault.

    Raises the errors of reading both sides, LeaseHeldError while another process replays, LeaseLostError and
    OpenedMeanwhileError.
    """
    began = steady_s()
    rows = sorted(kinds)
    work = replace(_table(run, standstill, table, over, rows), refuses=refuses, compacts=region_bytes > NO_COMPACTION)
    position = covered_ms(run.ledger)
    _send_owed(work)
    try:
        _send_rows(work, rows)
        for _ in range(COMPACTIONS):
            if not (work.hidden or work.deleted) or work.over():
                break
            _purge(work, region_bytes)
    finally:
        at_ms = now_ms()
        made = [RepairedRow(table, row, kinds[row], *work.done[row], at_ms) for row in rows if row in work.done]
        run.ledger.repairs.record(made, f"applied up to {position} ms" if position else "no position is known")
        note_repaired(run.ledger, work.taken)
    faults = [row for row in made if row.fault]
    if made:
        log.info(
            "%s: %s repaired in %.1f s%s", table, amount(len(made) - len(faults), "row"), steady_s() - began,
            f", {len(faults)} could not be repaired, the first: {faults[0].row!r}: {faults[0].fault}" if faults else "",
        )  # fmt: skip
    return made


def finish_repair(run: Run, standstill: Standstill, table: str) -> None:
    """Send the markers that an interrupted repair still owes. Raises as `repair` does."""
    if is_unfinished(run.ledger, table):
        repair(run, standstill, table, {})


def plan_repair(run: Run, table: str, rows: Sequence[bytes], refuses: Refusal = refuse_none) -> list[Planned]:
    """What `repair` would now do for each row. Changes nothing."""
    work = replace(_table(run, Standstill(), table, lambda: False, rows), refuses=refuses)
    planned = [_planned(work, sides) for some in _some(sorted(rows)) for sides in _read(work, some)]
    return [one for one in planned if one.plan or one.fault]


def _table(run: Run, standstill: Standstill, table: str, over: Callable[[], bool], rows: Sequence[bytes]) -> _Table:
    rules = rules_of(run.source.describe(table))
    opened = opened_ms(run.ledger)
    clients = edits_of_clients(run, table, rows, Bounds.of_each(max(1, len(rows))))
    return _Table(run, standstill, table, run.pair(table).target, rules, over, clients, opened)


@contextmanager
def _held(work: _Table) -> Iterator[Route]:
    """Hold the right to write beside the log. Raises LeaseLostError at the end if the right was lost meanwhile, for
    example while the process was suspended: work done under it does not count then. Also raises
    OpenedMeanwhileError."""
    with work.standstill.held(work.run, work.over) as route:
        _require_same(work)
        yield route
        route.guard([work.target])


def _require_same(work: _Table) -> None:
    """Raise OpenedMeanwhileError if clients may write to the target by now: what is known of their edits is out of
    date."""
    if opened_ms(work.run.ledger) != work.opened:
        raise OpenedMeanwhileError(
            f"the target was opened while rows of {work.source} were being repaired; check these rows again"
        )


# ------------------------------------------------------------------ rows


def _send_rows(work: _Table, rows: Sequence[bytes]) -> None:
    """Send the cells that rows lack; rows blocked by a marker wait in `hidden`."""
    for some in _some(rows):
        if work.over():
            return
        with _held(work) as route:
            began = steady_s()
            found = [(sides, _planned(work, sides)) for sides in _read(work, some)]
            for sides, planned in found:
                was_hidden = work.hidden.pop(sides.row, None)
                if planned.plan and planned.plan.purge:
                    work.hidden[sides.row] = planned.plan
                    work.add(sides.row, "" if was_hidden else planned.plan.describe(), fault=_HIDDEN)
                elif planned.fault or was_hidden:
                    work.add(sides.row, "", fault=planned.fault)
            sent = [(sides, one.plan) for sides, one in found if one.plan and not one.plan.purge]
            _send_and_look(work, route, sent)
            taken = work.taken
            work.taken = replace(
                taken, rows=taken.rows + len(some), row_seconds=taken.row_seconds + steady_s() - began
            )  # fmt: skip


def _send_and_look(work: _Table, route: Route, sent: Sequence[tuple[_Sides, RowRepair]]) -> None:
    if not sent:
        return
    payload = {sides.row: plan.cells(sides.row) for sides, plan in sent}
    refused = _refusals(work, route, {row: data for row, (_, data) in payload.items()})
    now = dict(_read_target(work, [sides.row for sides, _ in sent]))
    for sides, plan in sent:
        left = plan_row(sides.row, sides.source, now[sides.row], work.rules, _moment())
        fault = refused.get(sides.row) or (f"still to be done after that: {left.describe()}" if left else "")
        work.add(sides.row, plan.describe(work.compacts), payload[sides.row][0], fault)
        if plan.deleted:
            work.deleted[sides.row] = plan


def _refusals(work: _Table, route: Route, cells: Mapping[bytes, bytes]) -> dict[bytes, str]:
    """Send the cells of rows. Returns, for each row that the target refuses, why."""
    try:
        send_cells(writer_to(route), route, work.source, b"".join(cells.values()))
    except RefusedError as error:
        if len(cells) == 1:
            return dict.fromkeys(cells, f"the target refuses its cells: {error}")
        return {row: why for one in cells for row, why in _refusals(work, route, {one: cells[one]}).items()}
    return {}


def _planned(work: _Table, sides: _Sides) -> Planned:
    if sides.fault:
        return Planned(sides.row, None, sides.fault)
    plan = plan_row(sides.row, sides.source, sides.target, work.rules, _moment())
    if plan and (clients := work.clients(sides.row)) is not None:
        here = {cell.key for cell in sides.source}
        later = any(cell.timestamp >= clients.since_ms and cell.key not in here for cell in sides.target)
        if clients.wrote or later:
            return Planned(sides.row, None, "clients have written to the row at the target since it was opened")
        if plan.compacts:
            return Planned(sides.row, None, "the target is open: a compaction would drop deletes of its clients too")
        if clients.unread:
            fault = f"it is unknown whether clients have written to the row at the target: {clients.unread}"
            return Planned(sides.row, None, fault)
    if plan and (why := work.refuses(sides.row, plan, sides.target)):
        return Planned(sides.row, None, why)
    return Planned(sides.row, plan)


def _moment() -> int:
    """The moment at which cells are judged: cells that expire within the allowed clock skew count as expired, as in a
    comparison."""
    return now_ms() + CLOCKS_APART_MS


def _read(work: _Table, rows: Sequence[bytes]) -> list[_Sides]:
    """Read both sides of rows, raw."""

    def read(row: bytes) -> _Sides:
        try:
            there = raw_row(work.run.target, work.target, row)
            here = raw_row(work.run.source, work.source, row)
        except TooLargeError as error:
            return _Sides(row, (), (), str(error))
        return _Sides(row, here, there)

    with ThreadPoolExecutor(READERS, thread_name_prefix="repair") as readers:
        return list(readers.map(read, rows))


def _read_target(work: _Table, rows: Sequence[bytes]) -> list[tuple[bytes, list[RawCell]]]:
    def read(row: bytes) -> tuple[bytes, list[RawCell]]:
        return row, raw_row(work.run.target, work.target, row)

    with ThreadPoolExecutor(READERS, thread_name_prefix="repair") as readers:
        return list(readers.map(read, rows))


def _some(rows: Iterable[bytes], most: int = ROWS_AT_ONCE) -> Iterator[tuple[bytes, ...]]:
    left = iter(rows)
    while some := tuple(islice(left, most)):
        yield some


def raw_row(client: HBaseClient, table: str, row: bytes) -> list[RawCell]:
    """Read a row of a table, raw. Raises TooLargeError."""
    return raw_cells(b"".join(bytes(block) for block in client.scan_raw(table, row, row + b"\0")))


# ------------------------------------------------------------------ markers


def _purge(work: _Table, region_bytes: int) -> None:
    """Compact the regions of rows that markers block, one after the other, and repair those rows."""
    waiting = {**work.deleted, **work.hidden}
    while waiting and not work.over():
        _send_owed(work)
        first = min(waiting)
        region = work.run.target.locate(work.target, first)
        mine = {
            row: plan for row, plan in waiting.items() if row >= region.start and (not region.end or row < region.end)
        }
        waiting = {row: plan for row, plan in waiting.items() if row not in mine}
        began = steady_s()
        try:
            size = work.run.target.region_bytes(region)
            if region_bytes < ANY_REGION_BYTES and (size is None or size > region_bytes):
                _leave(work, mine, f"its region has {(size or 0) / 1e6:.0f} MB: it is not compacted now")
                continue
            compacted = _compact(work, region, mine)
        except _NOT_OURS:
            raise
        except TransientError as error:  # it may be under way
            _leave(work, mine, f"its region could not be compacted: {error}")
            continue
        again = _send_owed(work)
        if not compacted:
            _send_rows(work, [row for row in sorted(mine) if row in work.hidden])
            continue
        log.info(
            "region %s of target table %s was compacted for %s in %.1f s; %s sent again",
            region.encoded, work.target, amount(len(mine), "row"), steady_s() - began,
            amount(again, "marker was", "markers were"),
        )  # fmt: skip
        taken = work.taken
        work.taken = replace(
            taken, regions=taken.regions + 1, region_bytes=taken.region_bytes + (size or 0),
            region_seconds=taken.region_seconds + steady_s() - began,
        )  # fmt: skip
        _send_rows(work, [row for row in sorted(mine) if row in work.hidden])
        _prove(work, [row for row in sorted(mine) if row in work.deleted])


def _compact(work: _Table, region: Region, rows: Mapping[bytes, RowRepair]) -> bool:
    """Compact a target region for rows. Returns False if no compaction is needed any more, or if another process has
    left markers to send first.

    This process must hold the leases. A process that takes the leases from a suspended or killed process finds the
    note, sends the markers again, and can be sure that no compaction follows. A compaction drops cells only from the
    files that the server has when it is asked.
    """
    with work.standstill.beside(work.run) as route:
        _require_same(work)
        if is_unfinished(work.run.ledger, work.source):
            return False
        families = _still_in_the_way(work, rows)
        if not families:
            return False
        lease_check = lease_check_of(work.run, route)
        owed = _owed(region.start, region.end, families)
        work.run.ledger.notes.keep(_OWED, owed, work.source, lease_check)
        permit = Permit(route.guard, {work.target}, route.limits.request_seconds, _LATE)
        now = work.run.target.compact_region(
            work.target, min(rows), families, timeout_s=route.limits.request_seconds, may_send=permit.ask,
            sent=lambda: permit.check(lambda: {work.target: (region.start, region.end)}),
        )  # fmt: skip
        # If the region was split meanwhile, the note must cover both parts.
        start, end = min(region.start, now.start), max(region.end, now.end) if region.end and now.end else b""
        route.guard([work.target])
        work.run.ledger.notes.keep(_OWED, _owed(start, end, families), work.source, lease_check)
    return True


def _still_in_the_way(work: _Table, rows: Mapping[bytes, RowRepair]) -> set[bytes]:
    """The families in which markers still block rows, read now: another process may have repaired the rows since."""
    families = set[bytes]()
    for some in _some(sorted(rows)):
        for sides in _read(work, some):
            plan = _planned(work, sides).plan
            purge = plan.purge if plan is not None and sides.row in work.hidden else ()
            left = _own_deletes(work, sides.row, sides.target) if sides.row in work.deleted else ()
            if not left:
                work.deleted.pop(sides.row, None)
            families |= {cell.family for cell in (*purge, *left)}
    return families


def _leave(work: _Table, rows: Iterable[bytes], why: str) -> None:
    for row in rows:
        if work.hidden.pop(row, None):
            work.add(row, "", fault=why)
        work.deleted.pop(row, None)  # readers see the same; a later compaction drops the delete


def _prove(work: _Table, rows: Sequence[bytes]) -> None:
    """Count rows as done once their own deletes are gone from the target."""
    for row, cells in _read_target(work, rows):
        if not _own_deletes(work, row, cells):
            del work.deleted[row]


def _own_deletes(work: _Table, row: bytes, target: Sequence[RawCell]) -> list[RawCell]:
    """The deletes that this repair sent for a row and that the target still has."""
    keys = {(put.family, put.qualifier, put.timestamp) for put in work.deleted[row].deleted}
    return [c for c in target if c.type == CellType.DELETE and (c.family, c.qualifier, c.timestamp) in keys]


def is_unfinished(ledger: RunLedger, table: str) -> bool:
    """Whether a repair of a source table ended after a compaction, before it sent the markers that it owes to other
    rows."""
    return ledger.notes.get(_OWED, table) is not None


def _owed(start: bytes, end: bytes, families: Iterable[bytes]) -> dict[str, Any]:
    named = sorted(family.decode() for family in families)
    return {"start": start.hex(), "end": end.hex(), "families": named, "id": uuid4().hex}


def _send_owed(work: _Table) -> int:
    """Send all markers that the source has in the row range of the last compaction, which dropped them at the target.
    Returns how many; 0 if none are owed.

    Each dropped marker was at the source before, so a scan that starts now finds it if the source still has it.
    """
    owed = work.run.ledger.notes.get(_OWED, work.source)
    if owed is None:
        return 0

    def same(connection: Connection, kept: dict[str, Any]) -> None:
        if kept != owed:
            raise LeaseLostError(f"another process has compacted a region of {work.target} since", table=work.target)

    count, names = 0, owed["families"]
    for some in _some(_marked_rows(work, bytes.fromhex(owed["start"]), bytes.fromhex(owed["end"]), names)):
        with _held(work) as route:
            for block in work.run.source.scan_raw(work.source, some[0], some[-1] + b"\0", families=names, rows=some):
                index = index_cells(np.frombuffer(block, np.uint8))
                run, starts = as_run(index.pick(np.flatnonzero(index.type != CellType.PUT)))
                if len(starts):
                    count += send_cells(writer_to(route), route, work.source, run.tobytes())
    work.run.ledger.notes.advance(_OWED, None, work.source, same)
    return count


def _marked_rows(work: _Table, start: bytes, end: bytes, families: Sequence[str]) -> Iterator[bytes]:
    """The rows in a range in which the source has markers, in order."""
    for block in work.run.source.scan_raw(work.source, start, end, families=families):
        index: CellIndex = index_cells(np.frombuffer(block, np.uint8))
        last = None
        for number in np.flatnonzero(index.type != CellType.PUT).tolist():
            if (row := index.row(number)) != last:
                yield row
                last = row

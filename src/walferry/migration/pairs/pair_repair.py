"""Repair rows of a pair that HBase's own replication feeds: make the target show what the source shows.

Replication goes on while a row is repaired. That loses no edit: a repair sends cells and markers of the source with
their own timestamps, and replication brings the same ones. Only if a cell is written at the source twice with one
timestamp may the older one come last, from the repair. So after the target has acknowledged all that was sent, each
repaired row is read again, on both sides. If it is equal then, only replication changes it from there on; if not, it is
repaired again.

Rows that only wait to be shipped are left alone: a row is repaired once its peer has shipped, as in a pass. What a
repair sends bears the source's cluster id, so the target's own peer does not replicate it to the source.

Where clients write to both clusters, walferry must not take back what they have written at the target and the source
does not have yet. So a repair there changes only those cells of the target that have been proved to differ, and never
compacts: a compaction would drop deletes of clients that are still on their way to the source.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.errors import TransientError, UsageError
from walferry.hbase.rowkey import parse_row
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger import PassDifference, RepairedRow
from walferry.migration.comparing.written_rows import LOOKED_AT_AGAIN
from walferry.migration.pairs.pair_pass import PHASE, require_comparable
from walferry.migration.pairs.pair_rows import still_differing
from walferry.migration.pairs.pair_shipping import Shipping, proved_now, unnamed_back
from walferry.migration.repairing import asked_repairs
from walferry.migration.repairing.asked_repairs import Kinds, RepairOutcome, plans
from walferry.migration.repairing.repair import (
    ANY_REGION_BYTES,
    NO_COMPACTION,
    Refusal,
    finish_repair,
    refuse_none,
    repair,
)
from walferry.migration.repairing.row_plan import RawCell, RowRepair
from walferry.migration.sides.row_sides import Cell, cell_as_compared
from walferry.replay.rights.standstill import Standstill
from walferry.run.heartbeat import alive
from walferry.run.recorded_spec import peer_back_of, peer_of
from walferry.run.run import Run

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""how often a row is repaired that differs again"""
_UNKNOWN = "it is not known to differ: other cells of it differ each time that it is read"
_WRITTEN = "it has been repaired, and is being written: the next pass shows whether it is equal"
_HIDDEN = (
    "a delete that only the target has hides what the source shows, and where clients write to both clusters nothing "
    "is compacted, which would drop their deletes: write the row at the source again"
)
_CLIENTS = "clients have written to the row at the target, and the source does not have all of it yet"


def ask(run: Run, table: str | None, rows: Sequence[str] = (), *, dry_run: bool = False) -> RepairOutcome:
    """Repair rows of a migration or of a pair, or say what a repair would do: `asked_repairs.ask`, and for a pair, the
    given rows or all that differed in its last pass.

    Raises UsageError for a pair that cannot be repaired, TransientError while a pass over it is under way.
    """
    if run.record.kind != "pair":
        return asked_repairs.ask(run, table, rows, dry_run=dry_run)
    if rows and table is None:
        raise UsageError("name the table of the rows with --table")
    _require_repairable(run)
    tables = [table] if table is not None else run.source_tables
    wanted = {one: _candidates(run, one, rows) for one in tables}
    if dry_run:
        both = _has_clients_at_both(run)
        planned = plans(run, wanted, refuses=_purges if both else refuse_none, compacts=not both)
        return RepairOutcome(run.run_id, dry_run, *planned)
    return RepairOutcome(run.run_id, dry_run, repair_rows(run, wanted))


def _require_repairable(run: Run) -> None:
    record = run.ledger.record
    if record.state != "running":
        raise UsageError(f"the pair {record.run_id} was {record.state}: verify it again first", run=record.run_id)
    if peer_of(record) is None:
        raise UsageError(
            f"rows of the pair {record.name} are repaired only if its spec names the replication `peer` that feeds the "
            "target: walferry cannot tell otherwise whether they are still on their way",
            run=record.run_id,
        )
    if run.spec.writer_kind is WriterKind.THRIFT:
        raise UsageError(
            "rows of a pair are not repaired by Thrift (`apply: thrift`), since the target would replicate its writes "
            "as those of a client",
            run=record.run_id,
        )
    require_comparable(run, "repaired")
    if back := unnamed_back(run):
        raise UsageError(
            f"the target's peer {back} replicates tables of the pair, perhaps to the source: name it as `peer_back` in "
            "the spec, and verify the pair again. What clients have written at the target could be deleted otherwise",
            run=record.run_id,
        )


def _candidates(run: Run, table: str, rows: Sequence[str]) -> Kinds:
    if table not in run.source_tables:
        known = ", ".join(run.source_tables)
        raise UsageError(f"the pair {run.record.name} has no table {table!r}; its tables: {known}", table=table)
    if rows:
        return dict.fromkeys(map(parse_row, rows), "")
    if PHASE in alive(run.ledger):
        raise TransientError(
            f"a pass over the pair {run.record.name} is under way, and finds the rows: try again once it has ended",
            run=run.run_id,
        )
    if any(made.ended_ms is None for made in run.ledger.passes.latest(1)):
        raise UsageError(
            f"the last pass over the pair {run.record.name} was interrupted: `walferry verify --pair` continues it, "
            "and finds the rows",
            run=run.run_id,
        )
    return {item.row: "" for item in run.ledger.passes.differences() if (item.table, item.state) == (table, "differs")}


def repair_rows(run: Run, wanted: Mapping[str, Kinds]) -> list[RepairedRow]:
    """Repair rows by source table. Returns the recorded outcome of each row; rows that are equal by now are left out.
    What an interrupted repair owes is done first."""
    made = list[RepairedRow]()
    for table, kinds in wanted.items():
        finish_repair(run, Standstill(), table)
        # Of a row that an earlier pass has proved, nobody knows what clients have written at the target since.
        proved = {} if _has_clients_at_both(run) else proved_now(run)
        rows, work = sorted(kinds), _Table(run, table, Shipping(run, proved))
        for first in range(0, len(rows), LOOKED_AT_AGAIN):
            work.repair(rows[first : first + LOOKED_AT_AGAIN])
            log.info("%s: %d of %s done", table, min(len(rows), first + LOOKED_AT_AGAIN), amount(len(rows), "row"))
        finish_repair(run, Standstill(), table)
        run.ledger.repairs.record([work.done[row] for row in sorted(work.given_up)], "of a pair")
        made += work.done.values()
    return made


def _has_clients_at_both(run: Run) -> bool:
    return peer_back_of(run.record) is not None


def _purges(row: bytes, plan: RowRepair, target: Sequence[RawCell]) -> str:
    """Why a row is not repaired where nothing may be compacted; "" if it can be."""
    return _HIDDEN if plan.purge else ""


@dataclass
class _Table:
    """A table under repair, and the outcome of each row so far."""

    run: Run
    table: str
    shipping: Shipping
    done: dict[bytes, RepairedRow] = field(default_factory=dict)
    given_up: set[bytes] = field(default_factory=set)
    """rows whose outcome is not recorded yet"""
    proved: dict[bytes, Collection[Cell]] = field(default_factory=dict)
    """the cells in which rows differ for certain"""

    def repair(self, rows: Sequence[bytes]) -> None:
        """Repair those of the rows that differ for certain."""
        left = self._differing(rows)
        for _ in range(ATTEMPTS):
            if not left:
                return
            made = self._repair(left)
            for row in made:
                self._add(row)
            # Where nothing could be sent, nothing has changed.
            left = self._differing([row.row for row in made if row.cells or not row.fault])
        for key in left:
            if not self.done[key].fault:
                self._give_up(key, f"it was repaired {ATTEMPTS} times, and differs again")

    def _repair(self, rows: Sequence[bytes]) -> list[RepairedRow]:
        kinds = dict.fromkeys(rows, "")
        refuses: Refusal = refuse_none
        most = ANY_REGION_BYTES
        if _has_clients_at_both(self.run):
            refuses, most = self._beside_clients, NO_COMPACTION
        return repair(self.run, Standstill(), self.table, kinds, region_bytes=most, refuses=refuses)

    def _beside_clients(self, row: bytes, plan: RowRepair, target: Sequence[RawCell]) -> str:
        """Why a row is not repaired where clients write to the target, too; "" if it can be."""
        if plan.purge:
            return _purges(row, plan, target)
        there = {cell.key: cell for cell in reversed(target)}
        replaced = [there[cell.key] for cell in plan.sent if cell.key in there and not cell.is_marker]
        changed = {cell_as_compared(*cell[:6]) for cell in (*plan.deleted, *replaced)}
        return "" if changed <= set(self.proved[row]) else _CLIENTS

    def _differing(self, rows: Sequence[bytes]) -> list[bytes]:
        """The rows that differ for certain. A fault of a row that is equal by now is forgotten."""
        suspects = [PassDifference(self.table, row, "", "under way", "", now_ms()) for row in rows]
        found, _ = still_differing(self.run, suspects, self.shipping, proved_cells=self.proved) if rows else ([], 0)
        for row in set(rows) - {item.row for item in found}:
            if row in self.done:
                self.done[row] = replace(self.done[row], fault="")
        for item in found:
            if item.state != "differs":
                why = self.shipping.why or (_WRITTEN if item.row in self.done else self.shipping.unjudged or _UNKNOWN)
                self._give_up(item.row, why)
        return [item.row for item in found if item.state == "differs"]

    def _give_up(self, row: bytes, why: str) -> None:
        self.given_up.add(row)
        self._add(RepairedRow(self.table, row, "", "", 0, why, now_ms()))

    def _add(self, now: RepairedRow) -> None:
        before = self.done.get(now.row)
        if before is not None:
            actions = dict.fromkeys(filter(None, (before.action, now.action)))
            now = replace(now, action="; ".join(actions), cells=before.cells + now.cells)
        self.done[now.row] = now

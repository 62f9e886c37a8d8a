"""Repairs that somebody asks for. If another process follows the log, that process does them, because it has the
leases; otherwise this process does."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import uuid4

from walferry.amounts import amount
from walferry.clock import now_ms, steady_s
from walferry.errors import SidesDifferError, TransientError, UsageError, WalferryError
from walferry.hbase.rowkey import parse_row, shown_row
from walferry.ledger import RepairedRow
from walferry.migration.repairing.copy_again import plan_copy_again
from walferry.migration.repairing.known_differences import rows_to_repair
from walferry.migration.repairing.repair import Planned, Refusal, is_unfinished, plan_repair, refuse_none, repair
from walferry.migration.repairing.repairable import repairable
from walferry.replay.rights.standstill import Standstill
from walferry.run.facts import note_opened
from walferry.run.heartbeat import alive
from walferry.run.progress.repair_times import Expected, expected_copy_again, expected_repair
from walferry.run.run import Run

log = logging.getLogger(__name__)

_ASKED, _ANSWER = "repair asked", "repair answered"
LOOK_SECONDS = 0.5
SHOWN = 20
"""the most rows that are shown"""
ANSWER_SECONDS = 900.0

Kinds = Mapping[bytes, str]
"""rows, each with the class of its difference, "" if unknown"""


@dataclass(frozen=True)
class Ways:
    """The ways to make a table equal, and the cost of each."""

    table: str
    rows: int
    """rows that would be repaired"""
    sent_bytes: int
    """bytes sent for them at first; the cells that a marker hides are unknown until it is purged"""
    regions: int
    """regions of the target that would be compacted for some of the rows"""
    region_bytes: int
    """bytes in these regions, as their servers report them, in whole MiB"""
    repair: Expected
    copy_bytes: int
    """bytes of the source that would be copied again, as stored; 0 if copying again is not possible"""
    copy_again: Expected | None
    """None if copying again is not possible now"""
    why_not: str = ""
    """why it is not; "" for a pair, whose tables are never copied again"""

    def lines(self) -> list[str]:
        """The ways as lines, for people."""
        rows, regions = amount(self.rows, "row"), amount(self.regions, "region")
        much = f"{self.sent_bytes / 1e6:.1f} MB are sent"
        if self.regions:
            much += f", {regions} of the target compacted, {self.region_bytes / 1e6:.0f} MB"
        lines = [f"{self.table}, repairing {rows}: {much}; {self.repair.describe()}"]
        if self.copy_again is not None:
            again = f"{self.copy_bytes / 1e6:.0f} MB as stored; {self.copy_again.describe()}"
            lines.append(f"{self.table}, copying it again: {again}")
        elif self.why_not:
            lines.append(f"{self.table}, copying it again: {self.why_not}")
        return lines


@dataclass(frozen=True)
class RepairOutcome:
    """The outcome for the rows that somebody asked to repair, or the expected outcome."""

    run_id: str
    dry_run: bool
    rows: Sequence[RepairedRow]
    ways: Sequence[Ways] = ()
    """the cost of each way, for each table; only in a plan"""

    @property
    def faults(self) -> int:
        """How many rows could not be repaired."""
        return sum(bool(row.fault) for row in self.rows)

    def lines(self) -> list[str]:
        """The outcome as lines for people: the first rows, then the ways."""
        lines = [f"{'would repair ' if self.dry_run else ''}{repaired_row_text(row)}" for row in self.rows[:SHOWN]]
        if len(self.rows) > SHOWN:
            lines.append(f"and {len(self.rows) - SHOWN} more rows; all of them with --json")
        if not self.rows:
            lines.append(f"no row of {self.run_id} is known to differ")
        elif not self.dry_run:
            repaired = len(self.rows) - self.faults
            lines.append(f"repaired: {repaired} of {len(self.rows)}. A comparison shows whether more differ")
        return [*lines, *(line for way in self.ways for line in way.lines())]

    def facts(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return {
            "run": self.run_id, "dry_run": self.dry_run, "rows": [facts(row) for row in self.rows],
            "ways": [asdict(way) for way in self.ways],
        }  # fmt: skip

    def require_all(self) -> None:
        """Raise SidesDifferError if some rows cannot be repaired."""
        if self.faults:
            raise SidesDifferError(f"{amount(self.faults, 'row')} of {self.run_id} cannot be repaired now")


def ask(run: Run, table: str | None, rows: Sequence[str] = (), *, dry_run: bool = False) -> RepairOutcome:
    """Repair rows of a table, or of all tables of the run, or say what a repair would do. The rows are those given, as
    in the report, or all `candidates`. Raises UsageError for a run that cannot be repaired, and the errors of
    `repair_now`."""
    if rows and table is None:
        raise UsageError("name the table of the rows with --table")
    record = run.ledger.record
    if record.kind != "migration" or record.state != "running":
        raise UsageError(f"only rows of an unfinished migration are repaired, and {record.run_id} is not one")
    tables = [table] if table is not None else [pair.source for pair in run.tables]
    wanted = {one: candidates(run, one, rows) for one in tables}
    if not dry_run:
        return RepairOutcome(run.run_id, dry_run, repair_now(run, wanted))
    found, ways = plans(run, wanted)
    return RepairOutcome(run.run_id, dry_run, found, ways)


def candidates(run: Run, table: str, rows: Sequence[str] = ()) -> Kinds:
    """The rows of a table to repair: those given, as in the report, or all rows that differed in the last comparison or
    look and that nobody has decided about. Raises UsageError for a table that is not part of the run."""
    if table not in {pair.source for pair in run.tables}:
        known = ", ".join(pair.source for pair in run.tables)
        raise UsageError(f"run {run.run_id} has no table {table!r}; its tables: {known}", table=table)
    accepted = run.ledger.comparisons.accepted().keys()
    found = {d.row: d.kind for d in run.ledger.comparisons.differences(None, table) if repairable(d, accepted)}
    if rows:
        return {row: found.get(row, "") for row in map(parse_row, rows)}
    return {**dict.fromkeys(rows_to_repair(run, table), ""), **found}


def repair_now(run: Run, wanted: Mapping[str, Kinds]) -> list[RepairedRow]:
    """Repair rows by source table, in this process or in the one that replays. After a repair past the drain, the
    tables are compared again. Raises TransientError if the replaying process does not answer."""
    if "replay" in alive(run.ledger):
        return _ask(run, wanted)
    made = []
    note_opened(run.ledger)
    for table, kinds in wanted.items():
        if kinds or is_unfinished(run.ledger, table):
            compare_again(run, table, "rows are repaired")  # even if the rows are equal by now, or a kill follows
            made += repair(run, Standstill(), table, kinds)
    return made


def compare_again(run: Run, table: str, reason: str) -> None:
    """Have the next attempt compare a table again and repeat the last check."""
    run.ledger.phases.reopen("compare", table, reason)
    run.ledger.phases.reopen("check_drain", reason=reason)


def answer_asked(run: Run, standstill: Standstill, over: Callable[[], bool]) -> None:
    """Do the repairs that somebody has asked the replaying process for, if there are any."""
    asked = run.ledger.notes.get(_ASKED)
    if asked is None:
        return
    run.ledger.notes.drop(_ASKED)
    answer: dict[str, Any] = {"id": asked["id"], "rows": [], "error": ""}
    try:
        for table, kinds in asked["tables"].items():
            made = repair(run, standstill, table, {bytes.fromhex(row): kind for row, kind in kinds.items()}, over=over)
            answer["rows"] += [asdict(row) | {"row": row.row.hex()} for row in made]
    except WalferryError as error:
        log.warning("the rows that %s asked to repair are not repaired: %s", asked["by"], error)
        answer["error"] = str(error)
    run.ledger.notes.keep(_ANSWER, answer)


def _ask(run: Run, wanted: Mapping[str, Kinds]) -> list[RepairedRow]:
    ledger = run.ledger
    tables = {table: {row.hex(): kind for row, kind in kinds.items()} for table, kinds in wanted.items() if kinds}
    asked = {"id": uuid4().hex, "by": run.actor, "tables": tables}
    ledger.notes.keep(_ASKED, asked)
    log.info("asking the process that replays, which has the leases, to repair the rows")
    deadline = steady_s() + ANSWER_SECONDS
    while steady_s() < deadline and "replay" in alive(ledger):
        answer = ledger.notes.get(_ANSWER)
        if answer is not None and answer["id"] == asked["id"]:
            ledger.notes.drop(_ANSWER)
            if answer["error"]:
                raise TransientError(f"the process that replays could not repair the rows: {answer['error']}")
            return [RepairedRow(**row | {"row": bytes.fromhex(row["row"])}) for row in answer["rows"]]
        time.sleep(LOOK_SECONDS)
    ledger.notes.drop(_ASKED)
    raise TransientError(
        "the process that replays did not answer: it repairs only until writes have stopped; try again, or repair "
        "after the drain"
    )


def plans(
    run: Run, wanted: Mapping[str, Kinds], *, refuses: Refusal = refuse_none, compacts: bool = True
) -> tuple[list[RepairedRow], list[Ways]]:
    """The expected outcome for each row, and the cost of a repair beside that of copying the table again. Changes
    nothing. `compacts`: whether regions may be compacted."""
    rows, ways = [], []
    for table, kinds in wanted.items():
        found = plan_repair(run, table, list(kinds), refuses)
        for item in found:
            action = item.plan.describe(compacts) if item.plan else ""
            rows.append(RepairedRow(table, item.row, kinds[item.row], action, 0, item.fault, now_ms()))
        if found:
            ways.append(_ways(run, table, found, compacts))
    return rows, ways


def _ways(run: Run, table: str, found: Sequence[Planned], compacts: bool) -> Ways:
    done = [(item.row, item.plan) for item in found if item.plan is not None]
    sizes = _compacted(run, run.pair(table).target, [row for row, plan in done if compacts and plan.compacts])
    sent, inside = sum(len(plan.cells(row)[1]) for row, plan in done), sum(sizes)
    repaired = expected_repair(run.ledger, table, len(done), len(sizes), inside)
    ways = Ways(table, len(done), sent, len(sizes), inside, repaired, 0, None)
    if run.record.kind == "pair":
        return ways
    try:
        plan = plan_copy_again(run, table)
    except UsageError as error:
        return replace(ways, why_not=str(error))
    size = plan["source_bytes"]
    return replace(ways, copy_bytes=size, copy_again=expected_copy_again(run.ledger, table, size))


def _compacted(run: Run, target: str, rows: Sequence[bytes]) -> list[int]:
    """The bytes of each region of a target table that has some of the rows; 0 if the region's server does not report
    them."""
    if not rows:
        return []
    regions = sorted(run.target.regions(target), key=lambda region: region.start)
    starts = [region.start for region in regions]
    found = {max(0, bisect_right(starts, row) - 1) for row in rows}
    return [run.target.region_bytes(regions[number]) or 0 for number in sorted(found)]


def facts(row: RepairedRow) -> dict[str, Any]:
    """A row as plain values."""
    return asdict(row) | {"row": shown_row(row.row)}


def repaired_row_text(row: RepairedRow) -> str:
    """The outcome for a row, as a line."""
    kind = f" ({row.kind})" if row.kind else ""
    what = f"NOT REPAIRED: {row.fault}" if row.fault else row.action or "equal by now"
    return f"{row.table} {shown_row(row.row)}{kind}: {what}"

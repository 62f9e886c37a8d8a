"""Repairs that somebody asks for: done here, or by the process that follows the log, which has the leases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from walferry.clock import now_ms, steady_s
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.rowkey import parse_row, shown_row
from walferry.ledger import RepairedRow
from walferry.migration.known_differences import rows_to_repair
from walferry.migration.repair import is_unfinished, plan_repair, repair
from walferry.migration.repairable import repairable
from walferry.replay.standstill import Standstill
from walferry.run.facts import note_opened
from walferry.run.heartbeat import alive
from walferry.run.run import Run

log = logging.getLogger(__name__)

_ASKED, _ANSWER = "repair asked", "repair answered"
LOOK_SECONDS = 0.5
ANSWER_SECONDS = 900.0

Kinds = Mapping[bytes, str]
"""rows, each with the class of its difference, "" if unknown"""


def candidates(run: Run, table: str, rows: Sequence[str] = ()) -> Kinds:
    """The rows of a table to repair: those given, as in the report, or all that differed when they were last compared
    or looked at and that nobody has decided about. Raises UsageError for a table that is not part of the run."""
    if table not in {pair.source for pair in run.tables}:
        known = ", ".join(pair.source for pair in run.tables)
        raise UsageError(f"run {run.run_id} has no table {table!r}; its tables: {known}", table=table)
    accepted = run.ledger.comparisons.accepted().keys()
    found = {d.row: d.kind for d in run.ledger.comparisons.differences(None, table) if repairable(d, accepted)}
    if rows:
        return {row: found.get(row, "") for row in map(parse_row, rows)}
    return {**dict.fromkeys(rows_to_repair(run, table), ""), **found}


def repair_now(run: Run, wanted: Mapping[str, Kinds]) -> list[RepairedRow]:
    """Repair rows by source table, here or by the process that replays. After the drain the tables are to be compared
    again. Raises TransientError when that process does not answer."""
    if "replay" in alive(run.ledger):
        return _ask(run, wanted)
    made = []
    note_opened(run.ledger)
    for table, kinds in wanted.items():
        if kinds or is_unfinished(run, table):
            compare_again(run, table, "rows are repaired")  # also those that are equal by now, and after a kill
            made += repair(run, Standstill(), table, kinds)
    return made


def compare_again(run: Run, table: str, reason: str) -> None:
    """Have the next attempt compare a table again, and repeat the last check."""
    run.ledger.phases.reopen("compare", table, reason)
    run.ledger.phases.reopen("check_drain", reason=reason)


def answer_asked(run: Run, standstill: Standstill, over: Callable[[], bool]) -> None:
    """Do what somebody has asked of the process that replays, if there is anything."""
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
        log.warning("what %s asked to repair is not repaired: %s", asked["by"], error)
        answer["error"] = str(error)
    run.ledger.notes.keep(_ANSWER, answer)


def _ask(run: Run, wanted: Mapping[str, Kinds]) -> list[RepairedRow]:
    ledger = run.ledger
    tables = {table: {row.hex(): kind for row, kind in kinds.items()} for table, kinds in wanted.items() if kinds}
    asked = {"id": uuid4().hex, "by": run.actor, "tables": tables}
    ledger.notes.keep(_ASKED, asked)
    log.info("the process that replays has the leases, and is asked to repair them")
    deadline = steady_s() + ANSWER_SECONDS
    while steady_s() < deadline and "replay" in alive(ledger):
        answer = ledger.notes.get(_ANSWER)
        if answer is not None and answer["id"] == asked["id"]:
            ledger.notes.drop(_ANSWER)
            if answer["error"]:
                raise TransientError(f"the process that replays could not repair: {answer['error']}")
            return [RepairedRow(**row | {"row": bytes.fromhex(row["row"])}) for row in answer["rows"]]
        time.sleep(LOOK_SECONDS)
    ledger.notes.drop(_ASKED)
    raise TransientError(
        "the process that replays did not answer: it repairs only until writes have stopped; try again, or repair "
        "after the drain"
    )


def plans(run: Run, wanted: Mapping[str, Kinds]) -> list[RepairedRow]:
    """What would become of each row. Changes nothing."""
    return [
        RepairedRow(
            table, item.row, kinds[item.row], item.plan.describe() if item.plan else "", 0, item.fault, now_ms()
        )
        for table, kinds in wanted.items()
        for item in plan_repair(run, table, list(kinds))
    ]


def facts(row: RepairedRow) -> dict[str, Any]:
    """A row as plain values."""
    return asdict(row) | {"row": shown_row(row.row)}


def describe(row: RepairedRow) -> str:
    """What became of a row, as a line."""
    kind = f" ({row.kind})" if row.kind else ""
    what = f"NOT REPAIRED: {row.fault}" if row.fault else row.action or "equal by now"
    return f"{row.table} {shown_row(row.row)}{kind}: {what}"

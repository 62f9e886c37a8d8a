"""Which comparison of a table counts at the end of a run: the last gate and the run's state go by the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from walferry.ledger import ComparedTable, PhaseRecord, RunLedger, source_tables
from walferry.ledger.comparisons import needs_decision


def comparisons_of_phase(ledger: RunLedger) -> tuple[list[ComparedTable], list[str]]:
    """The comparison of each table that counts at the end of the run, and the tables without one.

    It counts if the current attempt of the phase `compare`, which is done, recorded it after the current drain, which
    is done, and for the current end fence. `walferry verify` or an outdated attempt does not count.
    """
    phases = {(phase.phase, phase.subject): phase for phase in ledger.phases.all()}
    drain, fence = attempt_done(phases, "drain"), end_fence_digest(ledger)
    found = {
        item.table: item
        for item in ledger.comparisons.tables()
        if item.purpose == "phase" and (item.drain_attempt, item.end_fence) == (drain, fence)
        and item.phase_attempt == attempt_done(phases, "compare", item.table) > 0
    }  # fmt: skip
    return list(found.values()), [table for table in source_tables(ledger.record.spec) if table not in found]


def clean_comparison(ledger: RunLedger, table: str) -> ComparedTable | None:
    """The newest comparison of a table, made for whatever purpose; None if by it the table does not count as equal."""
    newest = [made for made in ledger.comparisons.tables() if made.table == table][-1:]
    decided = ledger.comparisons.accepted().keys()
    for made in newest:
        differences, ranges = ledger.comparisons.differences([made]), ledger.comparisons.ranges([made])
        bad = any(item.kind == "unexplained" or needs_decision(item, decided) for item in differences)
        if not bad and not any(item.uncompared for item in ranges):
            return made
    return None


def end_fence_digest(ledger: RunLedger) -> str:
    """A digest that identifies the current end fence; "" while there is none."""
    positions = ledger.log.fence("end")
    if not positions:
        return ""
    lines = sorted(f"{p.group} {p.file} {p.offset}" for p in positions)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def attempt_done(phases: Mapping[tuple[str, str], PhaseRecord], phase: str, subject: str = "") -> int:
    """The number of the attempt at which a phase was done; 0 while it is not done."""
    known = phases.get((phase, subject))
    return known.attempts if known and known.state == "done" else 0

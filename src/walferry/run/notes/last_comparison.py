"""Which comparison of a table counts at the end of a run, for both the last gate and the run's state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from walferry.ledger import ComparedTable, PhaseRecord, RunLedger
from walferry.ledger.comparisons import lacks_explanation, needs_decision
from walferry.run.notes.looks import fault_now, last_look
from walferry.run.recorded_spec import source_tables


def comparisons_of_phase(ledger: RunLedger) -> tuple[list[ComparedTable], list[str]]:
    """The comparison of each table that counts at the end of the run, and the tables without one.

    The phases `compare` and `drain` must be done. A comparison counts if the current attempt of `compare` recorded it
    after the current drain and for the current end fence. `walferry verify` and outdated attempts do not count.
    """
    phases = {(phase.phase, phase.subject): phase for phase in ledger.phases.all()}
    drain = last_drain(ledger)
    found = {
        item.table: item
        for item in ledger.comparisons.tables()
        if item.purpose == "phase" and (item.drain_attempt, item.end_fence) == drain
        and item.phase_attempt == attempt_done(phases, "compare", item.table) > 0
    }  # fmt: skip
    return list(found.values()), [table for table in source_tables(ledger.record) if table not in found]


def whole_comparison(ledger: RunLedger, table: str) -> ComparedTable | None:
    """The newest comparison of a table, for any purpose, if it names every row that differed.

    Once no row that such a comparison names differs, and no row touched since, the table is equal. None if there is no
    comparison, or if it left something out.
    """
    newest = [made for made in ledger.comparisons.tables() if made.table == table][-1:]
    for made in newest:
        named = {item.row for item in ledger.comparisons.differences([made])}
        uncompared = any(item.uncompared for item in ledger.comparisons.ranges([made]))
        if len(named) == made.differing_rows and not uncompared:
            return made
    return None


AFTER_THE_RUN = (
    "compared after the end of the run: what clients have written at the target since it was opened counts as a "
    "difference"
)


def is_after_the_run(ledger: RunLedger, made: ComparedTable) -> bool:
    """Whether a comparison began after the end of a migration. Clients then write to the target, and the comparison
    counts their writes as differences."""
    run = ledger.record
    ended_ms = run.ended_ms if run.kind == "migration" and run.state == "done" else None
    return ended_ms is not None and made.began_ms >= ended_ms


def counts_as_equal(ledger: RunLedger, table: str) -> bool:
    """Whether no row is known to differ, by the last look at a table or, before the first look, by its comparison."""
    made = whole_comparison(ledger, table)
    if made is None:
        return False
    if (look := last_look(ledger, table)) is not None and look.at_ms >= made.ended_ms:
        return not (look.suspected or look.unexamined or fault_now(ledger, table, look))
    decided = ledger.comparisons.accepted().keys()
    found = ledger.comparisons.differences([made])
    return not any(lacks_explanation(item, decided) or needs_decision(item, decided) for item in found)


def end_fence_digest(ledger: RunLedger) -> str:
    """A digest that identifies the current end fence; "" while no end fence is set."""
    positions = ledger.log.fence("end")
    if not positions:
        return ""
    lines = sorted(f"{p.group} {p.file} {p.offset}" for p in positions)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def last_drain(ledger: RunLedger) -> tuple[int, str]:
    """The number of the attempt that completed the drain (0: not done), and the digest of the end fence."""
    return _attempt_done(ledger.phases.find("drain")), end_fence_digest(ledger)


def attempt_done(phases: Mapping[tuple[str, str], PhaseRecord], phase: str, subject: str = "") -> int:
    """The number of the attempt that completed a phase; 0 while the phase is not done."""
    return _attempt_done(phases.get((phase, subject)))


def _attempt_done(known: PhaseRecord | None) -> int:
    return known.attempts if known and known.state == "done" else 0

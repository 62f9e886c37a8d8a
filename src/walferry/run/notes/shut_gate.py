"""Why the gate to the cutover is shut, for a run's state. The gate notes this, since the ledger has it nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from walferry import clock
from walferry.ledger import RunLedger

_NOTE = "gate shut"
_SHOWN = 10
_AGAIN_MS = 60_000
"""age at which a note with the same reasons is written again"""
_OLD_MS = 600_000
"""age at which a note no longer counts: nobody asks the gate any more, for example while a person is asked for the
approval"""


def note_shut_gate(ledger: RunLedger, reasons: Sequence[str]) -> None:
    """Keep what the gate found now. The gate is asked every few seconds, so an unchanged result is rarely written."""
    if not reasons:
        if ledger.notes.get(_NOTE) is not None:
            ledger.notes.drop(_NOTE)
        return
    facts = {"count": len(reasons), "reasons": list(reasons[:_SHOWN])}
    kept, at_ms = ledger.notes.named(_NOTE).get("", (None, 0))
    if kept != facts or clock.now_ms() - at_ms >= _AGAIN_MS:
        ledger.notes.keep(_NOTE, facts)


def shut_gate_noted(ledger: RunLedger) -> str:
    """Why the gate was shut in the last minutes, as a cause; "" if it was not."""
    facts, at_ms = ledger.notes.named(_NOTE).get("", (None, 0))
    if facts is None or clock.now_ms() - at_ms >= _OLD_MS:
        return ""
    more = {1: "", 2: " (and 1 more reason)"}.get(facts["count"], f" (and {facts['count'] - 1} more reasons)")
    return f"{facts['reasons'][0]}{more}"

"""Why the gate to the cutover is shut, for a run's state: the gate notes what the ledger alone does not tell."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.ledger import RunLedger

_NOTE = "gate shut"
_SHOWN = 10


def note_shut_gate(ledger: RunLedger, reasons: Sequence[str]) -> None:
    """Keep what the gate found now; asked every few seconds, so only changes are written."""
    if not reasons:
        if ledger.notes.get(_NOTE) is not None:
            ledger.notes.drop(_NOTE)
        return
    facts = {"count": len(reasons), "reasons": list(reasons[:_SHOWN])}
    if ledger.notes.get(_NOTE) != facts:
        ledger.notes.keep(_NOTE, facts)


def shut_gate_noted(ledger: RunLedger) -> str:
    """What the gate last found, as a cause; "" if it found nothing."""
    facts = ledger.notes.get(_NOTE)
    if facts is None:
        return ""
    more = {1: "", 2: " (and 1 more reason)"}.get(facts["count"], f" (and {facts['count'] - 1} more reasons)")
    return f"{facts['reasons'][0]}{more}"

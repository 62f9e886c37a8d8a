"""Dirty rows as a run's state shows them: the gate to the cutover notes what it saw in the target's ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.ledger import RunLedger

_NOTE = "dirty rows"
_SHOWN = 10


def note_dirty_rows(ledger: RunLedger, found: Sequence[str]) -> None:
    """Keep what the gate found now, each mark as a sentence; asked every few seconds, so only changes are written."""
    if not found:
        if ledger.notes.get(_NOTE) is not None:
            ledger.notes.drop(_NOTE)
        return
    facts = {"count": len(found), "marks": list(found[:_SHOWN])}
    if ledger.notes.get(_NOTE) != facts:
        ledger.notes.keep(_NOTE, facts)


def dirty_rows_noted(ledger: RunLedger) -> str:
    """What the gate last found, as a cause; "" if it found nothing."""
    facts = ledger.notes.get(_NOTE)
    if facts is None:
        return ""
    more = f", and {facts['count'] - 1} more such marks" if facts["count"] > 1 else ""
    return f"{facts['marks'][0]}{more}"

"""What the process at work on a run waits for now, for whoever looks at the run's state."""

from __future__ import annotations

from walferry.clock import now_ms
from walferry.ledger import RunLedger

NOTE = "waits"


def begin_wait(ledger: RunLedger, what: str, seconds: float) -> None:
    """Record that the process waits, at most for so long, unless `end_wait` comes before.

    `what` reads after "it waits".
    """
    ledger.notes.keep(NOTE, {"what": what, "until_ms": now_ms() + round(seconds * 1000)})


def end_wait(ledger: RunLedger) -> None:
    """What was waited for has come."""
    ledger.notes.drop(NOTE)


def waits_for(ledger: RunLedger) -> str:
    """What the process waits for and how much longer at most, as text; "" when it does not wait."""
    note = ledger.notes.get(NOTE)
    left = (note["until_ms"] - now_ms()) / 1000 if note else 0
    return f"it waits {note['what']}, at most {left:.0f} s more" if note and left > 0 else ""

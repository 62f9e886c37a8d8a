"""What the process that works on a run is waiting for now, for the run's state."""

from __future__ import annotations

from walferry.clock import now_ms
from walferry.ledger import RunLedger

NOTE = "waits"


def begin_wait(ledger: RunLedger, what: str, seconds: float) -> None:
    """Record that the process waits, for at most `seconds`, until `end_wait`.

    `what` completes the phrase "it waits …".
    """
    ledger.notes.keep(NOTE, {"what": what, "until_ms": now_ms() + round(seconds * 1000)})


def end_wait(ledger: RunLedger) -> None:
    """Record that the wait is over."""
    ledger.notes.drop(NOTE)


def waits_for(ledger: RunLedger) -> str:
    """What the process is waiting for, and how much longer at most, as text; "" when it is not waiting."""
    note = ledger.notes.get(NOTE)
    left = (note["until_ms"] - now_ms()) / 1000 if note else 0
    return f"it waits {note['what']}, at most {left:.0f} s more" if note and left > 0 else ""

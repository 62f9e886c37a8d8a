"""Bulk loads that receivers apply at the moment, as they tell of them (`receive.loads`)."""

from __future__ import annotations

from walferry.clock import now_ms
from walferry.ledger import RunLedger

_NOTE = "load"
TOLD_MS = 60_000
"""a load that nobody has told of for this long is none that goes on: its process is gone, or it has failed"""


def tell_of_load(ledger: RunLedger, load: str, text: str) -> None:
    """Record how far a load is."""
    ledger.notes.keep(_NOTE, {"text": text}, load)


def load_ended(ledger: RunLedger, load: str) -> None:
    """Record that it has ended."""
    ledger.notes.drop(_NOTE, load)


def loads_under_way(ledger: RunLedger) -> list[str]:
    """How far each load is, by their names."""
    now, known = now_ms(), sorted(ledger.notes.named(_NOTE).items())
    return [kept["text"] for _, (kept, at_ms) in known if now - at_ms < TOLD_MS]

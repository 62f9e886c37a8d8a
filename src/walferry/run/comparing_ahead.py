"""Which tables the process that follows the log has still to compare as a whole before a cutover may begin."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.ledger import RunLedger

_NOTE = "compares ahead"


def note_comparing_ahead(ledger: RunLedger, tables: Sequence[str]) -> None:
    """Keep which tables are left."""
    ledger.notes.keep(_NOTE, {"tables": list(tables)})


def end_comparing(ledger: RunLedger) -> None:
    """None is left, or nobody goes on with them."""
    ledger.notes.drop(_NOTE)


def left_to_compare(ledger: RunLedger) -> list[str]:
    """The tables that are left. Empty also when nobody compares ahead."""
    kept = ledger.notes.get(_NOTE)
    return [] if kept is None else list(kept["tables"])

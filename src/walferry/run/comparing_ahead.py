"""Which tables the process that follows the log has still to compare before a cutover may begin."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.ledger import RunLedger

_NOTE, _FAILING = "compares ahead", "comparing ahead fails"


def note_comparing_ahead(ledger: RunLedger, tables: Sequence[str], written: Sequence[str] = ()) -> None:
    """Keep which tables are left; of those in `written`, only what was written while they were compared."""
    ledger.notes.keep(_NOTE, {"tables": list(tables), "written": list(written)})


def note_failing(ledger: RunLedger, why: str) -> None:
    """Keep why nothing is compared ahead now; "" once that is over."""
    ledger.notes.keep_text(_FAILING, why)


def why_failing(ledger: RunLedger) -> str:
    """Why nothing is compared ahead now; "" if nothing keeps it."""
    return ledger.notes.text(_FAILING)


def end_comparing(ledger: RunLedger) -> None:
    """None is left, or nobody goes on with them."""
    ledger.notes.drop(_NOTE)


def left_to_compare(ledger: RunLedger) -> list[str]:
    """The tables that are left. Empty also when nobody compares ahead."""
    kept = ledger.notes.get(_NOTE)
    return [] if kept is None else list(kept["tables"])


def waits_for_comparing(ledger: RunLedger) -> str:
    """Why a cutover has to wait for these tables; "" if none is left."""
    left = left_to_compare(ledger)
    if not left:
        return ""
    kept = ledger.notes.get(_NOTE) or {}
    whole = [table for table in left if table not in kept.get("written", ())]
    if whole:
        return f"{', '.join(whole[:5])} {'are' if len(whole) > 1 else 'is'} being compared, or about to be: wait for it"
    return f"what was written to {', '.join(left[:5])} meanwhile is being compared: wait for it"

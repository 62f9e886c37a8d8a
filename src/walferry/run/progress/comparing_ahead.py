"""The tables that the process that follows the log still has to compare before a cutover may begin."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.amounts import amount
from walferry.clock import shown_utc
from walferry.ledger import RunLedger

_NOTE, _FAILING, _SO_FAR = "compares ahead", "comparing ahead fails", "compared so far"


def note_comparing_ahead(ledger: RunLedger, tables: Sequence[str], written: Sequence[str] = ()) -> None:
    """Keep which tables are left to compare; of those in `written`, only rows written during the comparison are
    left."""
    ledger.notes.keep(_NOTE, {"tables": list(tables), "written": list(written)})


def note_failing(ledger: RunLedger, why: str) -> None:
    """Keep why nothing can be compared ahead now; "" once the reason is gone."""
    ledger.notes.keep_text(_FAILING, why)


def why_failing(ledger: RunLedger) -> str:
    """Why nothing can be compared ahead now; "" if there is no such reason."""
    return ledger.notes.text(_FAILING)


def note_so_far(ledger: RunLedger, table: str, done: int, regions: int, since_ms: int) -> None:
    """Keep how many regions of a table the whole comparison has compared so far; it began at `since_ms`."""
    ledger.notes.keep(_SO_FAR, {"done": done, "regions": regions, "since_ms": since_ms}, table)


def end_so_far(ledger: RunLedger, table: str) -> None:
    """Record that the whole comparison of a table has ended, or starts over."""
    ledger.notes.drop(_SO_FAR, table)


def told_so_far_ms(ledger: RunLedger, table: str) -> int | None:
    """When `note_so_far` was last called for a table; None after `end_so_far`."""
    kept = ledger.notes.named(_SO_FAR).get(table)
    return None if kept is None else kept[1]


def compared_so_far(ledger: RunLedger, table: str) -> str:
    """The progress of the whole comparison of a table, as a clause; "" if none is under way."""
    kept = ledger.notes.get(_SO_FAR, table)
    if kept is None:
        return ""
    at = shown_utc(kept["since_ms"])
    return f"{kept['done']} of {amount(kept['regions'], 'region')} of {table} are compared as a whole since {at}"


def end_comparing(ledger: RunLedger) -> None:
    """Record that no table is left to compare, or that nobody continues comparing ahead."""
    ledger.notes.drop(_NOTE)


def left_to_compare(ledger: RunLedger) -> list[str]:
    """The tables that are left to compare; also empty when nobody compares ahead."""
    kept = ledger.notes.get(_NOTE)
    return [] if kept is None else list(kept["tables"])


def waits_for_comparing(ledger: RunLedger) -> str:
    """Why a cutover has to wait for the tables that are left to compare; "" if none is left."""
    left = left_to_compare(ledger)
    if not left:
        return ""
    kept = ledger.notes.get(_NOTE) or {}
    whole = [table for table in left if table not in kept.get("written", ())]
    if whole:
        so_far = "; ".join(filter(None, (compared_so_far(ledger, table) for table in whole)))
        names = f"{', '.join(whole[:5])} {'are' if len(whole) > 1 else 'is'}"
        return f"{names} being compared, or about to be{f' ({so_far})' if so_far else ''}"
    return f"what was written to {', '.join(left[:5])} meanwhile is being compared"

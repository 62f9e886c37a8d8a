"""Which tables the process that follows the log has still to compare before a cutover may begin."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.amounts import amount
from walferry.clock import shown_utc
from walferry.ledger import RunLedger

_NOTE, _FAILING, _SO_FAR = "compares ahead", "comparing ahead fails", "compared so far"


def note_comparing_ahead(ledger: RunLedger, tables: Sequence[str], written: Sequence[str] = ()) -> None:
    """Keep which tables are left; of those in `written`, only what was written while they were compared."""
    ledger.notes.keep(_NOTE, {"tables": list(tables), "written": list(written)})


def note_failing(ledger: RunLedger, why: str) -> None:
    """Keep why nothing is compared ahead now; "" once that is over."""
    ledger.notes.keep_text(_FAILING, why)


def why_failing(ledger: RunLedger) -> str:
    """Why nothing is compared ahead now; "" if nothing keeps it."""
    return ledger.notes.text(_FAILING)


def note_so_far(ledger: RunLedger, table: str, done: int, regions: int, since_ms: int) -> None:
    """Keep how many regions of a table a whole comparison has compared that began at `since_ms`."""
    ledger.notes.keep(_SO_FAR, {"done": done, "regions": regions, "since_ms": since_ms}, table)


def end_so_far(ledger: RunLedger, table: str) -> None:
    """That comparison has ended, or begins again."""
    ledger.notes.drop(_SO_FAR, table)


def told_so_far_ms(ledger: RunLedger, table: str) -> int | None:
    """When that was kept last; None while it is not."""
    kept = ledger.notes.named(_SO_FAR).get(table)
    return None if kept is None else kept[1]


def compared_so_far(ledger: RunLedger, table: str) -> str:
    """How far a whole comparison of a table is that has not ended; "" if there is none."""
    kept = ledger.notes.get(_SO_FAR, table)
    if kept is None:
        return ""
    at = shown_utc(kept["since_ms"])
    return f"{kept['done']} of {amount(kept['regions'], 'region')} of {table} are compared as a whole since {at}"


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
        so_far = "; ".join(filter(None, (compared_so_far(ledger, table) for table in whole)))
        names = f"{', '.join(whole[:5])} {'are' if len(whole) > 1 else 'is'}"
        return f"{names} being compared, or about to be{f' ({so_far})' if so_far else ''}"
    return f"what was written to {', '.join(left[:5])} meanwhile is being compared"

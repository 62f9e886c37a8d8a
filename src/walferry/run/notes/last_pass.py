"""The result of the last pass over a pair, as far as a run's state needs it."""

from __future__ import annotations

from walferry.amounts import amount, rows_differ
from walferry.ledger import PassRecord, RunLedger


def last_pass(ledger: RunLedger) -> PassRecord | None:
    """The newest pass that has ended."""
    return next((made for made in ledger.passes.latest(2)[::-1] if made.ended_ms is not None), None)


def verdict(made: PassRecord) -> str:
    """The result of a pass that has ended."""
    late = f"; {made.under_way_rows} more were under way at every reading" if made.under_way_rows else ""
    if made.not_judged and made.differing_rows:
        others = amount(made.under_way_rows, "other is", "others are")
        return f"pass {made.number}: {rows_differ(made.differing_rows)}, {others} not judged: {made.not_judged}"
    if made.not_judged:
        rows = amount(made.under_way_rows, "row differs and is", "rows differ and are")
        return f"pass {made.number}: {rows} not judged: {made.not_judged}"
    found = rows_differ(made.differing_rows) if made.differing_rows else "both sides are equal"
    return f"pass {made.number}: {found}{late}"

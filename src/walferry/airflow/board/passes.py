"""The passes over a pair, as plain values for its page."""

from __future__ import annotations

from typing import Any

from walferry.airflow.board.hidden import hidden_rows
from walferry.airflow.board.paging import page_of
from walferry.ledger import RunLedger, RunRecord
from walferry.migration.pairs.pair_findings import findings, pass_facts

MOST_PASSES = 300
"""passes in the trend, the newest ones"""
NAMED = 200
"""how many differing rows, and regions read whole, are listed"""


def passes(ledger: RunLedger, run: RunRecord, page: int, size: int, *, rows: bool) -> dict[str, Any] | None:
    """The passes' trend, a page of them, newest first, and the findings so far; None for a run that is not a pair's.

    Without `rows`, nothing of the rows that differ but when they were found, and their state.
    """
    if run.kind != "pair":
        return None
    made = [pass_facts(one) for one in ledger.passes.latest(MOST_PASSES)]
    ended = [one for one in made if one["seconds"] is not None]
    newest, found = made[::-1], findings(ledger, NAMED)
    return {
        **page_of(newest, page, size),
        "trend": {
            "at_ms": [one["ended_ms"] for one in ended],
            **{key: [one[key] for one in ended] for key in ("differing_rows", "rows_read", "bytes_read", "seconds")},
        },
        **(found if rows else found | {"differences": hidden_rows(found["differences"])}),
    }  # fmt: skip

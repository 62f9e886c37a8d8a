"""The passes over a pair, as plain values for its page."""

from __future__ import annotations

from typing import Any

from walferry.ledger import RunLedger, RunRecord
from walferry.migration.pairs.pair_findings import findings, pass_facts

MOST_PASSES = 300
"""of the trend: the newest"""
NAMED = 200
"""rows that differ, and regions that were read whole"""


def passes(ledger: RunLedger, run: RunRecord, page: int, size: int) -> dict[str, Any] | None:
    """The trend of the passes, the newest of them in pages, and what is known since the last; None for other runs."""
    if run.kind != "pair":
        return None
    made = [pass_facts(one) for one in ledger.passes.latest(MOST_PASSES)]
    ended = [one for one in made if one["seconds"] is not None]
    newest = made[::-1]
    return {
        "total": len(made), "page": page, "size": size, "rows": newest[page * size : (page + 1) * size],
        "trend": {
            "at_ms": [one["ended_ms"] for one in ended],
            **{key: [one[key] for one in ended] for key in ("differing_rows", "rows_read", "bytes_read", "seconds")},
        },
        **findings(ledger, NAMED),
    }  # fmt: skip

"""A run to which a source replicates, as plain values for its page: its processes, its tables, and what is left of it.

Nothing here names a row: why a call was refused may name a table, a family or a region.
"""

from __future__ import annotations

from typing import Any

from walferry.airflow.board.paging import page_of
from walferry.run.progress.receiving import ReceivingShown

_FIRST = ("serving", "gone", "left")


def receiving(shown: ReceivingShown | None, processes: int, tables: int, size: int) -> dict[str, Any] | None:
    """A page each of the processes, those that serve first, and of the tables, and sums over all; None for a run of
    another kind."""
    if shown is None:
        return None
    known = sorted(shown.processes, key=lambda one: (_FIRST.index(one.state), one.server))
    newest = [table.newest_ms for table in shown.tables if table.newest_ms is not None]
    return {
        "into_kafka": shown.into_kafka,
        "processes": page_of([one.model_dump(exclude={"text"}) for one in known], processes, size),
        "tables": page_of([one.model_dump(exclude={"text"}) for one in shown.tables], tables, size),
        "serving": sum(one.state == "serving" for one in known),
        "refused": sum(one.refused for one in known),
        "late": sum(table.late for table in shown.tables),
        "newest_ms": max(newest, default=None),
        "left": list(shown.left),
    }

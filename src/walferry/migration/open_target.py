"""Open the target: what was written since the last comparison is compared, and clients need not wait for a whole one.

A whole comparison of the source, which stands still, follows in any case; it has its verdict before `release`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from walferry.clock import now_ms, steady_s
from walferry.errors import GateShutError, WalferryError, is_transient
from walferry.migration.cutover import late_edits
from walferry.migration.written_rows import Written, compare_written
from walferry.replay import dirty
from walferry.run.facts import OpenFacts
from walferry.run.last_comparison import clean_comparison
from walferry.run.run import Run

log = logging.getLogger(__name__)

TABLES_AT_ONCE = 4


def open_target(run: Run, gate: Callable[[Run], None]) -> OpenFacts:
    """The phase `open_target`: record from when on clients may use the target, or why they must wait for the whole
    comparison and its gate.

    `gate` raises GateShutError unless all of the log up to the end fence is accounted for and there is no other fault.
    """

    def work() -> dict[str, Any]:
        began, why, rows = steady_s(), [*_reasons(run, gate)], dict[str, int]()
        if not why:
            tables = [pair.source for pair in run.tables]
            with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="written rows") as at_once:
                found = dict(zip(tables, at_once.map(lambda table: _compare(run, table), tables), strict=True))
            rows = {table: one.rows for table, one in found.items() if not one.why}
            why = [one.why or _differ(table, one) for table, one in found.items() if one.why or one.differing]
        if why:
            log.info("clients may use the target after the whole comparison: %s", "; ".join(why))
            return OpenFacts(at_ms=None, why=tuple(why), rows=rows).model_dump()
        at_ms = now_ms()
        log.info(
            "THE TARGET IS OPEN: clients may use it. %d rows that were written since the last comparison are equal "
            "(%.1f s); the whole comparison goes on", sum(rows.values()), steady_s() - began,
        )  # fmt: skip
        return OpenFacts(at_ms=at_ms, rows=rows).model_dump()

    return OpenFacts.model_validate(run.once("open_target", work))


def _reasons(run: Run, gate: Callable[[Run], None]) -> Iterator[str]:
    """What the ledger, the source's log and the target know against it."""
    try:
        gate(run)
    except GateShutError as shut:
        yield from shut.facts["reasons"]
    for rows in dirty.marks_of(run)[:1]:
        yield rows.describe()
    if late := late_edits(run):
        yield f"{len(late)} edits came after writes were declared stopped, the first: {late[0]}"


def _compare(run: Run, table: str) -> Written:
    since = clean_comparison(run.ledger, table)
    if since is None:
        return Written(frozenset(), why=f"no comparison of {table} without unexplained differences was made before")
    try:
        return compare_written(run, table, since)
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        return Written(frozenset(), why=f"what was written to {table} since its comparison cannot be read: {error}")


def _differ(table: str, found: Written) -> str:
    shown = ", ".join(map(repr, found.differing[:3]))
    return f"{len(found.differing)} rows of {table} that were written last differ, such as {shown}"

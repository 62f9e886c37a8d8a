"""Open the target: what was written since the last comparison is compared, and clients need not wait for a whole one.

A whole comparison of the source, which stands still, follows in any case; it has its verdict before `release`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from walferry.clock import now_ms, steady_s
from walferry.errors import GateShutError, WalferryError, is_transient
from walferry.migration import late_edits
from walferry.migration.known_differences import without_reason
from walferry.migration.written_rows import compare_written, differing
from walferry.replay import dirty
from walferry.run.facts import OpenFacts
from walferry.run.last_comparison import clean_comparison
from walferry.run.run import Run

log = logging.getLogger(__name__)

TABLES_AT_ONCE = 4
MOST_LOG_BYTES = 256 << 20
"""that are read in the write stop for why rows differ"""


def open_target(run: Run, spark: Callable[[], SparkSession], gate: Callable[[Run], None]) -> OpenFacts:
    """The phase `open_target`: record from when on clients may use the target, or why they must wait for the whole
    comparison and its gate.

    `gate` raises GateShutError unless all of the log up to the end fence is accounted for and there is no other fault.
    """

    def work() -> dict[str, Any]:
        began, why = steady_s(), [*_reasons(run, gate)]
        rows, explained = dict[str, int](), dict[str, int]()
        if not why:
            tables = [pair.source for pair in run.tables]
            with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="written rows") as at_once:
                found = dict(zip(tables, at_once.map(lambda table: _compare(run, spark, table), tables), strict=True))
            why = [one.why for one in found.values() if one.why]
            rows = {table: one.rows for table, one in found.items() if not one.why}
            explained = {table: one.explained for table, one in found.items() if one.explained}
        if why:
            log.info("clients may use the target after the whole comparison: %s", "; ".join(why))
            return OpenFacts(at_ms=None, why=tuple(why), rows=rows).model_dump()
        at_ms = now_ms()
        log.info(
            "THE TARGET IS OPEN: clients may use it. %d rows that were written since the last comparison are equal%s "
            "(%.1f s); the whole comparison goes on", sum(rows.values()),
            f", but for {sum(explained.values())} that differ for a known reason" if explained else "",
            steady_s() - began,
        )  # fmt: skip
        return OpenFacts(at_ms=at_ms, rows=rows, explained=explained).model_dump()

    return OpenFacts.model_validate(run.once("open_target", work))


def _reasons(run: Run, gate: Callable[[Run], None]) -> Iterator[str]:
    """What the ledger, the source's log and the target know against it."""
    try:
        gate(run)
    except GateShutError as shut:
        yield from shut.facts["reasons"]
    for rows in dirty.marks_of(run)[:1]:
        yield rows.describe()
    if late := late_edits.look(run):
        yield f"{len(late)} edits came after writes were declared stopped, the first: {late_edits.describe(late[0])}"


@dataclass(frozen=True)
class _Compared:
    """What was written to a table since its last clean comparison."""

    rows: int = 0
    explained: int = 0
    """how many of them differ for a known reason"""
    why: str = ""
    """why the table does not count as equal"""


def _compare(run: Run, spark: Callable[[], SparkSession], table: str) -> _Compared:
    since = clean_comparison(run.ledger, table)
    if since is None:
        return _Compared(why=f"no comparison of {table} without unexplained differences was made before")
    try:
        found = compare_written(run, table, since)
        if found.why:
            return _Compared(why=found.why)
        left = without_reason(
            run, spark, table, found.differing, lambda rows: differing(run, table, rows), MOST_LOG_BYTES
        )
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        return _Compared(why=f"what was written to {table} since its comparison cannot be read: {error}")
    if left:
        shown = ", ".join(map(repr, left[:3]))
        return _Compared(why=f"{len(left)} rows of {table} that were written last differ, such as {shown}")
    return _Compared(found.rows, len(found.differing))

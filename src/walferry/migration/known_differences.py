"""Rows that differ for a reason that was found before the write stop, as histories of flushes and compactions give one:
they do not keep the target closed. A reason holds while exactly the same cells differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from walferry.ledger.comparisons import needs_decision
from walferry.migration.compare import explain
from walferry.migration.explain import IN_FLIGHT, UNEXPLAINED
from walferry.migration.wal_lookup import log_bytes
from walferry.run.run import Run

_NOTE = "known differences"
MOST_ROWS = 1_000
"""of a table, for which a reason is looked for"""


def known_rows(run: Run, table: str) -> list[bytes]:
    """The rows that differed when they were last looked at, and for which a reason is or was known."""
    return [bytes.fromhex(row) for row in run.ledger.notes.get(_NOTE, table) or {}]


def without_reason(
    run: Run,
    spark: Callable[[], SparkSession],
    table: str,
    differing: Mapping[bytes, str],
    read_again: Callable[[list[bytes]], Mapping[bytes, str]],
    most_bytes: int,
) -> list[bytes]:
    """Those of the rows that differ for no known reason; for new ones it is looked for in the log.

    `differing`: each row with the digest of the cells that differ (`row_sides.differing_cells`), "" if unknown.
    `most_bytes`: of a log that is larger nothing is read, and new rows have no reason.
    """
    known = run.ledger.notes.get(_NOTE, table) or {}
    new = [row for row, cells in differing.items() if not cells or known.get(row.hex()) != cells]
    explained: set[bytes] = set()
    if new and len(differing) <= MOST_ROWS and log_bytes(run, table) <= most_bytes:
        decided = run.ledger.comparisons.accepted().keys()
        explained = {
            found.row
            for found in explain(run, spark, None, table, sorted(new))
            if found.kind not in (UNEXPLAINED, IN_FLIGHT) and not needs_decision(found, decided)
        }
        if explained:  # of the very cells: those of a row that was written to meanwhile are others
            again = read_again(sorted(explained))
            explained = {row for row in explained if again.get(row, "") == differing[row] != ""}
    left = [row for row in new if row not in explained]
    # A row that differs in other cells now is still to be compared: the log that wrote it may count as verified.
    kept = {row.hex(): known.get(row.hex()) if row in left else cells for row, cells in differing.items()}
    kept = {row: cells for row, cells in kept.items() if cells is not None}
    if kept != known:
        run.ledger.notes.keep(_NOTE, kept, table)
    return left

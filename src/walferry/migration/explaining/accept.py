"""A person's decision to accept rows that differ: they are not repaired, and they shut no gate.

A person can accept together all rows of a table that differ for a known reason, but must name each unexplained row. A
decision covers exactly the differences that a comparison found: the same row with the same cells. Any later difference,
in another row or in other cells, needs its own decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from walferry.errors import UsageError
from walferry.hbase.rowkey import parse_row, shown_row
from walferry.ledger import AcceptedDifference, Difference, RunLedger
from walferry.ledger.comparisons import Decision, decision, lacks_explanation, needs_decision
from walferry.ledger.rows import DifferenceKind
from walferry.migration.explaining.difference_classes import UNEXPLAINED
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.recorded_spec import source_tables


@dataclass(frozen=True)
class DifferenceShown:
    """A row that differs, with the decision about it."""

    table: Annotated[str, Field(description="the source table")]
    row: Annotated[str, Field(description="the row key, with \\xNN for bytes that are not printable")]
    kind: Annotated[DifferenceKind, Field(description="the class of the difference: why the row differs")]
    detail: Annotated[str, Field(description="what differs, in words")]
    accepted_by: Annotated[str | None, Field(description="who accepted the difference; null: nobody has")]
    reason: Annotated[str | None, Field(description="why that person did; null: nobody has")]


def waiting(ledger: RunLedger, table: str, *, unexplained: bool = False) -> list[Difference]:
    """Differences that wait for a decision, from the table's newest comparison, the last look since, and the comparison
    that the last gate uses. With `unexplained`, also unexplained differences."""
    decided = ledger.comparisons.accepted().keys()
    known = ledger.comparisons
    of_gate = known.differences(comparisons_of_phase(ledger)[0], table)
    found = [*known.differences(None, table), *known.looked(table), *of_gate]
    return list(
        {
            decision(item): item
            for item in found
            if needs_decision(item, decided) or (unexplained and lacks_explanation(item, decided))
        }.values()
    )


def accept_named(ledger: RunLedger, table: str, row: str, reason: str, actor: str) -> list[Difference]:
    """Accept the current differences of a row of a source table, of any class; [] if the row does not differ now.

    Raises UsageError for a table that is not part of the run, an empty reason, and a row whose differing cells are not
    all known.
    """
    if table not in (known := source_tables(ledger.record)):
        raise UsageError(f"run {ledger.run_id} has no table {table!r}; its tables: {', '.join(known)}", table=table)
    wanted = parse_row(row)
    if not any(item.row == wanted for item in waiting(ledger, table, unexplained=True)):
        return []
    return accept(ledger, table, [row], reason, actor)


def unexplained_but_accepted(ledger: RunLedger) -> int:
    """How many unexplained rows a person accepted, among those that the last gate uses."""
    decided = ledger.comparisons.accepted().keys()
    found = ledger.comparisons.differences(comparisons_of_phase(ledger)[0])
    return sum(item.kind == UNEXPLAINED and decision(item) in decided for item in found)


def accept(
    ledger: RunLedger, table: str, rows: Sequence[str] | None, reason: str, actor: str, *, dry_run: bool = False
) -> list[Difference]:
    """Record the decision about rows of a source table (default: all that wait and have an explanation). Returns the
    differences that the decision covers.

    `rows` as in the report, with \\xNN for bytes that are not printable. Raises UsageError for a table that is not part
    of the run, for a row that waits for no decision, when nothing waits, and for an empty reason.
    """
    if not reason.strip():
        raise UsageError("give a reason for accepting differences: it is recorded")
    tables = {compared.table for compared in ledger.comparisons.tables()}
    if table not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise UsageError(f"run {ledger.run_id} has no comparison of {table!r}; compared so far: {known}", table=table)
    candidates = waiting(ledger, table, unexplained=bool(rows))
    wanted = {parse_row(row) for row in rows} if rows else None
    chosen = [item for item in candidates if wanted is None or item.row in wanted]
    # The entry that counts more rows may name one of these rows: then only the row's own entry is chosen.
    with_cells = {item.row for item in chosen if item.fingerprint}
    chosen = [item for item in chosen if item.fingerprint or item.row not in with_cells]
    missing = sorted((wanted or set()) - {item.row for item in chosen})
    if missing or not chosen:
        what = f"no row {shown_row(missing[0])} of {table}" if missing else f"nothing in {table}"
        others = ", ".join(shown_row(item.row) for item in candidates[:5]) or "none"
        raise UsageError(
            f"{what} waits for a decision; waiting: {others}. Unexplained rows may be losses or stray writes: "
            "accept them one by one with --row, or make them equal with `walferry repair`",
            table=table,
        )
    if unknown := [item for item in chosen if not item.fingerprint]:
        raise UsageError(
            f"row {shown_row(unknown[0].row)} of {table} cannot be accepted, because not all cells that differ are "
            f"known: {unknown[0].detail}",
            table=table,
        )
    if not dry_run:
        ledger.comparisons.accept(chosen, reason, actor)
    return chosen


def difference_facts(item: Difference, decided: Mapping[Decision, AcceptedDifference]) -> DifferenceShown:
    """A difference with the decision about it, for people and scripts."""
    made = decided.get(decision(item))
    return DifferenceShown(
        table=item.table,
        row=shown_row(item.row),
        kind=item.kind,
        detail=item.detail,
        accepted_by=made.accepted_by if made else None,
        reason=made.reason if made else None,
    )

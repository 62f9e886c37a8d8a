"""Shared by the ledger's sections: the open database, the actor of audit lines, and access to a run's row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, select

from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import audit as chain
from walferry.ledger.columns import Row, from_columns
from walferry.ledger.database import Database
from walferry.ledger.rows import AuditLine, RunRecord

NAMES = 500
"""in one statement"""


@dataclass(frozen=True)
class Store:
    """The open database, and the `actor` of audit lines whose call names no other."""

    database: Database
    actor: str

    def table(self, name: str) -> Table:
        """A table or view of the schema."""
        return self.database.tables[name]

    def run(self, connection: Connection, run_id: str) -> RunRecord:
        """The run with that id. Raises UsageError if there is none."""
        runs = self.table("runs")
        found = fetch(connection, RunRecord, runs, runs.c.run_id == run_id)
        if not found:
            raise UsageError(f"the ledger {self.database.url} knows no run {run_id!r}", run=run_id)
        return found[0]

    def unfinished(self, connection: Connection, run_id: str) -> RunRecord:
        """The run with that id. Raises UsageError if there is none or if it has ended."""
        run = self.run(connection, run_id)
        if run.state != "running":
            why = f"{run.state}: {run.outcome}" if run.outcome else run.state
            raise UsageError(f"run {run_id} has ended ({why}): start a new one", run=run_id)
        return run

    def note(
        self,
        connection: Connection,
        action: str,
        run_id: str | None,
        inputs: Mapping[str, Any],
        outcome: str = "",
        actor: str | None = None,
    ) -> str:
        """Append an audit line in the transaction of the change that it records. Returns the new head's hash."""
        line = AuditLine(0, now_ms(), actor or self.actor, action, run_id, dict(inputs), outcome, "")
        return chain.append(connection, self.table("audit"), line).hash


def fetch(
    connection: Connection,
    kind: type[Row],
    table: Table,
    *conditions: ColumnElement[bool],
    order: Sequence[ColumnElement[Any]] = (),
) -> list[Row]:
    """The rows of a table that meet all conditions, as dataclasses."""
    rows = connection.execute(select(table).where(*conditions).order_by(*order)).mappings()
    return [from_columns(kind, row) for row in rows]  # type: ignore[arg-type]


def chunks(names: Iterable[str]) -> Iterator[list[str]]:
    """Sorted names in lists short enough for one statement."""
    ordered = sorted(set(names))
    return (ordered[i : i + NAMES] for i in range(0, len(ordered), NAMES))

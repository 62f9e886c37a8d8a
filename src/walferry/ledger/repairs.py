"""Rows of one run's target tables that were repaired, or could not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from sqlalchemy import func, insert, select

from walferry.ledger.columns import to_columns, to_json
from walferry.ledger.store import Store, fetch

AUDITED_ROWS = 200
"""most rows that one audit line names; the line also has a digest of all, and `repaired_rows` lists them"""


@dataclass(frozen=True)
class RepairedRow:
    """What was done about a row that differed."""

    table: str = field(metadata={"column": "table_name"})
    row: bytes = field(metadata={"column": "row_key"})
    kind: str
    """the class of its difference; "" where nobody looked for it"""
    action: str
    """what was sent and purged, or would be"""
    cells: int
    """that were sent"""
    fault: str
    """why it could not be repaired; "" if both sides show the same since"""
    at_ms: int


class Repairs:
    """Rows of one run's target tables that were repaired, or could not be."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(self, rows: Sequence[RepairedRow], position: str, actor: str | None = None) -> None:
        """Record rows in their order. `position`: up to where the log was applied when the source was read."""
        if not rows:
            return
        table = self._store.table("repaired_rows")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            last = connection.execute(select(func.max(table.c.number)).where(table.c.run_id == self._run_id))
            first = (last.scalar_one() or 0) + 1
            values = [to_columns(row) | {"run_id": self._run_id, "number": first + n} for n, row in enumerate(rows)]
            connection.execute(insert(table), values)
            named = [to_columns(row) for row in rows]
            inputs = {
                "rows": len(rows), "position": position, "repaired": named[:AUDITED_ROWS],
                "digest": sha256(to_json({"rows": named}).encode()).hexdigest(),
            }  # fmt: skip
            faults = sum(bool(row.fault) for row in rows)
            outcome = f"{faults} could not be repaired" if faults else ""
            self._store.note(connection, "repair rows", self._run_id, inputs, outcome, actor)

    def all(self, table: str | None = None) -> list[RepairedRow]:
        """Every repaired row (of a table), in the order of recording."""
        found = self._store.table("repaired_rows")
        conditions = [found.c.run_id == self._run_id] + ([] if table is None else [found.c.table_name == table])
        with self._store.database.read() as connection:
            return fetch(connection, RepairedRow, found, *conditions, order=(found.c.number,))

    def counts(self) -> dict[str, Counter[str]]:
        """For each table, how many rows of each class were repaired ("" if unknown); a row counts each time."""
        found: dict[str, Counter[str]] = {}
        for row in self.all():
            if not row.fault:
                found.setdefault(row.table, Counter())[row.kind] += 1
        return found

"""Comparisons of one run's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Table, delete, func, insert, select, tuple_

from walferry.ledger.rows import Difference, RangeComparison, to_columns
from walferry.ledger.store import Store, fetch


class Comparisons:
    """Comparisons of one run's tables."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(self, attempt: int, rows: Sequence[RangeComparison], differences: Sequence[Difference]) -> None:
        """Keep the result of comparing the tables in `rows`; the same attempt at a table again replaces it."""
        tables = sorted({row.table for row in rows} | {difference.table for difference in differences})
        key = {"run_id": self._run_id, "attempt": attempt}
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            for kept, items in (
                (self._store.table("comparisons"), rows),
                (self._store.table("differences"), differences),
            ):
                same = (kept.c.run_id == self._run_id, kept.c.attempt == attempt, kept.c.table_name.in_(tables))
                connection.execute(delete(kept).where(*same))
                if items:
                    connection.execute(insert(kept), [to_columns(item) | key for item in items])
            unequal = sum(row.source_digest != row.target_digest for row in rows)
            inputs = {
                "attempt": attempt,
                "tables": tables,
                "ranges": len(rows),
                "differences": dict(Counter(difference.kind for difference in differences)),
            }
            self._store.note(connection, "compare", self._run_id, inputs, f"{unequal} of {len(rows)} ranges differ")

    def last(self) -> int:
        """The highest attempt recorded for any table of the run; 0 before the first."""
        comparisons = self._store.table("comparisons")
        with self._store.database.read() as connection:
            query = select(func.max(comparisons.c.attempt)).where(comparisons.c.run_id == self._run_id)
            return connection.execute(query).scalar_one() or 0

    def ranges(self, attempt: int | None = None) -> list[RangeComparison]:
        """Ranges by table and start row, of `attempt` or of each table's newest."""
        table = self._store.table("comparisons")
        order = (table.c.table_name, table.c.start_row)
        with self._store.database.read() as connection:
            return fetch(connection, RangeComparison, table, *self._attempt(table, attempt), order=order)

    def differences(self, attempt: int | None = None, table: str | None = None) -> list[Difference]:
        """Rows that differ (in `table`), of `attempt` or of each table's newest."""
        found = self._store.table("differences")
        conditions = self._attempt(found, attempt)
        if table is not None:
            conditions.append(found.c.table_name == table)
        order = (found.c.table_name, found.c.row_key, found.c.kind)
        with self._store.database.read() as connection:
            return fetch(connection, Difference, found, *conditions, order=order)

    def _attempt(self, table: Table, attempt: int | None) -> list[ColumnElement[bool]]:
        if attempt is not None:
            return [table.c.run_id == self._run_id, table.c.attempt == attempt]
        made = self._store.table("comparisons")
        newest = (
            select(made.c.table_name, func.max(made.c.attempt))
            .where(made.c.run_id == self._run_id)
            .group_by(made.c.table_name)
        )
        return [table.c.run_id == self._run_id, tuple_(table.c.table_name, table.c.attempt).in_(newest)]

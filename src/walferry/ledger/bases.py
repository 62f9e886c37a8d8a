"""The snapshots of tables that a run of kind `keep` has taken: with the log since, any later moment can be restored."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from walferry.clock import now_ms
from walferry.ledger.columns import from_columns, to_columns
from walferry.ledger.rows import Base
from walferry.ledger.store import Store, fetch


class Bases:
    """The bases of one run."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(self, base: Base) -> None:
        """Record a base whose snapshot is complete."""
        bases = self._store.table("bases")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            connection.execute(insert(bases).values(to_columns(base) | {"run_id": self._run_id}))
            facts = {"snapshot": base.snapshot, "table": base.table, "bytes": base.bytes}
            self._store.note(connection, "base taken", self._run_id, facts)

    def copied(self, snapshot: str) -> None:
        """Record that all files of a base are in the run's folder."""
        self._set(snapshot, "copied_ms", "base copied")

    def dropped(self, snapshot: str) -> None:
        """Record that a base was deleted."""
        self._set(snapshot, "dropped_ms", "base dropped")

    def there(self, table: str | None = None) -> list[Base]:
        """The bases that still exist, of all tables or of one, oldest first."""
        bases = self._store.table("bases")
        same = [bases.c.run_id == self._run_id, bases.c.dropped_ms.is_(None)]
        same += [] if table is None else [bases.c.table_name == table]
        with self._store.database.read() as connection:
            return fetch(connection, Base, bases, *same, order=(bases.c.complete_ms, bases.c.snapshot))

    def of_all_runs(self, table: str) -> list[tuple[str, Base]]:
        """The bases of a table that any run has taken and that still exist, with that run's id, oldest first."""
        bases = self._store.table("bases")
        query = select(bases).where(bases.c.table_name == table, bases.c.dropped_ms.is_(None))
        with self._store.database.read() as connection:
            rows = connection.execute(query.order_by(bases.c.complete_ms, bases.c.snapshot)).mappings()
            return [(row["run_id"], from_columns(Base, row)) for row in rows]  # type: ignore[arg-type]

    def _set(self, snapshot: str, column: str, what: str) -> None:
        bases = self._store.table("bases")
        same = (bases.c.run_id == self._run_id, bases.c.snapshot == snapshot)
        with self._store.database.write() as connection:
            connection.execute(update(bases).where(*same).values({column: now_ms()}))
            self._store.note(connection, what, self._run_id, {"snapshot": snapshot})

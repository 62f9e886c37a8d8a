"""The batch that one run applies now, and its pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import ColumnElement, Connection, delete, insert, update

from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.ledger.columns import to_columns
from walferry.ledger.rows import BatchRecord, Piece, PieceKind
from walferry.ledger.store import Store, fetch

Change = Callable[[Connection], None]
"""records something in a transaction that another method has opened"""


def in_one(*changes: Change) -> Change:
    """Several changes as one."""

    def change(connection: Connection) -> None:
        for each in changes:
            each(connection)

    return change


class Batches:
    """The batch that one run applies now, and its pieces. A run has at most one batch, deleted once fully recorded.

    Every change calls `lease_check` in its transaction. `lease_check` raises when another process has taken over.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def begin(self, plan: str, pieces: Sequence[Piece], started_ms: int, lease_check: Change) -> None:
        """Record a batch before the run applies any of it. Raises WalferryError while another batch is unfinished."""
        batches = self._store.table("batches")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            lease_check(connection)
            if self._find(connection):
                raise WalferryError(f"run {self._run_id} has an unfinished batch already", run=self._run_id)
            connection.execute(insert(batches).values(run_id=self._run_id, plan=plan, started_ms=started_ms))
            self._insert(connection, pieces)

    def add(self, pieces: Sequence[Piece], lease_check: Change) -> None:
        """Record more pieces of the batch."""
        with self._store.database.write() as connection:
            lease_check(connection)
            self._insert(connection, pieces)

    def replan(self, plan: str, pieces: Sequence[Piece] | None, lease_check: Change) -> None:
        """Replace the plan of the batch, and its pieces unless `pieces` is None. None of the new pieces may already be
        done."""
        batches, found = self._store.table("batches"), self._store.table("pieces")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            lease_check(connection)
            connection.execute(update(batches).where(batches.c.run_id == self._run_id).values(plan=plan))
            if pieces is not None:
                connection.execute(delete(found).where(found.c.run_id == self._run_id))
                self._insert(connection, pieces)

    def now(self) -> BatchRecord | None:
        """The unfinished batch; None when there is none."""
        with self._store.database.read() as connection:
            found = self._find(connection)
        return found[0] if found else None

    def pieces(self, kind: PieceKind | None = None) -> list[Piece]:
        """The pieces of the unfinished batch, or those of a kind, by number."""
        table = self._store.table("pieces")
        wanted = [table.c.run_id == self._run_id] + ([table.c.kind == kind] if kind else [])
        with self._store.database.read() as connection:
            return fetch(connection, Piece, table, *wanted, order=(table.c.number,))

    def start(self, number: int, lease_check: Change) -> None:
        """Record another attempt: the run applies this piece from now on."""
        table = self._store.table("pieces")
        attempts = table.c.attempts + 1
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            lease_check(connection)
            connection.execute(
                update(table).where(*self._same(number)).values(state="running", attempts=attempts, started_ms=now_ms())
            )

    def done(self, number: int, outcome: str, lease_check: Change) -> Change:
        """A change that records a piece as done, in the transaction that records the piece's results."""
        table = self._store.table("pieces")

        def change(connection: Connection) -> None:
            lease_check(connection)
            values = {"state": "done", "finished_ms": now_ms(), "outcome": outcome}
            connection.execute(update(table).where(*self._same(number)).values(values))

        return change

    def finish(self, number: int, outcome: str, lease_check: Change) -> None:
        """Record a piece as done when there is nothing else to record."""
        with self._store.database.write() as connection:
            self.done(number, outcome, lease_check)(connection)

    def end(self, lease_check: Change) -> Change:
        """A change that removes the batch and its pieces, in the transaction that records the last results."""
        batches, pieces = self._store.table("batches"), self._store.table("pieces")

        def change(connection: Connection) -> None:
            lease_check(connection)
            connection.execute(delete(pieces).where(pieces.c.run_id == self._run_id))
            connection.execute(delete(batches).where(batches.c.run_id == self._run_id))

        return change

    def drop(self, lease_check: Change) -> None:
        """Remove the batch and its pieces without recording any result."""
        with self._store.database.write() as connection:
            self.end(lease_check)(connection)

    def _find(self, connection: Connection) -> list[BatchRecord]:
        batches = self._store.table("batches")
        return fetch(connection, BatchRecord, batches, batches.c.run_id == self._run_id)

    def _insert(self, connection: Connection, pieces: Sequence[Piece]) -> None:
        if pieces:
            rows = [to_columns(piece) | {"run_id": self._run_id} for piece in pieces]
            connection.execute(insert(self._store.table("pieces")), rows)

    def _same(self, number: int) -> tuple[ColumnElement[bool], ...]:
        table = self._store.table("pieces")
        return (table.c.run_id == self._run_id, table.c.number == number)

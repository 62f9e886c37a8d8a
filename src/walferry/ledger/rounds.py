"""The replay rounds of one run."""

from __future__ import annotations

from sqlalchemy import delete, insert

from walferry.ledger.rows import Round, to_columns
from walferry.ledger.store import Store, fetch


class Rounds:
    """The replay rounds of one run."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(self, round: Round) -> None:
        """Record a replay round; it replaces one with the same number."""
        rounds = self._store.table("rounds")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            connection.execute(delete(rounds).where(rounds.c.run_id == self._run_id, rounds.c.number == round.number))
            connection.execute(insert(rounds).values(to_columns(round) | {"run_id": self._run_id}))

    def all(self) -> list[Round]:
        """All rounds by number."""
        rounds = self._store.table("rounds")
        with self._store.database.read() as connection:
            return fetch(connection, Round, rounds, rounds.c.run_id == self._run_id, order=(rounds.c.number,))

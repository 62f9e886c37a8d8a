"""The replay rounds of one run."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from walferry.ledger.columns import from_columns, to_columns
from walferry.ledger.rows import Round, RoundTotals
from walferry.ledger.store import Store, fetch


class Rounds:
    """The replay rounds of one run. Every method except `all` has a cost independent of the number of rounds."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(self, round: Round) -> None:
        """Record a replay round; it replaces one with the same number."""
        rounds, totals = self._store.table("rounds"), self._store.table("round_totals")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            same = (rounds.c.run_id == self._run_id, rounds.c.number == round.number)
            replaced = fetch(connection, Round, rounds, *same)
            connection.execute(delete(rounds).where(*same))
            latest = self._latest(connection, 1, rounds.c.number < round.number)
            connection.execute(insert(rounds).values(to_columns(round) | {"run_id": self._run_id}))
            before = self._totals(connection)
            values = to_columns(before.with_round(round, latest[0] if latest else None, *replaced))
            if before.rounds:
                connection.execute(update(totals).where(totals.c.run_id == self._run_id).values(values))
            else:
                connection.execute(insert(totals).values(values | {"run_id": self._run_id}))

    def all(self) -> list[Round]:
        """All rounds by number."""
        rounds = self._store.table("rounds")
        with self._store.database.read() as connection:
            return fetch(connection, Round, rounds, rounds.c.run_id == self._run_id, order=(rounds.c.number,))

    def latest(self, count: int) -> list[Round]:
        """The latest rounds, at most that many, by number."""
        with self._store.database.read() as connection:
            return self._latest(connection, count)

    def last(self) -> Round | None:
        """The latest round; None before the first."""
        return next(iter(self.latest(1)), None)

    def since(self, at_ms: int) -> list[Round]:
        """The rounds that ended at that moment or later, by number."""
        found: list[Round] = []
        with self._store.database.read() as connection:
            count = 16
            while True:
                found = self._latest(connection, count)
                if len(found) < count or found[0].finished_ms < at_ms:
                    return [made for made in found if made.finished_ms >= at_ms]
                count *= 4

    def totals(self) -> RoundTotals:
        """Sums over all rounds."""
        with self._store.database.read() as connection:
            return self._totals(connection)

    def _latest(self, connection: Connection, count: int, *conditions: ColumnElement[bool]) -> list[Round]:
        rounds = self._store.table("rounds")
        mine = select(rounds).where(rounds.c.run_id == self._run_id, *conditions)
        rows = connection.execute(mine.order_by(rounds.c.number.desc()).limit(count)).mappings()
        return [from_columns(Round, row) for row in rows][::-1]  # type: ignore[arg-type]

    def _totals(self, connection: Connection) -> RoundTotals:
        totals = self._store.table("round_totals")
        found = fetch(connection, RoundTotals, totals, totals.c.run_id == self._run_id)
        return found[0] if found else RoundTotals()

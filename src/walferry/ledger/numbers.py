"""The log sequence numbers of one run's regions: how far they go, and which are missing in between."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, delete, insert, select, update

from walferry.clock import now_ms
from walferry.ledger.batches import Change
from walferry.ledger.rows import NumberGap, RegionNumber, to_columns
from walferry.ledger.store import Store, chunks, fetch


class Numbers:
    """The sequence numbers of one run's regions."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def last(self, regions: Collection[str]) -> dict[str, RegionNumber]:
        """The last applied entry of these regions, by encoded name."""
        table = self._store.table("region_numbers")
        found: dict[str, RegionNumber] = {}
        with self._store.database.read() as connection:
            for names in chunks(regions):
                rows = fetch(connection, RegionNumber, table, table.c.run_id == self._run_id, table.c.region.in_(names))
                found.update((row.region, row) for row in rows)
        return found

    def change(self, last: Sequence[RegionNumber], gaps: Sequence[NumberGap], forgotten: Collection[str]) -> Change:
        """Records how far regions go now and what is missing, in the transaction of the files that show it.

        `forgotten`: tables whose numbers begin anew, because some of the log was left out.
        """
        table, holes = self._store.table("region_numbers"), self._store.table("number_gaps")

        def record(connection: Connection) -> None:
            mine = table.c.run_id == self._run_id
            for names in chunks(number.region for number in last):
                connection.execute(delete(table).where(mine, table.c.region.in_(names)))
            if last:
                connection.execute(insert(table), [to_columns(one) | {"run_id": self._run_id} for one in last])
            if forgotten:
                connection.execute(delete(table).where(mine, table.c.table_name.in_(sorted(forgotten))))
            for gap in gaps:
                same = (
                    holes.c.run_id == self._run_id, holes.c.region == gap.region, holes.c.first_missing == gap.first
                )  # fmt: skip
                if connection.execute(select(holes.c.region).where(*same)).first() is None:
                    connection.execute(insert(holes).values(to_columns(gap) | {"run_id": self._run_id}))
                    self._store.note(connection, "numbers missing", self._run_id, to_columns(gap))

        return record

    def gaps(self, *, accepted: bool | None = None) -> list[NumberGap]:
        """The missing numbers, oldest first: all, or those that a person has accepted, or has not."""
        holes = self._store.table("number_gaps")
        wanted = [holes.c.run_id == self._run_id]
        if accepted is not None:
            wanted.append(holes.c.accepted_ms.is_not(None) if accepted else holes.c.accepted_ms.is_(None))
        with self._store.database.read() as connection:
            return fetch(connection, NumberGap, holes, *wanted, order=(holes.c.found_ms, holes.c.region))

    def accept(self, table: str, reason: str, actor: str) -> None:
        """Record a person's decision that nothing of a table was lost where numbers are missing until now."""
        holes = self._store.table("number_gaps")
        open_ones = (holes.c.run_id == self._run_id, holes.c.table_name == table, holes.c.accepted_ms.is_(None))
        values = {"accepted_ms": now_ms(), "accepted_by": actor, "reason": reason}
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            connection.execute(update(holes).where(*open_ones).values(values))
            self._store.note(connection, "missing numbers accepted", self._run_id, {"table": table}, reason, actor)

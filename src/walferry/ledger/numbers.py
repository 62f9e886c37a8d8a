"""The log sequence numbers of one run's regions: the last applied number, and the missing numbers before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from walferry.clock import now_ms
from walferry.ledger.batches import Change
from walferry.ledger.columns import from_columns, to_columns
from walferry.ledger.rows import NumberGap, RegionNumber
from walferry.ledger.store import Store, chunks, fetch


@dataclass(frozen=True)
class CountedNumbers:
    """Missing numbers of a table that do not shut the gate, and a person's decision about them for the whole run."""

    table: str = field(metadata={"column": "table_name"})
    places: int
    numbers: int
    accepted_ms: int | None = None
    accepted_by: str | None = None
    reason: str | None = None


class RegionNumbers:
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

    def change(
        self,
        last: Sequence[RegionNumber],
        gaps: Sequence[NumberGap],
        forgotten: Collection[str],
        *,
        only_count: bool = False,
    ) -> Change:
        """A change that records the last numbers and the gaps, in the transaction that records the files.

        `forgotten`: tables whose numbers start again, because the replay left out some of the log. `only_count`: the
        gaps prove nothing, so they are counted and not listed. Gaps of tables that a person has decided about are
        only counted, too.
        """
        table = self._store.table("region_numbers")

        def record(connection: Connection) -> None:
            mine = table.c.run_id == self._run_id
            for names in chunks(number.region for number in last):
                connection.execute(delete(table).where(mine, table.c.region.in_(names)))
            if last:
                connection.execute(insert(table), [to_columns(one) | {"run_id": self._run_id} for one in last])
            if forgotten:
                connection.execute(delete(table).where(mine, table.c.table_name.in_(sorted(forgotten))))
            decided = {row.table for row in self._counted(connection) if row.accepted_by} if gaps else set()
            self._count(connection, [gap for gap in gaps if only_count or gap.table in decided])
            self._list(connection, [gap for gap in gaps if not only_count and gap.table not in decided])

        return record

    def _list(self, connection: Connection, gaps: Sequence[NumberGap]) -> None:
        holes = self._store.table("number_gaps")
        for gap in gaps:
            same = (holes.c.run_id == self._run_id, holes.c.region == gap.region, holes.c.first_missing == gap.first)
            if connection.execute(select(holes.c.region).where(*same)).first() is None:
                connection.execute(insert(holes).values(to_columns(gap) | {"run_id": self._run_id}))
                self._store.note(connection, "numbers missing", self._run_id, to_columns(gap))

    def _count(self, connection: Connection, gaps: Sequence[NumberGap]) -> None:
        sums = self._store.table("counted_numbers")
        places, numbers = Counter(gap.table for gap in gaps), Counter[str]()
        for gap in gaps:
            numbers[gap.table] += gap.last - gap.first + 1
        for table, here in places.items():
            more = {"places": sums.c.places + here, "numbers": sums.c.numbers + numbers[table]}
            self._put(connection, CountedNumbers(table, here, numbers[table]), more)

    def _put(self, connection: Connection, new: CountedNumbers, change: dict[str, Any]) -> None:
        """Change a table's row, or insert a new one."""
        sums = self._store.table("counted_numbers")
        same = (sums.c.run_id == self._run_id, sums.c.table_name == new.table)
        if connection.execute(update(sums).where(*same).values(change)).rowcount == 0:
            connection.execute(insert(sums).values(to_columns(new) | {"run_id": self._run_id}))

    def counted(self) -> list[CountedNumbers]:
        """The counted numbers, and the decisions for the whole run, by table."""
        with self._store.database.read() as connection:
            return self._counted(connection)

    def _counted(self, connection: Connection) -> list[CountedNumbers]:
        sums = self._store.table("counted_numbers")
        return fetch(connection, CountedNumbers, sums, sums.c.run_id == self._run_id, order=(sums.c.table_name,))

    def undecided(self) -> list[tuple[NumberGap, int]]:
        """For each table with gaps that nobody has accepted: the oldest gap, and the number of gaps."""
        holes = self._store.table("number_gaps")
        mine = (holes.c.run_id == self._run_id, holes.c.accepted_ms.is_(None))
        found = []
        with self._store.database.read() as connection:
            by_table = select(holes.c.table_name, func.count()).where(*mine).group_by(holes.c.table_name)
            for table, places in connection.execute(by_table.order_by(holes.c.table_name)).all():
                oldest = select(holes).where(*mine, holes.c.table_name == table)
                oldest = oldest.order_by(holes.c.found_ms, holes.c.region, holes.c.first_missing).limit(1)
                row = connection.execute(oldest).mappings().one()
                found.append((from_columns(NumberGap, row), int(places)))  # type: ignore[arg-type]
        return found

    def gaps(self, *, accepted: bool | None = None) -> list[NumberGap]:
        """The missing numbers, oldest first: all, or those that a person has accepted, or has not."""
        holes = self._store.table("number_gaps")
        wanted = [holes.c.run_id == self._run_id]
        if accepted is not None:
            wanted.append(holes.c.accepted_ms.is_not(None) if accepted else holes.c.accepted_ms.is_(None))
        with self._store.database.read() as connection:
            return fetch(connection, NumberGap, holes, *wanted, order=(holes.c.found_ms, holes.c.region))

    def accept(self, table: str, reason: str, actor: str) -> None:
        """Record a person's decision that nothing of a table was lost where its numbers are, or will be, missing."""
        holes = self._store.table("number_gaps")
        open_ones = (holes.c.run_id == self._run_id, holes.c.table_name == table, holes.c.accepted_ms.is_(None))
        values: dict[str, Any] = {"accepted_ms": now_ms(), "accepted_by": actor, "reason": reason}
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            connection.execute(update(holes).where(*open_ones).values(values))
            self._put(connection, CountedNumbers(table, 0, 0, **values), values)
            self._store.note(connection, "missing numbers accepted", self._run_id, {"table": table}, reason, actor)

"""What one run of kind `receive` was sent and has applied, and the processes that serve it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from walferry.clock import now_ms
from walferry.ledger.batches import Change, in_one
from walferry.ledger.columns import to_columns
from walferry.ledger.store import Store, chunks, fetch

GONE_MS = 60_000
"""a process without a heartbeat for this long counts as gone"""
_PAGE = 1_000
"""contents that are read at a time"""
_UNCHECKED = in_one()
_NONE: Mapping[str, int] = {}
Content = bytes
ReceiverState = Literal["serving", "left"]


@dataclass(frozen=True)
class ReceivedCall:
    """What one call of the source had for one table; all of it is at the target."""

    table: str
    entries: int
    """that were applied"""
    cells: int
    bytes: int
    repeated: int
    """entries that had been applied before"""
    late: int
    """entries that came after newer ones of their region"""
    newest_ms: int | None
    """the highest write time of its entries; None without entries that were applied"""
    content: Content = field(repr=False)
    """which entries were applied, in an encoding of the caller's"""


@dataclass(frozen=True)
class ReceivedTotal:
    """Sums over all calls of a table."""

    table: str = field(metadata={"column": "table_name"})
    calls: int
    entries: int
    cells: int
    bytes: int
    repeated: int
    late: int
    newest_ms: int | None
    """the highest write time that was applied; None: none was"""
    at_ms: int | None
    """when that was applied"""
    last_call_ms: int

    def with_call(self, call: ReceivedCall, at_ms: int) -> ReceivedTotal:
        """The sums with another call."""
        newer = call.newest_ms is not None and (self.newest_ms is None or call.newest_ms > self.newest_ms)
        return replace(
            self,
            calls=self.calls + 1,
            entries=self.entries + call.entries,
            cells=self.cells + call.cells,
            bytes=self.bytes + call.bytes,
            repeated=self.repeated + call.repeated,
            late=self.late + call.late,
            newest_ms=call.newest_ms if newer else self.newest_ms,
            at_ms=at_ms if newer else self.at_ms,
            last_call_ms=at_ms,
        )


@dataclass(frozen=True)
class Receiver:
    """A process that serves the run, as of its heartbeat at `at_ms`."""

    server: str
    """as HBase names a server: host,port,start code"""
    state: ReceiverState
    since_ms: int
    at_ms: int
    tables: frozenset[str]
    """target tables that it writes"""
    calls: int
    """that it has answered"""
    refused: int
    held_bytes: int
    """of calls under way"""
    last_refusal: str = ""
    """why it refused a call the last time"""
    last_refusal_ms: int | None = None

    def serves(self, at_ms: int) -> bool:
        """Whether it serves at that moment."""
        return self.state == "serving" and at_ms - self.at_ms < GONE_MS


class Received:
    """What one run was sent. Each method that changes something is one transaction.

    The audit trail has no lines about calls, floors and heartbeats: there may be hundreds a second.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def applied(self, calls: Sequence[ReceivedCall], check: Change, above: Mapping[str, int] = _NONE) -> dict[str, int]:
        """Record calls whose entries are at the target, in this order, and add them to the sums. A call has no row if
        all of it was applied before. Returns the number of each table's newest row; numbers only rise, and new ones are
        higher than those in `above`, by table.

        `check` is called in the same transaction, and raises if the lease is lost. Writes no audit line. Raises the
        errors of `check`, and UsageError if the run has ended.
        """
        table, at_ms = self._store.table("received_calls"), now_ms()
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            check(connection)
            totals = {total.table: total for total in self._totals(connection, {call.table for call in calls})}
            new = {call.table for call in calls} - totals.keys()
            rows, numbers = [], self._numbers(connection, {call.table for call in calls})
            numbers = {name: max(number, above.get(name, 0)) for name, number in numbers.items()}
            for call in calls:
                before = totals.get(call.table) or ReceivedTotal(call.table, 0, 0, 0, 0, 0, 0, None, None, at_ms)
                totals[call.table] = before.with_call(call, at_ms)
                if call.entries:
                    numbers[call.table] += 1
                    rows.append(self._row(call, numbers[call.table], at_ms))
            if rows:
                connection.execute(insert(table), rows)
            for total in totals.values():
                self._keep(connection, total, new=total.table in new)
        return numbers

    def take_back(self, table: str, above: int, check: Change) -> int:
        """Remove the rows of a table with numbers above one, and their part of the sums: what they say was not applied
        after all, and comes again. Returns how many. `newest_ms` stays until it has come. `check` as in `applied`."""
        calls = self._store.table("received_calls")
        these = (*self._of(calls, table), calls.c.number > above)
        summed = ("entries", "cells", "bytes", "repeated", "late")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            check(connection)
            columns = [func.count().label("calls"), *(func.coalesce(func.sum(calls.c[name]), 0) for name in summed)]
            count, *sums = (int(value) for value in connection.execute(select(*columns).where(*these)).one())
            if count:
                connection.execute(delete(calls).where(*these))
                (total,) = self._totals(connection, {table})
                left = {name: getattr(total, name) - value for name, value in zip(summed, sums, strict=True)}
                if total.calls > count:
                    self._keep(connection, replace(total, calls=total.calls - count, **left), new=False)
                else:
                    totals = self._store.table("received_totals")
                    connection.execute(delete(totals).where(*self._of(totals, table)))
        return count

    def contents(self, table: str) -> Iterator[bytes]:
        """What each call of a table that is not folded applied, oldest first."""
        calls, last = self._store.table("received_calls"), 0
        while True:
            query = (
                select(calls.c.number, calls.c.content)
                .where(*self._of(calls, table), calls.c.number > last)
                .order_by(calls.c.number)
                .limit(_PAGE)
            )
            with self._store.database.read() as connection:
                page = connection.execute(query).all()
            for number, content in page:
                last = number
                yield content
            if len(page) < _PAGE:
                return

    def floors(self, table: str) -> dict[str, int]:
        """By region, the highest number of the calls of a table that were folded."""
        floors = self._store.table("received_floors")
        with self._store.database.read() as connection:
            return self._floors(connection, floors, table)

    def fold(self, table: str, keep: int, floors: Mapping[str, int], check: Change = _UNCHECKED) -> None:
        """Remove the rows of all but the newest `keep` calls of a table, and raise its floors to at least these.

        `check` as in `applied`: a process that has lost the table's lease does not know what newer calls applied.
        """
        calls, known = self._store.table("received_calls"), self._store.table("received_floors")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            check(connection)
            newest = select(func.max(calls.c.number)).where(*self._of(calls, table))
            last = connection.execute(newest).scalar_one() or 0
            connection.execute(delete(calls).where(*self._of(calls, table), calls.c.number <= last - keep))
            before = self._floors(connection, known, table)
            raised = {region: number for region, number in floors.items() if number > before.get(region, -1)}
            for names in chunks(raised.keys() & before.keys()):
                connection.execute(delete(known).where(*self._of(known, table), known.c.region.in_(names)))
            if raised:
                rows = [
                    {"run_id": self._run_id, "table_name": table, "region": region, "highest": number}
                    for region, number in sorted(raised.items())
                ]
                connection.execute(insert(known), rows)

    def totals(self) -> list[ReceivedTotal]:
        """The sums of each table that a call had entries of, by name."""
        with self._store.database.read() as connection:
            return self._totals(connection)

    def cells_since(self, moment_ms: int) -> int:
        """Cells of the calls since a moment that are not folded."""
        calls = self._store.table("received_calls")
        query = select(func.sum(calls.c.cells)).where(calls.c.run_id == self._run_id, calls.c.at_ms >= moment_ms)
        with self._store.database.read() as connection:
            return int(connection.execute(query).scalar_one() or 0)

    def beat(self, receiver: Receiver) -> None:
        """Record a heartbeat in place of the process's previous one. Raises UsageError if the run has ended, unless the
        process has left."""
        table = self._store.table("receivers")
        values = to_columns(receiver)
        with self._store.database.write() as connection:
            if receiver.state != "left":
                self._store.unfinished(connection, self._run_id)
            same = (table.c.run_id == self._run_id, table.c.server == receiver.server)
            if not connection.execute(update(table).where(*same).values(values)).rowcount:
                connection.execute(insert(table).values(values | {"run_id": self._run_id}))

    def receivers(self) -> list[Receiver]:
        """The processes that have served the run and are not forgotten, by server."""
        table = self._store.table("receivers")
        with self._store.database.read() as connection:
            return fetch(connection, Receiver, table, table.c.run_id == self._run_id, order=(table.c.server,))

    def forget_receivers(self, before_ms: int) -> None:
        """Forget processes whose last heartbeat was before a moment."""
        table = self._store.table("receivers")
        with self._store.database.write() as connection:
            connection.execute(delete(table).where(table.c.run_id == self._run_id, table.c.at_ms < before_ms))

    def _row(self, call: ReceivedCall, number: int, at_ms: int) -> dict[str, Any]:
        return {
            "run_id": self._run_id, "table_name": call.table, "number": number, "at_ms": at_ms,
            "entries": call.entries, "cells": call.cells, "bytes": call.bytes, "repeated": call.repeated,
            "late": call.late, "content": call.content,
        }  # fmt: skip

    def _numbers(self, connection: Connection, names: set[str]) -> dict[str, int]:
        """The number of the newest row of each of these tables; 0: there is none. A fold keeps the newest rows."""
        calls = self._store.table("received_calls")
        newest = select(func.max(calls.c.number))
        return {name: connection.execute(newest.where(*self._of(calls, name))).scalar_one() or 0 for name in names}

    def _totals(self, connection: Connection, names: set[str] | None = None) -> list[ReceivedTotal]:
        table = self._store.table("received_totals")
        wanted = [table.c.run_id == self._run_id]
        if names is not None:
            wanted.append(table.c.table_name.in_(sorted(names)))
        return fetch(connection, ReceivedTotal, table, *wanted, order=(table.c.table_name,))

    def _keep(self, connection: Connection, total: ReceivedTotal, *, new: bool) -> None:
        table, values = self._store.table("received_totals"), to_columns(total)
        if new:
            connection.execute(insert(table).values(values | {"run_id": self._run_id}))
        else:
            connection.execute(update(table).where(*self._of(table, total.table)).values(values))

    def _floors(self, connection: Connection, floors: Table, table: str) -> dict[str, int]:
        query = select(floors.c.region, floors.c.highest).where(*self._of(floors, table)).order_by(floors.c.region)
        return {row.region: row.highest for row in connection.execute(query)}

    def _of(self, rows: Table, table: str) -> tuple[Any, ...]:
        return rows.c.run_id == self._run_id, rows.c.table_name == table

"""What one run could not apply, and the regions held because of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

from sqlalchemy import Connection, delete, func, insert, select, update

from walferry.clock import now_ms
from walferry.errors import UsageError, WalferryError
from walferry.ledger.batches import Change
from walferry.ledger.columns import to_columns
from walferry.ledger.rows import Hold, Quarantined, QuarantineItem, Resolution
from walferry.ledger.store import Store, fetch


class Quarantine:
    """What one run could not apply, and the regions held because of it."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def put(
        self,
        items: Sequence[QuarantineItem],
        holds: Callable[[Sequence[int]], Sequence[Hold]] = lambda ids: (),
        lease_check: Change = lambda connection: None,
    ) -> list[int]:
        """Record items with their bytes, and the holds that `holds` makes from their ids; return the ids in order.

        An item that is already recorded keeps its id and state. Raises what `lease_check` raises.
        """
        with self._store.database.write() as connection:
            lease_check(connection)
            return self.put_in(connection, items, holds)

    def put_in(
        self,
        connection: Connection,
        items: Sequence[QuarantineItem],
        holds: Callable[[Sequence[int]], Sequence[Hold]] = lambda ids: (),
    ) -> list[int]:
        """Like `put`, within a transaction of the caller, who has checked the lease."""
        table = self._store.table("quarantine")
        ids: list[int] = []
        self._store.run(connection, self._run_id)
        newest = connection.execute(select(func.coalesce(func.max(table.c.quarantine_id), 0))).scalar_one()
        for item in items:
            columns = to_columns(item)
            same = [table.c.run_id == self._run_id]
            same += [table.c[c] == columns[c] for c in ("file", "start_offset", "reason", "table_name", "region")]
            known = connection.execute(select(table.c.quarantine_id).where(*same)).scalar_one_or_none()
            if known is None:
                known = newest = newest + 1
                columns |= {
                    "quarantine_id": known,
                    "run_id": self._run_id,
                    "state": "held",
                    "recorded_ms": now_ms(),
                }
                connection.execute(insert(table).values(columns))
                inputs = {k: v for k, v in columns.items() if k != "data"}
                self._store.note(connection, "quarantine", self._run_id, inputs)
            ids.append(known)
        self._hold(connection, holds(ids))
        return ids

    def items(self, state: str | None = None) -> list[Quarantined]:
        """Items with their bytes; `state` held or released."""
        table = self._store.table("quarantine")
        conditions = [table.c.run_id == self._run_id] + ([table.c.state == state] if state else [])
        with self._store.database.read() as connection:
            return fetch(connection, Quarantined, table, *conditions, order=(table.c.quarantine_id,))

    def release(self, quarantine_id: int, resolution: Resolution, reason: str, actor: str) -> Quarantined:
        """Record an operator's decision about an item; its regions stay held until `drop_holds`.

        Repeating a decision changes nothing. Raises UsageError for an unknown item, an empty reason, an unknown
        resolution, and an item that was already released with another resolution.
        """
        if resolution not in get_args(Resolution):
            raise UsageError(f"resolution {resolution!r} is not one of {', '.join(get_args(Resolution))}")
        if not reason.strip():
            raise UsageError(f"give a reason for releasing quarantine item {quarantine_id}: it is recorded")
        table = self._store.table("quarantine")
        with self._store.database.write() as connection:
            of_run = (table.c.run_id == self._run_id, table.c.quarantine_id == quarantine_id)
            known = fetch(connection, Quarantined, table, *of_run)
            if not known:
                raise UsageError(f"run {self._run_id} has no quarantine item {quarantine_id}")
            item = known[0]
            if item.state == "released":
                if item.resolution == resolution:
                    return item
                raise UsageError(
                    f"quarantine item {quarantine_id} was released by {item.released_by} as {item.resolution}",
                    quarantine_id=quarantine_id,
                )
            item = replace(
                item,
                state="released",
                resolution=resolution,
                release_reason=reason,
                released_by=actor,
                released_ms=now_ms(),
            )
            connection.execute(update(table).where(table.c.quarantine_id == quarantine_id).values(to_columns(item)))
            inputs = {"quarantine_id": quarantine_id, "resolution": resolution, "reason": reason}
            self._store.note(connection, "release quarantine", item.run_id, inputs, actor=actor)
        return item

    def hold(self, holds: Sequence[Hold], lease_check: Change = lambda connection: None) -> None:
        """Hold regions because of a quarantined item; repeating a hold changes nothing.

        Raises what `lease_check` raises.
        """
        with self._store.database.write() as connection:
            lease_check(connection)
            self._hold(connection, holds)

    def holds(self) -> list[Hold]:
        """The held regions, by file and offset."""
        with self._store.database.read() as connection:
            return self._holds(connection)

    def drop_holds(self, quarantine_id: int, lease_check: Change = lambda connection: None) -> None:
        """Record that all edits held for a released item were applied. Raises WalferryError while the item is held, and
        what `lease_check` raises."""
        table, quarantine = self._store.table("held_regions"), self._store.table("quarantine")
        after = (table.c.run_id == self._run_id, table.c.quarantine_id == quarantine_id)
        with self._store.database.write() as connection:
            lease_check(connection)
            held = select(quarantine.c.state).where(quarantine.c.quarantine_id == quarantine_id)
            if connection.execute(held).scalar_one_or_none() == "held":
                raise WalferryError(
                    f"quarantine item {quarantine_id} is not released: its regions stay held",
                    quarantine_id=quarantine_id,
                )
            if connection.execute(delete(table).where(*after)).rowcount:
                self._store.note(connection, "drop holds", self._run_id, {"quarantine_id": quarantine_id})

    def _hold(self, connection: Connection, holds: Sequence[Hold]) -> None:
        table = self._store.table("held_regions")
        known = {_hold_key(hold) for hold in self._holds(connection)}
        new = list({_hold_key(hold): hold for hold in holds if _hold_key(hold) not in known}.values())
        if new:
            connection.execute(insert(table), [to_columns(hold) | {"run_id": self._run_id} for hold in new])
            inputs = {"holds": [to_columns(hold) for hold in new]}
            self._store.note(connection, "hold regions", self._run_id, inputs)

    def _holds(self, connection: Connection) -> list[Hold]:
        table = self._store.table("held_regions")
        order = (table.c.file, table.c.from_offset, table.c.table_name, table.c.region)
        return fetch(connection, Hold, table, table.c.run_id == self._run_id, order=order)


def _hold_key(hold: Hold) -> tuple[int, str, str, str]:
    return (hold.quarantine_id, hold.file, hold.table, hold.region)

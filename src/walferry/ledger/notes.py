"""What one run must remember between its steps besides the facts of its phases."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, select

from walferry.clock import now_ms
from walferry.ledger.columns import to_json
from walferry.ledger.store import Store


class Notes:
    """One value for each name and subject. The last gate uses no note, and the audit trail has no line about notes."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def get(self, name: str, subject: str = "") -> dict[str, Any] | None:
        """The current value; None when there is none."""
        notes, same = self._one(name, subject)
        with self._store.database.read() as connection:
            kept = connection.execute(select(notes.c.facts).where(*same)).scalar_one_or_none()
        return None if kept is None else dict(json.loads(kept))

    def named(self, name: str) -> dict[str, tuple[dict[str, Any], int]]:
        """All notes of a name: for each subject its value, and when it was kept (ms since 1970)."""
        notes = self._store.table("notes")
        query = select(notes.c.subject, notes.c.facts, notes.c.at_ms)
        same = (notes.c.run_id == self._run_id, notes.c.name == name)
        with self._store.database.read() as connection:
            return {subject: (json.loads(facts), at) for subject, facts, at in connection.execute(query.where(*same))}

    def drop(self, name: str, subject: str = "") -> None:
        """Remove a value, if there is one."""
        notes, same = self._one(name, subject)
        with self._store.database.write() as connection:
            connection.execute(delete(notes).where(*same))

    def drop_if(self, name: str, subject: str, is_so: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove a value if there is one and `is_so` is true for it, in one transaction."""
        notes, same = self._one(name, subject)
        with self._store.database.write() as connection:
            kept = connection.execute(select(notes.c.facts).where(*same)).scalar_one_or_none()
            if kept is not None and is_so(json.loads(kept)):
                connection.execute(delete(notes).where(*same))

    def drop_each(self, name: str, subjects: Collection[str]) -> None:
        """Remove the values of these subjects, in one transaction."""
        notes = self._store.table("notes")
        with self._store.database.write() as connection:
            for subject in subjects:
                connection.execute(delete(notes).where(*self._one(name, subject)[1]))

    def drop_named(self, name: str) -> None:
        """Remove all values of a name."""
        notes = self._store.table("notes")
        with self._store.database.write() as connection:
            connection.execute(delete(notes).where(notes.c.run_id == self._run_id, notes.c.name == name))

    def keep(
        self,
        name: str,
        facts: Mapping[str, Any],
        subject: str = "",
        also: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """Keep a value in place of the previous one, in one transaction with `also`, which may raise."""
        with self._store.database.write() as connection:
            also(connection)
            self._keep(connection, name, facts, subject)

    def keep_each(
        self,
        name: str,
        facts: Mapping[str, Mapping[str, Any]],
        also: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """Keep a value for each subject, in one transaction with `also`, which may raise."""
        with self._store.database.write() as connection:
            also(connection)
            for subject, value in facts.items():
                self._keep(connection, name, value, subject)

    def keeping(self, name: str, facts: Mapping[str, Any], subject: str = "") -> Callable[[Connection], None]:
        """A change that keeps a value in place of the previous one, for a transaction of others."""
        return lambda connection: self._keep(connection, name, facts, subject)

    def keep_text(self, name: str, text: str) -> None:
        """Keep a text in place of the previous one; "" removes that."""
        if text:
            self.keep(name, {"why": text})
        elif self.text(name):
            self.drop(name)

    def text(self, name: str) -> str:
        """The text that `keep_text` kept; "" when there is none."""
        kept = self.get(name)
        return "" if kept is None else str(kept["why"])

    def keep_unless(
        self, name: str, facts: Mapping[str, Any], subject: str, holds: Callable[[str, Mapping[str, Any], int], bool]
    ) -> tuple[dict[str, Any], int] | None:
        """Keep a value, unless a note of that name exists for which `holds` is true, given its subject, its value and
        when it was kept. If so, keep nothing, and return that note's value and time.

        Of several processes that do this at once, the first one's value is kept.
        """
        notes = self._store.table("notes")
        query = select(notes.c.subject, notes.c.facts, notes.c.at_ms)
        same = (notes.c.run_id == self._run_id, notes.c.name == name)
        with self._store.database.write() as connection:
            for about, kept, at_ms in connection.execute(query.where(*same)):
                if holds(about, known := json.loads(kept), at_ms):
                    return known, at_ms
            self._keep(connection, name, facts, subject)
        return None

    def change(
        self, name: str, change: Callable[[dict[str, Any] | None], Mapping[str, Any] | None], subject: str = ""
    ) -> bool:
        """Keep the result of `change` on the current value (None when there is none), in one transaction. When `change`
        returns None, the value stays. Returns whether the value changed."""
        notes, same = self._one(name, subject)
        with self._store.database.write() as connection:
            kept = connection.execute(select(notes.c.facts).where(*same)).scalar_one_or_none()
            facts = change(None if kept is None else json.loads(kept))
            if facts is None:
                return False
            self._keep(connection, name, facts, subject)
        return True

    def advance(
        self,
        name: str,
        facts: Mapping[str, Any] | None,
        subject: str,
        also: Callable[[Connection, dict[str, Any]], None],
    ) -> bool:
        """Replace an existing value, or remove it (`facts` None), in one transaction with `also`.

        `also` receives the old value and may raise. Returns False when the value no longer exists.
        """
        notes, same = self._one(name, subject)
        with self._store.database.write() as connection:
            kept = connection.execute(select(notes.c.facts).where(*same)).scalar_one_or_none()
            if kept is None:
                return False
            also(connection, json.loads(kept))
            if facts is None:
                connection.execute(delete(notes).where(*same))
            else:
                self._keep(connection, name, facts, subject)
        return True

    def _one(self, name: str, subject: str) -> tuple[Table, tuple[ColumnElement[bool], ...]]:
        """The table of notes, and the conditions that select one note."""
        notes = self._store.table("notes")
        return notes, (notes.c.run_id == self._run_id, notes.c.name == name, notes.c.subject == subject)

    def _keep(self, connection: Connection, name: str, facts: Mapping[str, Any], subject: str) -> None:
        notes, same = self._one(name, subject)
        self._store.run(connection, self._run_id)
        connection.execute(delete(notes).where(*same))
        connection.execute(
            insert(notes).values(run_id=self._run_id, name=name, subject=subject, facts=to_json(facts), at_ms=now_ms())
        )

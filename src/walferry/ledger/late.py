"""Edits of one run's tables past its end fence, and what a person decided about each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import insert, select, update

from walferry.clock import now_ms
from walferry.ledger.columns import to_columns
from walferry.ledger.notes import Notes
from walferry.ledger.store import Store, fetch

LateDecision = Literal["", "apply", "reject"]


_LOAD = "late bulk load"


@dataclass(frozen=True)
class LateEdit:
    """An entry of the log with edits of a migrated table, past the end fence."""

    file: str
    start: int = field(metadata={"column": "start_offset"})
    table: str = field(metadata={"column": "table_name"})
    region: str
    sequence_number: int
    write_ms: int
    """when the source's region server wrote it"""
    cells: int
    row: bytes = field(metadata={"column": "first_row"})
    """of its first cell"""
    found_ms: int
    decision: LateDecision = ""
    reason: str = ""
    decided_by: str = ""
    decided_ms: int | None = None

    @property
    def place(self) -> tuple[str, int]:
        """The file and where in it the entry begins."""
        return self.file, self.start


class LateEdits:
    """Edits of one run's tables past its end fence, and what a person decided about each."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._notes = Notes(store, run_id)

    def all(self) -> list[LateEdit]:
        """Every late edit, in the order in which the run found them."""
        table = self._store.table("late_edits")
        order = (table.c.found_ms, table.c.file, table.c.start_offset)
        with self._store.database.read() as connection:
            return fetch(connection, LateEdit, table, table.c.run_id == self._run_id, order=order)

    def rejected(self) -> frozenset[tuple[str, int]]:
        """(file, offset) of the entries that a person rejected: the replay always leaves them out."""
        return frozenset(edit.place for edit in self.all() if edit.decision == "reject")

    def note_load(self, edit: LateEdit) -> None:
        """Record that an entry is the marker of a bulk load: the cells are in files, not in the log."""
        self._notes.keep(_LOAD, {"table": edit.table}, f"{edit.file} {edit.start}")

    def rejected_loads(self) -> frozenset[str]:
        """The tables with a bulk load past the end fence that a person rejected."""
        loads = self._notes.named(_LOAD)
        return frozenset(e.table for e in self.all() if e.decision == "reject" and f"{e.file} {e.start}" in loads)

    def found(self, edits: Sequence[LateEdit]) -> list[LateEdit]:
        """Record edits. Returns the new ones."""
        if not edits:
            return []
        table = self._store.table("late_edits")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            query = select(table.c.file, table.c.start_offset).where(table.c.run_id == self._run_id)
            known = {(file, start) for file, start in connection.execute(query)}
            new = [edit for edit in edits if (edit.file, edit.start) not in known]
            if new:
                connection.execute(insert(table), [to_columns(edit) | {"run_id": self._run_id} for edit in new])
                inputs = {"edits": len(new), "first": f"{new[0].file} at byte {new[0].start}", "table": new[0].table}
                self._store.note(connection, "late edits", self._run_id, inputs)
        return new

    def decide(self, edits: Collection[LateEdit], decision: LateDecision, reason: str, actor: str) -> None:
        """Record a person's decision about edits. An earlier decision about an edit stays."""
        table = self._store.table("late_edits")
        values = {"decision": decision, "reason": reason, "decided_by": actor, "decided_ms": now_ms()}
        with self._store.database.write() as connection:
            for edit in edits:
                same = (table.c.run_id == self._run_id, table.c.file == edit.file, table.c.start_offset == edit.start)
                connection.execute(update(table).where(*same, table.c.decision == "").values(values))
            named = [f"{edit.table} in {edit.file} at byte {edit.start}" for edit in list(edits)[:200]]
            inputs = {"decision": decision, "reason": reason, "edits": len(edits), "first": named}
            self._store.note(connection, "decide late edits", self._run_id, inputs, actor=actor)

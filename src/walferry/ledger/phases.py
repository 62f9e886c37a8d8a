"""The phases of one run. The subject is a table, or "" for the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import insert, literal, select, update

from walferry.clock import now_ms
from walferry.errors import TransientError, WalferryError
from walferry.ledger.batches import Change
from walferry.ledger.columns import from_columns, to_columns
from walferry.ledger.rows import PhaseRecord, PhaseState
from walferry.ledger.store import Store, fetch


class SupersededError(TransientError):
    """While an attempt ran, its basis changed; facts `run`, `phase`, `subject`, `attempt`, `newest`."""


class Phases:
    """The phases of one run. The subject is a table, or "" for the whole run."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def facts(self, phase: str, subject: str = "") -> dict[str, Any] | None:
        """The facts of the phase if it is done, otherwise None."""
        known = self.find(phase, subject)
        return known.facts if known is not None and known.state == "done" else None

    def start(self, phase: str, subject: str = "") -> int:
        """Start a phase, or start it again. Returns the attempt's number. Raises UsageError when the run has ended."""
        return self._set(phase, subject, "running")

    def finish(
        self,
        phase: str,
        facts: Mapping[str, Any],
        subject: str = "",
        attempt: int | None = None,
        lease_check: Change = lambda connection: None,
    ) -> None:
        """Record that the phase is done; later phases and the report use its `facts`.

        Calls `lease_check` in the same transaction, and raises what it raises. Raises WalferryError when this attempt
        was superseded, since its facts may no longer hold. That error is a SupersededError, after which a retry helps,
        unless another process is doing the phase or has done it.
        """
        newest = self._set(phase, subject, "done", facts=facts, attempt=attempt, lease_check=lease_check)
        if attempt is not None and newest != attempt:
            known = self.find(phase, subject)
            kind = SupersededError if known is not None and known.state == "failed" else WalferryError
            raise kind(
                f"attempt {attempt} at {phase} {subject}".rstrip()
                + f" of run {self._run_id} was superseded by attempt {newest}: its result is not recorded",
                run=self._run_id, phase=phase, subject=subject, attempt=attempt, newest=newest,
            )  # fmt: skip

    def fail(
        self, phase: str, error: str, subject: str = "", attempt: int | None = None, *, transient: bool = False
    ) -> None:
        """Record that this attempt failed; `transient`: another one may succeed.

        Changes nothing if another attempt has been started since, or if this attempt was superseded or has already
        ended.
        """
        self._set(phase, subject, "failed", error=error, transient=transient, attempt=attempt)

    def reopen(self, phase: str, subject: str = "", reason: str = "to be done again") -> None:
        """Have a phase done again, because its basis has changed.

        This supersedes a running attempt: its `finish` raises SupersededError. A phase that has failed, or has not
        started, stays as it is.
        """
        if self.find(phase, subject) is not None:
            self._set(phase, subject, "failed", error=reason, transient=True, reopening=True)

    def find(self, phase: str, subject: str = "") -> PhaseRecord | None:
        """A phase as it is now; None before its first attempt."""
        phases = self._store.table("phases")
        same = (phases.c.run_id == self._run_id, phases.c.phase == phase, phases.c.subject == subject)
        with self._store.database.read() as connection:
            return next(iter(fetch(connection, PhaseRecord, phases, *same)), None)

    def all(self) -> list[PhaseRecord]:
        """All phases in the order of their newest start, without their facts: the facts of copies are long."""
        phases = self._store.table("phases")
        order = (phases.c.started_ms, phases.c.phase, phases.c.subject)
        shown = [literal("{}").label(c.name) if c is phases.c.facts else c for c in phases.c]
        query = select(*shown).where(phases.c.run_id == self._run_id).order_by(*order)
        with self._store.database.read() as connection:
            return [from_columns(PhaseRecord, dict(row)) for row in connection.execute(query).mappings()]

    def _set(
        self,
        phase: str,
        subject: str,
        state: PhaseState,
        facts: Mapping[str, Any] | None = None,
        error: str = "",
        transient: bool = False,
        attempt: int | None = None,
        reopening: bool = False,
        lease_check: Change = lambda connection: None,
    ) -> int:
        phases = self._store.table("phases")
        key = (phases.c.run_id == self._run_id, phases.c.phase == phase, phases.c.subject == subject)
        at = now_ms()
        with self._store.database.write() as connection:
            starting = state == "running"
            self._store.unfinished(connection, self._run_id) if starting else self._store.run(connection, self._run_id)
            known = fetch(connection, PhaseRecord, phases, *key)
            before = known[0] if known else PhaseRecord(phase, subject, "running", 0, at, None, {}, "")
            ended = before.state == "done" or before.state == state == "failed"
            if attempt is not None and (before.attempts != attempt or ended):
                return before.attempts
            if reopening and before.state == "failed":
                return before.attempts
            lease_check(connection)
            superseding = reopening and before.state == "running"  # a number of its own: the attempt cannot finish
            after = replace(
                before,
                state=state,
                attempts=before.attempts + (1 if starting or superseding or not known else 0),
                started_ms=at if starting else before.started_ms,
                finished_ms=None if starting else at,
                facts=dict(facts or {}),
                error=error,
                transient=transient,
            )
            if known:
                connection.execute(update(phases).where(*key).values(to_columns(after)))
            else:
                connection.execute(insert(phases).values(to_columns(after) | {"run_id": self._run_id}))
            action = {"running": "start phase", "done": "finish phase", "failed": "fail phase"}[state]
            inputs = {"phase": phase, "subject": subject, "attempt": after.attempts, "facts": after.facts}
            self._store.note(connection, action, self._run_id, inputs, error)
        return after.attempts

"""`Ledger`: what was done to which bytes, as small methods over the SQL tables.

Every change is one transaction, and the audit line that tells of it is written in the same one. Writers take turns
(see `database`), so a method may read, decide and write without another writer in between.
Errors: UsageError when the user has to decide (another run is unfinished, an unknown name), WalferryError when a
rule of the ledger would be broken (a state moved backwards), TransientError when the database does not answer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, get_args

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, tuple_, update

from walferry.errors import UsageError, WalferryError
from walferry.ledger import audit as chain
from walferry.ledger.database import Database, now_ms
from walferry.ledger.rows import (
    RANGE_STATES,
    AuditHead,
    AuditLine,
    ClusterObject,
    ClusterSide,
    Coverage,
    Difference,
    FenceKind,
    FileState,
    Gap,
    Hold,
    Lease,
    ObjectState,
    Phase,
    PhaseState,
    Position,
    Quarantined,
    QuarantineItem,
    RangeComparison,
    RangeState,
    Resolution,
    Round,
    Row,
    Run,
    RunState,
    SeenFile,
    WalFile,
    WalRange,
    from_columns,
    to_columns,
    to_json,
)


class Ledger:
    """The open ledger. Safe in several processes at once; after a fork, open it anew."""

    def __init__(self, database: Database, actor: str) -> None:
        self._database = database
        self._actor = actor
        self.url = database.url
        """Where the ledger is, without the password."""

    @classmethod
    def open(cls, url: str | None = None, *, actor: str | None = None, create: bool = True) -> Ledger:
        """Open, create or migrate the ledger at `url`; `actor` (default: the OS user) signs the audit lines.

        `url` is sqlite:////path or postgresql+psycopg2://…; default $WALFERRY_LEDGER, else .run/ledger.db.
        Without `create` nothing is made or migrated, for readers. Raises UsageError for a schema newer than this
        walferry, for a URL of another kind and, without `create`, when no ledger of this schema is there.
        """
        return cls(Database(url, create=create), actor or os.environ.get("USER") or f"uid {os.getuid()}")

    def close(self) -> None:
        """Close every connection."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.url})"

    # ---- runs

    def open_run(self, name: str, owner: str, spec: Mapping[str, Any], actor: str) -> Run:
        """The unfinished run of that name when owner and spec are the same, else a new one.

        `spec["tables"]` ("ns:table", or {"source": "ns:table", …}) says what `gaps` asks for.
        Raises UsageError when another owner or another spec holds the unfinished run, unless that has come no further
        than a plan that failed: then it gives way.
        """
        runs = self._table("runs")
        with self._database.write() as connection:
            unfinished = _fetch(connection, Run, runs, runs.c.name == name, runs.c.state == "running")
            if unfinished:
                try:
                    return _same_run(unfinished[0], owner, spec)
                except UsageError:
                    if not self._only_planned(connection, unfinished[0].run_id):
                        raise
                    self._end(
                        connection, unfinished[0], "failed", actor, "gave way to a new run; it had changed nothing"
                    )
            number = connection.execute(select(func.count()).where(runs.c.name == name)).scalar_one() + 1
            run = Run(f"{name}-{number}", name, owner, dict(spec), "running", False, "", now_ms(), None)
            connection.execute(insert(runs).values(to_columns(run)))
            tables = [{"run_id": run.run_id, "table_name": table} for table in source_tables(spec)]
            if tables:
                connection.execute(insert(self._table("run_tables")), tables)
            self._note(connection, "open run", run.run_id, {"owner": owner, "spec": dict(spec)}, actor=actor)
        return run

    def run(self, run_id: str) -> Run:
        """The run of that id; UsageError when there is none."""
        with self._database.read() as connection:
            return self._run(connection, run_id)

    def find(self, name_or_run_id: str) -> Run:
        """The run of that id, or the newest of that name; UsageError when there is none."""
        runs = self.runs()
        found = [run for run in runs if run.run_id == name_or_run_id] or [
            run for run in runs if run.name == name_or_run_id
        ]
        if found:
            return found[-1]
        alike = [run.run_id for run in runs if run.name.startswith(name_or_run_id)] or [run.run_id for run in runs]
        others = f"its newest are {', '.join(alike[:-6:-1])}" if alike else "it knows none"
        raise UsageError(f"the ledger {self.url} knows no run {name_or_run_id!r}; {others}", run=name_or_run_id)

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        runs = self._table("runs")
        order = (runs.c.created_ms, func.length(runs.c.run_id), runs.c.run_id)
        with self._database.read() as connection:
            return _fetch(connection, Run, runs, order=order)

    def adopt_run(self, run_id: str, owner: str, actor: str) -> Run:
        """Hand an unfinished run to another owner, who goes on with it; UsageError when it has ended."""
        with self._database.write() as connection:
            run = self._unfinished(connection, run_id)
            if run.owner != owner:
                self._update_run(connection, run_id, owner=owner)
                self._note(connection, "adopt run", run_id, {"from": run.owner, "to": owner}, actor=actor)
        return replace(run, owner=owner)

    def set_paused(self, run_id: str, paused: bool, actor: str, reason: str = "") -> Run:
        """Ask an unfinished run to pause or go on; UsageError when it has ended."""
        with self._database.write() as connection:
            run = self._unfinished(connection, run_id)
            if run.paused != paused:
                self._update_run(connection, run_id, paused=paused)
                action = "pause run" if paused else "resume run"
                self._note(connection, action, run_id, {"reason": reason}, actor=actor)
        return replace(run, paused=paused)

    def end_run(self, run_id: str, state: RunState, actor: str, outcome: str = "") -> Run:
        """End a run as done, failed or aborted. Repeating it changes nothing; another end is a UsageError."""
        with self._database.write() as connection:
            run = self._run(connection, run_id)
            if run.state == state != "running":
                return run
            if run.state != "running" or state == "running":
                raise UsageError(f"run {run_id} is {run.state} and cannot become {state}", run=run_id)
            return self._end(connection, run, state, actor, outcome)

    def _end(self, connection: Connection, run: Run, state: RunState, actor: str, outcome: str) -> Run:
        ended = replace(run, state=state, outcome=outcome, ended_ms=now_ms())
        self._update_run(connection, run.run_id, state=state, outcome=outcome, ended_ms=ended.ended_ms)
        self._note(connection, "end run", run.run_id, {"state": state}, outcome, actor)
        return ended

    def _only_planned(self, connection: Connection, run_id: str) -> bool:
        """Whether all that a run has done is a plan that failed."""
        phases = self._table("phases")
        return [(p.phase, p.state) for p in _fetch(connection, Phase, phases, phases.c.run_id == run_id)] == [
            ("plan", "failed")
        ]

    # ---- phases; the subject is a table, or "" for the whole run

    def phase_facts(self, run_id: str, phase: str, subject: str = "") -> dict[str, Any] | None:
        """What the phase found out, when it is done; None while it is not."""
        for known in self.phases(run_id):
            if (known.phase, known.subject, known.state) == (phase, subject, "done"):
                return known.facts
        return None

    def start_phase(self, run_id: str, phase: str, subject: str = "") -> int:
        """Begin a phase, or begin it again; the number of this attempt. UsageError when the run has ended."""
        return self._set_phase(run_id, phase, subject, "running")

    def finish_phase(self, run_id: str, phase: str, facts: Mapping[str, Any], subject: str = "") -> None:
        """The phase is done; `facts` is what later phases and the report need of it."""
        self._set_phase(run_id, phase, subject, "done", facts=facts)

    def fail_phase(self, run_id: str, phase: str, error: str, subject: str = "", attempt: int | None = None) -> None:
        """This attempt at the phase failed. Nothing changes when another attempt has begun, or done it, since."""
        self._set_phase(run_id, phase, subject, "failed", error=error, attempt=attempt)

    def reopen_phase(self, run_id: str, phase: str, subject: str = "", reason: str = "to be done again") -> None:
        """The phase must be done again: what it rested on has changed. A phase that is not done stays as it is."""
        if self.phase_facts(run_id, phase, subject) is not None:
            self._set_phase(run_id, phase, subject, "failed", error=reason)

    def phases(self, run_id: str) -> list[Phase]:
        """All phases in the order in which they were last started."""
        phases = self._table("phases")
        order = (phases.c.started_ms, phases.c.phase, phases.c.subject)
        with self._database.read() as connection:
            return _fetch(connection, Phase, phases, phases.c.run_id == run_id, order=order)

    def _set_phase(
        self,
        run_id: str,
        phase: str,
        subject: str,
        state: PhaseState,
        facts: Mapping[str, Any] | None = None,
        error: str = "",
        attempt: int | None = None,
    ) -> int:
        phases = self._table("phases")
        key = (phases.c.run_id == run_id, phases.c.phase == phase, phases.c.subject == subject)
        at = now_ms()
        with self._database.write() as connection:
            starting = state == "running"
            self._unfinished(connection, run_id) if starting else self._run(connection, run_id)
            known = _fetch(connection, Phase, phases, *key)
            before = known[0] if known else Phase(phase, subject, "running", 0, at, None, {}, "")
            if attempt is not None and (before.attempts != attempt or before.state == "done"):
                return before.attempts
            after = replace(
                before,
                state=state,
                attempts=before.attempts + (1 if starting or not known else 0),
                started_ms=at if starting else before.started_ms,
                finished_ms=None if starting else at,
                facts=dict(facts or {}),
                error=error,
            )
            if known:
                connection.execute(update(phases).where(*key).values(to_columns(after)))
            else:
                connection.execute(insert(phases).values(to_columns(after) | {"run_id": run_id}))
            action = {"running": "start phase", "done": "finish phase", "failed": "fail phase"}[state]
            inputs = {"phase": phase, "subject": subject, "attempt": after.attempts, "facts": after.facts}
            self._note(connection, action, run_id, inputs, error)
        return after.attempts

    # ---- objects of ours on a cluster: planned before they are made, so that none is left behind

    def plan_object(self, run_id: str, cluster: ClusterSide, kind: str, name: str) -> None:
        """About to make the object. One that is already made stays so."""
        self._set_object(run_id, cluster, kind, name, "planned")

    def object_made(self, run_id: str, cluster: ClusterSide, kind: str, name: str) -> None:
        """The object is there; WalferryError when it was never planned."""
        self._set_object(run_id, cluster, kind, name, "made")

    def object_removed(self, run_id: str, cluster: ClusterSide, kind: str, name: str) -> None:
        """The object is gone, or never came to be; WalferryError when it was never planned."""
        self._set_object(run_id, cluster, kind, name, "removed")

    def objects(self, run_id: str, state: ObjectState | None = None) -> list[ClusterObject]:
        """What the run planned, made and removed, oldest first."""
        objects = self._table("objects")
        conditions = [objects.c.run_id == run_id] + ([objects.c.state == state] if state else [])
        order = (objects.c.planned_ms, objects.c.cluster, objects.c.kind, objects.c.name)
        with self._database.read() as connection:
            return _fetch(connection, ClusterObject, objects, *conditions, order=order)

    def _set_object(self, run_id: str, cluster: ClusterSide, kind: str, name: str, state: ObjectState) -> None:
        objects = self._table("objects")
        key = {"run_id": run_id, "cluster": cluster, "kind": kind, "name": name}
        same = [objects.c[column] == value for column, value in key.items()]
        at = now_ms()
        with self._database.write() as connection:
            self._run(connection, run_id)
            known = _fetch(connection, ClusterObject, objects, *same)
            if not known:
                if state != "planned":
                    raise WalferryError(
                        f"{kind} {name} on the {cluster} of run {run_id} was never planned: plan_object comes before "
                        "making it",
                        **key,
                    )
                connection.execute(insert(objects).values(**key, state=state, planned_ms=at))
            elif known[0].state == state or (known[0].state == "made" and state == "planned"):
                return
            else:
                connection.execute(update(objects).where(*same).values({"state": state, f"{state}_ms": at}))
            self._note(connection, f"object {state}", run_id, {"cluster": cluster, "kind": kind, "name": name})

    # ---- leases on target tables

    def take_lease(self, run_id: str, resource: str, holder: str, fencing_number: int) -> None:
        """Record that `holder` got the lease on `resource`; WalferryError unless its number is the highest so far.

        Repeating one's own newest lease changes nothing.
        """
        leases = self._table("leases")
        with self._database.write() as connection:
            self._run(connection, run_id)
            known = _fetch(connection, Lease, leases, leases.c.resource == resource, order=(leases.c.fencing_number,))
            newest = known[-1] if known else None
            lease = Lease(resource, fencing_number, run_id, holder, now_ms(), None)
            if newest and newest.fencing_number >= fencing_number:
                if replace(newest, taken_ms=lease.taken_ms) == lease:
                    return
                raise WalferryError(
                    f"the lease {fencing_number} on {resource} is stale: run {newest.run_id} ({newest.holder}) took "
                    f"{newest.fencing_number}; stop writing to {resource}",
                    resource=resource,
                    fencing_number=fencing_number,
                    newest=newest.fencing_number,
                )
            connection.execute(insert(leases).values(to_columns(lease)))
            inputs = {"resource": resource, "holder": holder, "fencing_number": fencing_number}
            self._note(connection, "take lease", run_id, inputs)

    def release_lease(self, run_id: str, resource: str, fencing_number: int) -> None:
        """Record that the lease was given back."""
        leases = self._table("leases")
        own = (leases.c.run_id == run_id, leases.c.resource == resource, leases.c.fencing_number == fencing_number)
        statement = update(leases).where(*own, leases.c.released_ms.is_(None)).values(released_ms=now_ms())
        with self._database.write() as connection:
            if connection.execute(statement).rowcount:
                inputs = {"resource": resource, "fencing_number": fencing_number}
                self._note(connection, "release lease", run_id, inputs)

    def leases(self, resource: str | None = None) -> list[Lease]:
        """Every lease ever taken (on `resource`), by number."""
        leases = self._table("leases")
        conditions = [leases.c.resource == resource] if resource else []
        with self._database.read() as connection:
            return _fetch(connection, Lease, leases, *conditions, order=(leases.c.resource, leases.c.fencing_number))

    # ---- fences

    def set_fence(self, run_id: str, kind: FenceKind, positions: Sequence[Position]) -> list[Position]:
        """Set a fence, one position for each WAL group.

        A start fence that is set already stays and is returned; an end fence may be set anew, further on only.
        """
        fences = self._table("fences")
        if not positions:
            raise WalferryError(f"the {kind} fence of run {run_id} has no position: list the WAL groups first")
        if len({position.group for position in positions}) < len(positions):
            raise WalferryError(f"the {kind} fence of run {run_id} has two positions in one WAL group")
        with self._database.write() as connection:
            self._run(connection, run_id)
            recorded = self._fence(connection, run_id, kind)
            if recorded and kind == "start":
                return recorded
            _check_advance(run_id, recorded, positions)
            connection.execute(delete(fences).where(fences.c.run_id == run_id, fences.c.kind == kind))
            rows = [to_columns(position) | {"run_id": run_id, "kind": kind} for position in positions]
            connection.execute(insert(fences), rows)
            inputs = {"positions": {p.group: f"{p.file}@{p.offset}" for p in positions}}
            self._note(connection, f"set {kind} fence", run_id, inputs)
            return self._fence(connection, run_id, kind)

    def fence(self, run_id: str, kind: FenceKind) -> list[Position] | None:
        """The fence by WAL group, None while it is not set."""
        with self._database.read() as connection:
            return self._fence(connection, run_id, kind) or None

    def _fence(self, connection: Connection, run_id: str, kind: FenceKind) -> list[Position]:
        fences = self._table("fences")
        same = (fences.c.run_id == run_id, fences.c.kind == kind)
        return _fetch(connection, Position, fences, *same, order=(fences.c.wal_group,))

    # ---- WAL files and their ranges

    def see_files(self, run_id: str, files: Sequence[SeenFile]) -> None:
        """Take in a listing. A file only moves forward (open -> sealed, longer, archived): a late, older listing of a
        known file changes nothing, and one that had gone missing is there again."""
        wal_files = self._table("wal_files")
        at = now_ms()
        with self._database.write() as connection:
            self._run(connection, run_id)
            known = {file.name: file for file in self._files(connection, run_id)}
            before = dict(known)
            for seen in files:
                known[seen.name] = _merge(known.get(seen.name), seen, at)
            new = [file for name, file in known.items() if name not in before]
            changed = [file for name, file in known.items() if name in before and before[name] != file]
            if new:
                rows = [to_columns(file) | {"run_id": run_id} for file in new]
                connection.execute(insert(wal_files), rows)
            for file in changed:
                same = (wal_files.c.run_id == run_id, wal_files.c.name == file.name)
                connection.execute(update(wal_files).where(*same).values(to_columns(file)))
            sealed = [f for f in (*new, *changed) if f.state == "sealed" and not _was_sealed(before.get(f.name))]
            if new or sealed:
                inputs = {"new": [f.path for f in new], "sealed": {f.name: f.length for f in sealed}}
                self._note(connection, "see WAL files", run_id, inputs)

    def files(self, run_id: str) -> list[WalFile]:
        """Every WAL file seen, by group and number."""
        with self._database.read() as connection:
            return self._files(connection, run_id)

    def files_between(self, run_ids: Collection[str], first: int, end: int) -> list[WalFile]:
        """Files seen by any of the runs whose numbers (ms of their creation) lie in [first, end), each name once."""
        wal_files = self._table("wal_files")
        known: dict[str, WalFile] = {}
        with self._database.read() as connection:
            for run_id in run_ids:
                of_run = (wal_files.c.run_id == run_id, wal_files.c.number >= first, wal_files.c.number < end)
                for file in _fetch(connection, WalFile, wal_files, *of_run):
                    known.setdefault(file.name, file)
        return sorted(known.values(), key=lambda file: (file.group, file.number))

    def mark_missing(self, run_id: str, name: str) -> None:
        """The file is in no folder of the source any more; what of it is not applied is a gap."""
        wal_files = self._table("wal_files")
        same = (wal_files.c.run_id == run_id, wal_files.c.name == name)
        with self._database.write() as connection:
            known = _fetch(connection, WalFile, wal_files, *same)
            if not known:
                raise WalferryError(f"run {run_id} never saw a WAL file {name}", run=run_id, file=name)
            if known[0].state != "missing":
                state: FileState = "missing"
                connection.execute(update(wal_files).where(*same).values(state=state))
                self._note(connection, "WAL file missing", run_id, {"file": name, "path": known[0].path})

    def set_ranges(self, run_id: str, ranges: Sequence[WalRange]) -> None:
        """Record ranges by (file, start, table). A state moves forward only, and an end only before it is applied.

        The file must have been seen (`see_files`). Ranges of a file and table should tile it from 0 to its length,
        header and trailer included, since `gaps` asks for every byte. WalferryError names the range that would
        move backwards; nothing of the call is kept then.
        """
        table = self._table("wal_ranges")
        with self._database.write() as connection:
            self._run(connection, run_id)
            unseen = {item.file for item in ranges} - {file.name for file in self._files(connection, run_id)}
            if unseen:
                raise WalferryError(
                    f"run {run_id} never saw WAL file {min(unseen)}: see_files comes before set_ranges",
                    run=run_id,
                    file=min(unseen),
                )
            known = {_range_key(item): item for item in self._ranges(connection, run_id, ranges)}
            before = dict(known)
            for item in ranges:
                _check_forward(known.get(_range_key(item)), item)
                known[_range_key(item)] = item
            new = [item for key, item in known.items() if key not in before]
            if new:
                connection.execute(insert(table), [to_columns(item) | {"run_id": run_id} for item in new])
            for key, item in known.items():
                if key in before and before[key] != item:
                    same = _same_range(table, run_id, item)
                    connection.execute(update(table).where(*same).values(to_columns(item)))

    def applied_files(self, run_id: str) -> set[str]:
        """Names of the files of which nothing is left to apply, for none of the run's tables."""
        applied: dict[str, set[str]] = {}
        begun = set()
        for item in self.ranges(run_id):
            if item.state in ("applied", "verified"):
                applied.setdefault(item.file, set()).add(item.table)
            else:
                begun.add(item.file)
        tables = set(source_tables(self.run(run_id).spec))
        return {name for name, done in applied.items() if tables <= done} - begun

    def ranges(
        self,
        run_id: str,
        *,
        file: str | None = None,
        state: RangeState | None = None,
        groups: Collection[str] | None = None,
    ) -> list[WalRange]:
        """Ranges (of a file, in a state, of WAL groups) by file, table and start."""
        table = self._table("wal_ranges")
        conditions = [table.c.run_id == run_id]
        if file is not None:
            conditions.append(table.c.file == file)
        if state is not None:
            conditions.append(table.c.state == state)
        if groups is not None:
            files = self._table("wal_files")
            of_groups = (files.c.run_id == run_id, files.c.wal_group.in_(sorted(groups)))
            conditions.append(table.c.file.in_(select(files.c.name).where(*of_groups)))
        order = (table.c.file, table.c.table_name, table.c.start_offset)
        with self._database.read() as connection:
            return _fetch(connection, WalRange, table, *conditions, order=order)

    def mark_applied(self, run_id: str, files: Sequence[str], tables: Sequence[str] | None = None) -> None:
        """The target has acknowledged every edit of these files (for `tables`; default all): one transaction.

        Sealed ranges become applied, applied and verified ones stay. WalferryError when a file has no range, or one
        that is not sealed and so may still grow.
        """
        table = self._table("wal_ranges")
        with self._database.write() as connection:
            self._run(connection, run_id)
            conditions = [table.c.run_id == run_id, table.c.file.in_(list(files))]
            if tables is not None:
                conditions.append(table.c.table_name.in_(list(tables)))
            found = _fetch(connection, WalRange, table, *conditions)
            without = set(files) - {item.file for item in found}
            if without:
                raise WalferryError(f"no range of WAL file {min(without)} is recorded", run=run_id, file=min(without))
            for item in found:
                if item.state == "seen":
                    raise WalferryError(f"{_name(item)} is not sealed and cannot be applied", run=run_id)
            connection.execute(update(table).where(*conditions, table.c.state == "sealed").values(state="applied"))
            applied = [item for item in found if item.state == "sealed"]
            if applied:
                inputs = {"files": sorted({item.file for item in applied}), **_sums(applied)}
                self._note(connection, "apply ranges", run_id, inputs)

    def mark_verified(self, run_id: str, table: str, files: Collection[str]) -> None:
        """The comparison found the table equal: its ranges of `files`, applied before it began, are verified."""
        ranges = self._table("wal_ranges")
        of_table = (ranges.c.run_id == run_id, ranges.c.table_name == table, ranges.c.state == "applied")
        applied = (*of_table, ranges.c.file.in_(sorted(files)))
        with self._database.write() as connection:
            found = _fetch(connection, WalRange, ranges, *applied)
            if found:
                connection.execute(update(ranges).where(*applied).values(state="verified"))
                self._note(connection, "verify ranges", run_id, {"table": table, **_sums(found)})

    def reached(self, run_id: str) -> dict[tuple[str, str], int]:
        """Of each WAL group and table the number of the newest file of which something is applied."""
        files, ranges = self._table("wal_files"), self._table("wal_ranges")
        query = (
            select(files.c.wal_group, ranges.c.table_name, func.max(files.c.number))
            .join(ranges, (ranges.c.run_id == files.c.run_id) & (ranges.c.file == files.c.name))
            .where(files.c.run_id == run_id, ranges.c.state.in_(("applied", "verified")))
            .group_by(files.c.wal_group, ranges.c.table_name)
        )
        with self._database.read() as connection:
            return {(group, table): number for group, table, number in connection.execute(query)}

    def coverage(self, run_id: str) -> list[Coverage]:
        """Bytes by state for each WAL group and table."""
        view = self._table("coverage")
        order = (view.c.wal_group, view.c.table_name)
        with self._database.read() as connection:
            return _fetch(connection, Coverage, view, view.c.run_id == run_id, order=order)

    def gaps(self, run_id: str) -> list[Gap]:
        """Every byte between the fences that is not applied, by table; [] means that nothing is missing.

        The rule is the SQL view `gaps`: each file of each group from the start fence to the end fence (or to the
        group's newest sealed file), for every table of the spec; files missing or not sealed, quarantined items and
        regions held behind them. Raises UsageError when the run's spec names no table.
        """
        view, tables = self._table("gaps"), self._table("run_tables")
        order = (view.c.file, view.c.start_offset, view.c.table_name, view.c.reason)
        with self._database.read() as connection:
            self._run(connection, run_id)
            count = select(func.count()).where(tables.c.run_id == run_id)
            if not connection.execute(count).scalar_one():
                raise UsageError(f"the spec of run {run_id} names no table: no gap can be told", run=run_id)
            return _fetch(connection, Gap, view, view.c.run_id == run_id, order=order)

    def _files(self, connection: Connection, run_id: str) -> list[WalFile]:
        wal_files = self._table("wal_files")
        order = (wal_files.c.wal_group, wal_files.c.number, wal_files.c.name)
        return _fetch(connection, WalFile, wal_files, wal_files.c.run_id == run_id, order=order)

    def _ranges(self, connection: Connection, run_id: str, like: Sequence[WalRange]) -> list[WalRange]:
        table = self._table("wal_ranges")
        files = sorted({item.file for item in like})
        return _fetch(connection, WalRange, table, table.c.run_id == run_id, table.c.file.in_(files))

    # ---- quarantine and the regions held behind it

    def quarantine(self, run_id: str, items: Sequence[QuarantineItem]) -> list[int]:
        """Put items away with their bytes; their ids in order. The same item again keeps its id and its state."""
        table = self._table("quarantine")
        ids: list[int] = []
        with self._database.write() as connection:
            self._run(connection, run_id)
            newest = connection.execute(select(func.coalesce(func.max(table.c.quarantine_id), 0))).scalar_one()
            for item in items:
                columns = to_columns(item)
                same = [table.c.run_id == run_id]
                same += [table.c[c] == columns[c] for c in ("file", "start_offset", "reason", "table_name", "region")]
                known = connection.execute(select(table.c.quarantine_id).where(*same)).scalar_one_or_none()
                if known is None:
                    known = newest = newest + 1
                    columns |= {"quarantine_id": known, "run_id": run_id, "state": "held", "recorded_ms": now_ms()}
                    connection.execute(insert(table).values(columns))
                    inputs = {k: v for k, v in columns.items() if k != "data"}
                    self._note(connection, "quarantine", run_id, inputs)
                ids.append(known)
        return ids

    def quarantined(self, run_id: str, state: str | None = None) -> list[Quarantined]:
        """Items with their bytes; `state` held or released."""
        table = self._table("quarantine")
        conditions = [table.c.run_id == run_id] + ([table.c.state == state] if state else [])
        with self._database.read() as connection:
            return _fetch(connection, Quarantined, table, *conditions, order=(table.c.quarantine_id,))

    def release(self, quarantine_id: int, resolution: Resolution, reason: str, actor: str) -> Quarantined:
        """An operator's decision about an item; its regions stay held until `drop_holds`.

        Repeating the same decision changes nothing. UsageError for an unknown item, an empty reason, an unknown
        resolution, and an item released in another way.
        """
        if resolution not in get_args(Resolution):
            raise UsageError(f"resolution {resolution!r} is none of {', '.join(get_args(Resolution))}")
        if not reason.strip():
            raise UsageError(f"give a reason for releasing quarantine item {quarantine_id}: it is kept")
        table = self._table("quarantine")
        with self._database.write() as connection:
            known = _fetch(connection, Quarantined, table, table.c.quarantine_id == quarantine_id)
            if not known:
                raise UsageError(f"the ledger {self.url} knows no quarantine item {quarantine_id}")
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
            self._note(connection, "release quarantine", item.run_id, inputs, actor=actor)
        return item

    def hold_regions(self, run_id: str, holds: Sequence[Hold]) -> None:
        """Let regions wait behind a quarantined item; repeating a hold changes nothing."""
        table = self._table("held_regions")
        with self._database.write() as connection:
            known = {_hold_key(hold) for hold in self._holds(connection, run_id)}
            new = list({_hold_key(hold): hold for hold in holds if _hold_key(hold) not in known}.values())
            if new:
                connection.execute(insert(table), [to_columns(hold) | {"run_id": run_id} for hold in new])
                inputs = {"holds": [to_columns(hold) for hold in new]}
                self._note(connection, "hold regions", run_id, inputs)

    def holds(self, run_id: str) -> list[Hold]:
        """The regions that wait, by file and offset."""
        with self._database.read() as connection:
            return self._holds(connection, run_id)

    def drop_holds(self, run_id: str, quarantine_id: int) -> None:
        """What waited behind a released item has been applied; WalferryError while the item is held."""
        table, quarantine = self._table("held_regions"), self._table("quarantine")
        behind = (table.c.run_id == run_id, table.c.quarantine_id == quarantine_id)
        with self._database.write() as connection:
            held = select(quarantine.c.state).where(quarantine.c.quarantine_id == quarantine_id)
            if connection.execute(held).scalar_one_or_none() == "held":
                raise WalferryError(
                    f"quarantine item {quarantine_id} is not released: its regions wait", quarantine_id=quarantine_id
                )
            if connection.execute(delete(table).where(*behind)).rowcount:
                self._note(connection, "drop holds", run_id, {"quarantine_id": quarantine_id})

    def _holds(self, connection: Connection, run_id: str) -> list[Hold]:
        table = self._table("held_regions")
        order = (table.c.file, table.c.from_offset, table.c.table_name, table.c.region)
        return _fetch(connection, Hold, table, table.c.run_id == run_id, order=order)

    # ---- comparisons

    def record_comparison(
        self, run_id: str, attempt: int, rows: Sequence[RangeComparison], differences: Sequence[Difference]
    ) -> None:
        """Keep the result of comparing the tables in `rows`; the same attempt at a table again replaces it."""
        tables = sorted({row.table for row in rows} | {difference.table for difference in differences})
        key = {"run_id": run_id, "attempt": attempt}
        with self._database.write() as connection:
            self._run(connection, run_id)
            for kept, items in ((self._table("comparisons"), rows), (self._table("differences"), differences)):
                same = (kept.c.run_id == run_id, kept.c.attempt == attempt, kept.c.table_name.in_(tables))
                connection.execute(delete(kept).where(*same))
                if items:
                    connection.execute(insert(kept), [to_columns(item) | key for item in items])
            unequal = sum(row.source_digest != row.target_digest for row in rows)
            inputs = {
                "attempt": attempt,
                "tables": tables,
                "ranges": len(rows),
                "differences": dict(Counter(difference.kind for difference in differences)),
            }
            self._note(connection, "compare", run_id, inputs, f"{unequal} of {len(rows)} ranges differ")

    def last_comparison(self, run_id: str) -> int:
        """The highest attempt recorded for any table of the run; 0 before the first."""
        comparisons = self._table("comparisons")
        with self._database.read() as connection:
            query = select(func.max(comparisons.c.attempt)).where(comparisons.c.run_id == run_id)
            return connection.execute(query).scalar_one() or 0

    def comparison(self, run_id: str, attempt: int | None = None) -> list[RangeComparison]:
        """Ranges by table and start row, of `attempt` or of each table's newest."""
        table = self._table("comparisons")
        order = (table.c.table_name, table.c.start_row)
        with self._database.read() as connection:
            return _fetch(connection, RangeComparison, table, *self._attempt(table, run_id, attempt), order=order)

    def differences(self, run_id: str, attempt: int | None = None, table: str | None = None) -> list[Difference]:
        """Rows that differ (in `table`), of `attempt` or of each table's newest."""
        found = self._table("differences")
        conditions = self._attempt(found, run_id, attempt)
        if table is not None:
            conditions.append(found.c.table_name == table)
        order = (found.c.table_name, found.c.row_key, found.c.kind)
        with self._database.read() as connection:
            return _fetch(connection, Difference, found, *conditions, order=order)

    def _attempt(self, table: Table, run_id: str, attempt: int | None) -> list[ColumnElement[bool]]:
        if attempt is not None:
            return [table.c.run_id == run_id, table.c.attempt == attempt]
        made = self._table("comparisons")
        newest = (
            select(made.c.table_name, func.max(made.c.attempt))
            .where(made.c.run_id == run_id)
            .group_by(made.c.table_name)
        )
        return [table.c.run_id == run_id, tuple_(table.c.table_name, table.c.attempt).in_(newest)]

    # ---- replay rounds

    def record_round(self, run_id: str, round: Round) -> None:
        """Keep one replay round; the same number again replaces it."""
        rounds = self._table("rounds")
        with self._database.write() as connection:
            self._run(connection, run_id)
            connection.execute(delete(rounds).where(rounds.c.run_id == run_id, rounds.c.number == round.number))
            connection.execute(insert(rounds).values(to_columns(round) | {"run_id": run_id}))

    def rounds(self, run_id: str) -> list[Round]:
        """All rounds by number."""
        rounds = self._table("rounds")
        with self._database.read() as connection:
            return _fetch(connection, Round, rounds, rounds.c.run_id == run_id, order=(rounds.c.number,))

    # ---- audit

    def audit(self, actor: str, action: str, run_id: str | None, inputs: Mapping[str, Any], outcome: str = "") -> str:
        """Append a line of one's own to the trail; the new head's hash. `inputs` must hold no secret."""
        with self._database.write() as connection:
            return self._note(connection, action, run_id, inputs, outcome, actor)

    def audit_trail(self, run_id: str | None = None) -> list[AuditLine]:
        """The lines (of one run), oldest first."""
        table = self._table("audit")
        conditions = [table.c.run_id == run_id] if run_id is not None else []
        with self._database.read() as connection:
            return _fetch(connection, AuditLine, table, *conditions, order=(table.c.sequence,))

    def audit_page(self, run_id: str, count: int, skip: int = 0) -> tuple[int, list[AuditLine]]:
        """How many lines a run has, and `count` of them, newest first, after the `skip` newest."""
        table = self._table("audit")
        of_run = table.c.run_id == run_id
        page = select(table).where(of_run).order_by(table.c.sequence.desc()).limit(count).offset(skip)
        with self._database.read() as connection:
            total = connection.execute(select(func.count()).select_from(table).where(of_run)).scalar_one()
            return total, [from_columns(AuditLine, row) for row in connection.execute(page).mappings()]  # type: ignore[arg-type]

    def audit_head(self) -> AuditHead:
        """The newest line; print it where the ledger's keeper cannot change it."""
        with self._database.read() as connection:
            return chain.head(connection, self._table("audit"))

    def verify_audit(self, expected: AuditHead | None = None) -> None:
        """Walk the chain; WalferryError names the first line that was changed, removed or moved.

        Lines cut off the end are found when `expected`, a head noted before, is given.
        """
        table = self._table("audit")
        with self._database.read() as connection:
            lines = connection.execution_options(yield_per=1000).execute(select(table).order_by(table.c.sequence))
            chain.verify((dict(line) for line in lines.mappings()), expected)

    def _note(
        self,
        connection: Connection,
        action: str,
        run_id: str | None,
        inputs: Mapping[str, Any],
        outcome: str = "",
        actor: str | None = None,
    ) -> str:
        line = AuditLine(0, now_ms(), actor or self._actor, action, run_id, dict(inputs), outcome, "")
        return chain.append(connection, self._table("audit"), line).hash

    # ---- shared

    def _table(self, name: str) -> Table:
        return self._database.tables[name]

    def _run(self, connection: Connection, run_id: str) -> Run:
        runs = self._table("runs")
        found = _fetch(connection, Run, runs, runs.c.run_id == run_id)
        if not found:
            raise UsageError(f"the ledger {self.url} knows no run {run_id!r}", run=run_id)
        return found[0]

    def _unfinished(self, connection: Connection, run_id: str) -> Run:
        run = self._run(connection, run_id)
        if run.state != "running":
            why = f"{run.state}: {run.outcome}" if run.outcome else run.state
            raise UsageError(f"run {run_id} has ended ({why}): begin a new one", run=run_id)
        return run

    def _update_run(self, connection: Connection, run_id: str, **values: Any) -> None:
        runs = self._table("runs")
        connection.execute(update(runs).where(runs.c.run_id == run_id).values(**values))


def _fetch(
    connection: Connection,
    kind: type[Row],
    table: Table,
    *conditions: ColumnElement[bool],
    order: Sequence[ColumnElement[Any]] = (),
) -> list[Row]:
    rows = connection.execute(select(table).where(*conditions).order_by(*order)).mappings()
    return [from_columns(kind, row) for row in rows]  # type: ignore[arg-type]


def _same_run(run: Run, owner: str, spec: Mapping[str, Any]) -> Run:
    differing = [
        what for what, same in (("owner", run.owner == owner), ("spec", to_json(run.spec) == to_json(spec))) if not same
    ]
    if not differing:
        return run
    resume = "" if run.spec.get("window") else f" or by `walferry resume {run.name}`"
    raise UsageError(
        f"run {run.run_id} of {run.name!r} is unfinished and belongs to {run.owner}, with another "
        f"{' and '.join(differing)} than this one ({owner}): go on with it as it was begun, by clearing its "
        f"failed tasks in Airflow{resume}, or end it by `walferry abort {run.name} --reason …`",
        run=run.run_id,
        owner=run.owner,
        differing=differing,
    )


def source_tables(spec: Mapping[str, Any]) -> list[str]:
    """The spec's source tables as the WAL names them: namespace `default` is left out."""
    names = [table["source"] if isinstance(table, Mapping) else str(table) for table in spec.get("tables", ())]
    return sorted({name.removeprefix("default:") for name in names})


def _check_advance(run_id: str, recorded: Sequence[Position], positions: Sequence[Position]) -> None:
    """Raise WalferryError when a group's fence would move back."""
    before = {position.group: (position.number, position.offset) for position in recorded}
    for position in positions:
        if (position.number, position.offset) < before.get(position.group, (0, 0)):
            raise WalferryError(
                f"the end fence of run {run_id} in WAL group {position.group} cannot move back to {position.file}",
                run=run_id,
                group=position.group,
            )


def _was_sealed(file: WalFile | None) -> bool:
    return file is not None and file.sealed_ms is not None


def _merge(known: WalFile | None, seen: SeenFile, at: int) -> WalFile:
    if known is None:
        state: FileState = "sealed" if seen.sealed else "open"
        sealed_ms = at if seen.sealed else None
        return WalFile(seen.name, seen.group, seen.server, seen.number, seen.path, seen.length, state, at, sealed_ms)
    if seen.length < known.length or (_was_sealed(known) and not seen.sealed):  # an older look at it
        seen = replace(seen, path=known.path, length=max(seen.length, known.length), sealed=_was_sealed(known))
    return replace(
        known,
        path=seen.path,
        length=seen.length,
        state="sealed" if seen.sealed else "open",
        sealed_ms=known.sealed_ms or (at if seen.sealed else None),
    )


def _range_key(item: WalRange) -> tuple[str, str, int]:
    return (item.file, item.table, item.start)


def _same_range(table: Table, run_id: str, item: WalRange) -> list[ColumnElement[bool]]:
    return [
        table.c.run_id == run_id,
        table.c.file == item.file,
        table.c.table_name == item.table,
        table.c.start_offset == item.start,
    ]


def _check_forward(known: WalRange | None, item: WalRange) -> None:
    if known is None:
        return
    problem = ""
    if RANGE_STATES.index(item.state) < RANGE_STATES.index(known.state):
        problem = f"is {known.state} and cannot become {item.state} again"
    elif item.end < known.end:
        problem = f"cannot shrink to end at {item.end}"
    elif item.end > known.end and known.state in ("applied", "verified"):
        problem = f"is {known.state} and cannot grow to {item.end}"
    if problem:
        raise WalferryError(
            f"{_name(known)} {problem}: a range moves forward only",
            file=known.file,
            start=known.start,
            end=known.end,
            table=known.table,
            state=known.state,
        )


def _name(item: WalRange) -> str:
    return f"range [{item.start}, {item.end}) of WAL file {item.file} for table {item.table}"


def _sums(ranges: Sequence[WalRange]) -> dict[str, int]:
    return {
        "bytes": sum(item.end - item.start for item in ranges),
        "entries": sum(item.entries for item in ranges),
        "cells": sum(item.cells for item in ranges),
    }


def _hold_key(hold: Hold) -> tuple[int, str, str, str]:
    return (hold.quarantine_id, hold.file, hold.table, hold.region)

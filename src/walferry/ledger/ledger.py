"""`Ledger`: the record of what was done to which bytes. `Ledger.of(run_id)` is one run's part of it, by sections.

Every change is one transaction, which also writes its audit line. Writers take turns (see `database`), so no other
writer can act while a method reads, decides and writes.
Errors: UsageError when the user must decide (another run is unfinished, a name is unknown), WalferryError when a call
would break a rule of the ledger (move a state backwards), TransientError when the database does not answer.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import audit as chain
from walferry.ledger.bases import Bases
from walferry.ledger.batches import Batches
from walferry.ledger.columns import from_columns, to_columns, to_json
from walferry.ledger.comparisons import Comparisons
from walferry.ledger.database import Database
from walferry.ledger.late import LateEdits
from walferry.ledger.leases import Leases
from walferry.ledger.log import Log
from walferry.ledger.notes import Notes
from walferry.ledger.numbers import RegionNumbers
from walferry.ledger.objects import Objects
from walferry.ledger.passes import Passes
from walferry.ledger.peer_looks import PeerLooks
from walferry.ledger.phases import Phases
from walferry.ledger.quarantine import Quarantine
from walferry.ledger.received import Received
from walferry.ledger.regions import Regions
from walferry.ledger.repairs import Repairs
from walferry.ledger.rounds import Rounds
from walferry.ledger.rows import AuditHead, AuditLine, Lease, PhaseRecord, RecordedFile, RunKind, RunRecord, RunState
from walferry.ledger.staged import StagedFiles
from walferry.ledger.store import Store, fetch


class RunLedger:
    """One run's part of the ledger, by sections.

    The part of an unknown run is empty; writing to it raises UsageError.
    """

    def __init__(self, whole: Ledger, store: Store, run_id: str) -> None:
        self.whole = whole
        """the ledger of all runs"""
        self._store = store
        self.run_id = run_id
        self.phases = Phases(store, run_id)
        self.objects = Objects(store, run_id)
        self.leases = Leases(store, run_id)
        self.log = Log(store, run_id)
        self.staged = StagedFiles(store, run_id)
        self.bases = Bases(store, run_id)
        self.numbers = RegionNumbers(store, run_id)
        self.regions = Regions(store, run_id)
        self.quarantine = Quarantine(store, run_id)
        self.comparisons = Comparisons(store, run_id)
        self.late = LateEdits(store, run_id)
        self.repairs = Repairs(store, run_id)
        self.batches = Batches(store, run_id)
        self.rounds = Rounds(store, run_id)
        self.notes = Notes(store, run_id)
        self.passes = Passes(store, run_id)
        self.peer_looks = PeerLooks(store, run_id)
        self.received = Received(store, run_id)

    @property
    def record(self) -> RunRecord:
        """The run's own record, as of now. Raises UsageError if there is no such run."""
        with self._store.database.read() as connection:
            return self._store.run(connection, self.run_id)

    def one_moment(self) -> AbstractContextManager[None]:
        """Until the block ends, everything that this thread reads is as of one moment, in one transaction."""
        return self._store.database.one_moment()

    def now(self) -> AbstractContextManager[None]:
        """Until the block ends, this thread reads the ledger as it is by then, even in `one_moment`."""
        return self._store.database.now()

    def require_running(self) -> None:
        """Raise UsageError if the run has ended or does not exist."""
        with self._store.database.read() as connection:
            self._store.unfinished(connection, self.run_id)

    def end(self, state: RunState, actor: str, outcome: str = "") -> RunRecord:
        """End the run as done, failed or aborted. Repeating it changes nothing; a different end raises UsageError."""
        return end_run(self._store, self.run_id, state, actor, outcome)

    def audit(self, actor: str, action: str, inputs: Mapping[str, Any], outcome: str = "") -> str:
        """Append a line to the audit trail. Returns the new head's hash. `inputs` must not contain secrets."""
        with self._store.database.write() as connection:
            return self._store.note(connection, action, self.run_id, inputs, outcome, actor)

    def audit_trail(self) -> list[AuditLine]:
        """The run's audit lines, oldest first."""
        table = self._store.table("audit")
        with self._store.database.read() as connection:
            return fetch(connection, AuditLine, table, table.c.run_id == self.run_id, order=(table.c.sequence,))

    def audit_page(self, count: int, skip: int = 0) -> tuple[int, list[AuditLine]]:
        """The number of the run's audit lines, and the `count` newest ones after skipping `skip`, newest first."""
        table = self._store.table("audit")
        of_run = table.c.run_id == self.run_id
        page = select(table).where(of_run).order_by(table.c.sequence.desc()).limit(count).offset(skip)
        with self._store.database.read() as connection:
            total = connection.execute(select(func.count()).select_from(table).where(of_run)).scalar_one()
            return total, [from_columns(AuditLine, row) for row in connection.execute(page).mappings()]  # type: ignore[arg-type]


class Ledger:
    """The open ledger. Several processes may use it at once; after a fork, open it again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url = store.database.url
        """The ledger's URL without the password."""

    @classmethod
    def open(cls, url: str, *, actor: str | None = None, create: bool = True) -> Ledger:
        """Open, create or migrate the ledger at `url`; `actor` (default: the OS user) signs the audit lines.

        `url` is sqlite:////path or postgresql+psycopg2://…; `process.open_ledger` takes it from the environment.
        Readers pass `create=False`, which creates and migrates nothing. Raises UsageError for a schema newer than this
        walferry, for a ledger from before 0.1.0, for a URL of another kind and, without `create`, if there is no ledger
        with this schema.
        """
        return cls(Store(Database(url, create=create), actor or user_name()))

    def close(self) -> None:
        """Close every connection."""
        self._store.database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.url})"

    def of(self, run_id: str) -> RunLedger:
        """One run's part."""
        return RunLedger(self, self._store, run_id)

    # ---- runs

    def open_run(
        self, name: str, owner: str, spec: Mapping[str, Any], actor: str, kind: RunKind = "migration"
    ) -> RunRecord:
        """The unfinished run of that name if owner, kind and spec are the same, otherwise a new run.

        `gaps` covers the tables in `spec["tables"]` ("ns:table", or {"source": "ns:table", …}).
        Raises UsageError if the unfinished run has another owner, kind or spec. But if this run has done nothing but a
        failed plan, this ends it and opens a new run.
        """
        runs = self._store.table("runs")
        with self._store.database.write() as connection:
            unfinished = fetch(connection, RunRecord, runs, runs.c.name == name, runs.c.state == "running")
            if unfinished:
                try:
                    run = _same_run(unfinished[0], owner, spec, kind)
                    if to_json(run.spec) != to_json(spec):
                        if "tables" in _MORE_CHANGEABLE.get(kind, ()):
                            _add_tables(self._store, connection, run, spec)
                        _update_run(self._store, connection, run.run_id, spec=to_json(spec))
                        self._store.note(connection, "change run", run.run_id, {"spec": spec}, actor=actor)
                    return replace(run, spec=dict(spec))
                except UsageError:
                    if not _only_planned(self._store, connection, unfinished[0].run_id):
                        raise
                    _end(
                        self._store,
                        connection,
                        unfinished[0],
                        "failed",
                        actor,
                        "gave way to a new run; it had changed nothing",
                    )
            number = connection.execute(select(func.count()).where(runs.c.name == name)).scalar_one() + 1
            run = RunRecord(f"{name}-{number}", name, owner, dict(spec), "running", False, "", now_ms(), None, kind)
            connection.execute(insert(runs).values(to_columns(run)))
            _insert_tables(self._store, connection, run.run_id, _source_tables(spec.get("tables", ())), 0)
            self._store.note(
                connection, "open run", run.run_id, {"owner": owner, "kind": kind, "spec": dict(spec)}, actor=actor
            )
        return run

    def run(self, run_id: str) -> RunRecord:
        """The run with that id. Raises UsageError if there is none."""
        with self._store.database.read() as connection:
            return self._store.run(connection, run_id)

    def find(self, name_or_run_id: str) -> RunRecord:
        """The run with that id, or the newest run with that name. Raises UsageError if there is none."""
        runs = self.runs()
        found = [run for run in runs if run.run_id == name_or_run_id] or [
            run for run in runs if run.name == name_or_run_id
        ]
        if found:
            return found[-1]
        alike = [run.run_id for run in runs if run.name.startswith(name_or_run_id)] or [run.run_id for run in runs]
        others = f"its newest are {', '.join(alike[:-6:-1])}" if alike else "it knows none"
        raise UsageError(f"the ledger {self.url} knows no run {name_or_run_id!r}; {others}", run=name_or_run_id)

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first."""
        runs = self._store.table("runs")
        order = (runs.c.created_ms, func.length(runs.c.run_id), runs.c.run_id)
        with self._store.database.read() as connection:
            return fetch(connection, RunRecord, runs, order=order)

    def adopt_run(self, run_id: str, owner: str, actor: str) -> RunRecord:
        """Hand an unfinished run over to another owner. Raises UsageError if the run has ended."""
        with self._store.database.write() as connection:
            run = self._store.unfinished(connection, run_id)
            if run.owner != owner:
                _update_run(self._store, connection, run_id, owner=owner)
                self._store.note(connection, "adopt run", run_id, {"from": run.owner, "to": owner}, actor=actor)
        return replace(run, owner=owner)

    def move_run(
        self, run_id: str, clusters: Mapping[str, Any], owner: str, spec: Mapping[str, Any], actor: str
    ) -> None:
        """Record that clusters of an unfinished run, or of a setup that is done, have other addresses, by their keys in
        its spec.

        Raises UsageError if the run has ended, and unless `open_run` then finds it for this owner and spec.
        """
        with self._store.database.write() as connection:
            run = self._store.run(connection, run_id)
            if (run.kind, run.state) != ("setup", "done"):
                self._store.unfinished(connection, run_id)
            moved = {**run.spec, **clusters}
            _same_run(replace(run, spec=moved), owner, spec, run.kind)
            _update_run(self._store, connection, run_id, spec=to_json(moved))
            self._store.note(connection, "move run", run_id, dict(clusters), actor=actor)

    def set_paused(self, run_id: str, paused: bool, actor: str, reason: str = "") -> RunRecord:
        """Ask an unfinished run to pause or continue. Raises UsageError if the run has ended."""
        with self._store.database.write() as connection:
            run = self._store.unfinished(connection, run_id)
            if run.paused != paused:
                _update_run(self._store, connection, run_id, paused=paused)
                action = "pause run" if paused else "resume run"
                self._store.note(connection, action, run_id, {"reason": reason}, actor=actor)
        return replace(run, paused=paused)

    # ---- across runs

    def leases(self, resource: str | None = None) -> list[Lease]:
        """Every lease ever taken (on `resource`), by number."""
        leases = self._store.table("leases")
        conditions = [leases.c.resource == resource] if resource else []
        with self._store.database.read() as connection:
            return fetch(connection, Lease, leases, *conditions, order=(leases.c.resource, leases.c.fencing_number))

    def files_between(self, run_ids: Collection[str], first: int, end: int) -> list[RecordedFile]:
        """WAL files that any of the runs saw, with numbers (creation times in ms) in [first, end). Each name appears
        once, with its largest known length."""
        wal_files = self._store.table("wal_files")
        known: dict[str, RecordedFile] = {}
        with self._store.database.read() as connection:
            for run_id in run_ids:
                last = func.coalesce(wal_files.c.folded_to, wal_files.c.number)
                of_run = (wal_files.c.run_id == run_id, last >= first, wal_files.c.number < end)
                for file in fetch(connection, RecordedFile, wal_files, *of_run):
                    if file.name not in known or known[file.name].length < file.length:
                        known[file.name] = file
        return sorted(known.values(), key=lambda file: (file.group, file.number))

    def audit(self, actor: str, action: str, run_id: str | None, inputs: Mapping[str, Any], outcome: str = "") -> str:
        """Append a line to the audit trail. Returns the new head's hash. `inputs` must not contain secrets."""
        with self._store.database.write() as connection:
            return self._store.note(connection, action, run_id, inputs, outcome, actor)

    def audit_trail(self) -> list[AuditLine]:
        """The audit lines of all runs, oldest first."""
        table = self._store.table("audit")
        with self._store.database.read() as connection:
            return fetch(connection, AuditLine, table, order=(table.c.sequence,))

    def audit_head(self) -> AuditHead:
        """The newest audit line. Keep a copy out of reach of everyone who can change the ledger."""
        with self._store.database.read() as connection:
            return chain.head(connection, self._store.table("audit"))

    def verify_audit(self, expected: AuditHead | None = None) -> None:
        """Verify the chain. Raises WalferryError that names the first line that was changed, removed or moved.

        Only `expected`, a head noted earlier, reveals lines cut off the end.
        """
        table = self._store.table("audit")
        with self._store.database.read() as connection:
            lines = connection.execution_options(yield_per=1000).execute(select(table).order_by(table.c.sequence))
            chain.verify((dict(line) for line in lines.mappings()), expected)


def end_run(store: Store, run_id: str, state: RunState, actor: str, outcome: str = "") -> RunRecord:
    """End a run as done, failed or aborted. Repeating it changes nothing; a different end raises UsageError."""
    with store.database.write() as connection:
        run = store.run(connection, run_id)
        if run.state == state != "running":
            return run
        if run.state != "running" or state == "running":
            raise UsageError(f"run {run_id} has ended: it is {run.state}, and cannot become {state}", run=run_id)
        return _end(store, connection, run, state, actor, outcome)


def _end(store: Store, connection: Connection, run: RunRecord, state: RunState, actor: str, outcome: str) -> RunRecord:
    ended = replace(run, state=state, outcome=outcome, ended_ms=now_ms())
    _update_run(store, connection, run.run_id, state=state, outcome=outcome, ended_ms=ended.ended_ms)
    for name in ("pieces", "batches"):  # no run will continue them
        table = store.table(name)
        connection.execute(delete(table).where(table.c.run_id == run.run_id))
    store.note(connection, "end run", run.run_id, {"state": state}, outcome, actor)
    return ended


def _only_planned(store: Store, connection: Connection, run_id: str) -> bool:
    """Whether a run has done nothing but a failed plan."""
    phases = store.table("phases")
    return [(p.phase, p.state) for p in fetch(connection, PhaseRecord, phases, phases.c.run_id == run_id)] == [
        ("plan", "failed")
    ]


def _update_run(store: Store, connection: Connection, run_id: str, **values: Any) -> None:
    runs = store.table("runs")
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(**values))


CHANGEABLE = ("source_requests", "throttle", "spot_check", "follow")
"""keys of the spec that may change while a run is unfinished"""
CHANGEABLE_OF_STREAM = ("tables", "max_lag", "create_topics", "large_messages", "parquet")
"""further such keys of a stream; its tables may become more, not less"""
CHANGEABLE_OF_KEEP = ("tables", "base_hours", "copy_bases", "keep_days", "keep_bytes", "tail_seconds")
"""further such keys of a run that keeps what restores any moment; its tables may become more, not less"""
CHANGEABLE_OF_SETUP = ("max_lag", "ship_minutes")
"""further such keys of a run that sets up HBase's own replication: they only say how long to wait"""
CHANGEABLE_OF_RECEIVE = ("max_lag", "create_topics", "large_messages")
"""further such keys of a run to which a source replicates"""
_MORE_CHANGEABLE: Mapping[RunKind, tuple[str, ...]] = {
    "stream": CHANGEABLE_OF_STREAM, "keep": CHANGEABLE_OF_KEEP, "setup": CHANGEABLE_OF_SETUP,
    "receive": CHANGEABLE_OF_RECEIVE,
}  # fmt: skip


def _fixed(spec: Mapping[str, Any], kind: RunKind) -> str:
    """The unchangeable part of a spec, as JSON. Pairs and native replication have no end, so only their clusters are
    fixed, without their Thrift servers."""
    if kind in ("pair", "replication"):
        return to_json({key: _without_thrift(spec.get(key)) for key in ("source", "target")})
    changeable = CHANGEABLE + _MORE_CHANGEABLE.get(kind, ())
    return to_json({key: _given(value) for key, value in spec.items() if key not in changeable})


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any], kind: RunKind) -> str:
    """The unchangeable keys that differ, such as `source.zookeeper`."""
    found = []
    for key in sorted(before.keys() | now.keys()):
        one, other = _given(before.get(key)), _given(now.get(key))
        if _fixed({key: one}, kind) == _fixed({key: other}, kind):
            continue
        inside = isinstance(one, Mapping) and isinstance(other, Mapping)
        named = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)) if inside else []
        found += [f"{key}.{name}" for name in named] or [key]
    return ", ".join(found)


def _given(value: Any) -> Any:
    """A spec's cluster without the keys that are not set: an older walferry did not record them all."""
    return {key: one for key, one in value.items() if one is not None} if isinstance(value, Mapping) else value


def _without_thrift(cluster: Any) -> Any:
    """A spec's cluster without the address of its Thrift server."""
    if not isinstance(cluster, Mapping):
        return cluster
    return {key: value for key, value in cluster.items() if key != "thrift"}


def _same_run(run: RunRecord, owner: str, spec: Mapping[str, Any], kind: RunKind) -> RunRecord:
    differing = [
        what
        for what, same in (
            ("owner", run.owner == owner),
            ("kind", run.kind == kind),
            (f"spec ({_unlike(run.spec, spec, kind)})", _fixed(run.spec, kind) == _fixed(spec, kind)),
        )
        if not same
    ]
    if not differing:
        return run
    resume = "" if run.kind in ("window", "receive") else f" or by `walferry resume {run.name}`"
    raise UsageError(
        f"run {run.run_id} of {run.name!r} is unfinished and belongs to {run.owner}, with another "
        f"{' and '.join(differing)} than this one ({owner}): continue it as it was started, by clearing its "
        f"failed tasks in Airflow{resume}, or end it by `walferry abort {run.name} --reason …`",
        run=run.run_id,
        owner=run.owner,
        differing=differing,
    )


def _add_tables(store: Store, connection: Connection, run: RunRecord, spec: Mapping[str, Any]) -> None:
    """Add the tables of a changed spec to those of a run. Raises UsageError if one is missing: its coverage is
    recorded."""
    known, wanted = _source_tables(run.spec.get("tables", ())), _source_tables(spec.get("tables", ()))
    if missing := sorted(set(known) - set(wanted)):
        raise UsageError(
            f"run {run.run_id} has {', '.join(missing)}, which its spec no longer names: a run keeps its tables until "
            f"it ends (`walferry abort {run.name} --reason …`)",
            run=run.run_id, tables=missing,
        )  # fmt: skip
    _insert_tables(store, connection, run.run_id, [table for table in wanted if table not in known], len(known))


def _insert_tables(store: Store, connection: Connection, run_id: str, tables: Sequence[str], first: int) -> None:
    rows = [
        {"run_id": run_id, "table_name": table, "table_number": number} for number, table in enumerate(tables, first)
    ]
    if rows:
        connection.execute(insert(store.table("run_tables")), rows)


def _source_tables(tables: Iterable[str | Mapping[str, str]]) -> list[str]:
    """The sorted names of the source tables, as in the WAL: without the namespace `default`."""
    names = (table if isinstance(table, str) else table["source"] for table in tables)
    return sorted({name.removeprefix("default:") for name in names})


def user_name() -> str:
    """The user of this process: $USER, or else the operating system's name."""
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"

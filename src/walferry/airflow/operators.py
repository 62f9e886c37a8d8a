"""Operators, and what every task has in common: open the run, report errors in one line, do not retry final ones.

The operators take the id of a run, as `open_run` returns it, and return the same id. So they combine with @task
functions, which use `step`. The ledger records what is done: any task may be killed, retried or cleared.

A task imports PySpark and Great Expectations only when it runs, because Airflow parses DAGs all the time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, BaseOperatorLink, get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import walferry
from walferry.airflow.hook import airflow_connection
from walferry.airflow.links import BoardLink, DocsLink, SparkLink
from walferry.airflow.spark_submit import SparkHook
from walferry.errors import TransientError, UsageError, WalferryError, is_transient
from walferry.ledger import Ledger
from walferry.ledger.rows import RunKind
from walferry.process import open_ledger, opened, quiet_libraries, reports_folder
from walferry.run.heartbeat import note_submitted
from walferry.run.run import Run
from walferry.run.start import start_run

log = logging.getLogger(__name__)

SPARK_APP = Path(walferry.__file__).with_name("spark_app.py")
ACTOR = "airflow"
"""signs the audit lines of tasks and their Spark apps"""
_POLL_SECONDS = 5.0


@contextmanager
def final_errors() -> Iterator[None]:
    """Let Airflow retry transient errors; any other WalferryError fails the task for good, in one line."""
    quiet_libraries()
    try:
        yield
    except WalferryError as error:
        if is_transient(error):
            raise
        raise AirflowFailException(str(error)) from None


@contextmanager
def step(run_id: str) -> Iterator[Run]:
    """Open a run for a task; errors are handled as in `final_errors`."""
    with final_errors(), opened(run_id, actor=ACTOR) as run:
        yield run


def open_run(
    name: str, tables: Sequence[Any], *, owner: str | None = None, kind: RunKind = "migration", **keys: Any
) -> str:
    """Open a run in the ledger, or find the unfinished one of the same owner and spec. Returns its id. For a @task.

    `kind` decides the phases: a whole migration, a `copy` as of one moment, a `standby` that follows the log until
    somebody ends it, or a `comparison` (walferry/run/phases.py). `keys` are keys of a spec: `source` and `target` (ids
    of connections of type `hbase`), `write_stop`, `max_lag`… The owner defaults to the calling DAG run. An unusable
    spec fails the task for good.
    """
    context = get_current_context()
    if owner is None:
        owner = f"airflow {context['dag'].dag_id} {context['run_id']}"
    with final_errors(), open_ledger() as ledger:
        run_id = start_run(ledger, {"name": name, "tables": list(tables), **keys}, airflow_connection, owner, kind)
        record_trigger(ledger, run_id, context)
        return run_id


def record_trigger(ledger: Ledger, run_id: str, context: Mapping[str, Any]) -> None:
    """Record in the audit trail who has triggered a task's DAG run, if a person has. Repeating it does nothing."""
    person = getattr(context.get("dag_run"), "triggering_user_name", None)
    trail, about = ledger.of(run_id), {"dag_run": context["run_id"]}
    if person and not any((line.action, line.inputs) == ("trigger", about) for line in trail.audit_trail()):
        trail.audit(f"{ACTOR} {person}", "trigger", about)


def do_phase(
    run: Run,
    phase: str,
    table: str = "",
    by: str | None = None,
    said_ms: int | None = None,
    outcome: str | None = None,
) -> None:
    """Do a phase that is not a Spark job, unless the ledger says that it is done; `by`, `said_ms`: who approved, when.

    This never starts Spark. If some work turns out to be too large to do without Spark, the phase leaves it out, as
    `open_target` does, or raises NoSparkError.
    """
    from walferry.pipeline import PhaseContext, do, without_spark

    do(run, phase, table, PhaseContext(without_spark(phase), _docs(), by, said_ms, outcome))


def finish(run_id: str, outcome: str | None = None) -> None:
    """End a run, and remove what it created on the clusters, except the target tables. For a @task."""
    with step(run_id) as run:
        do_phase(run, "release", outcome=outcome)


class WalferrySparkOperator(BaseOperator):
    """Submits a phase of a run as a Spark app to the master of the Spark connection.

    With `local[…]` the app is one process. On a cluster its driver runs on this task's host (deploy mode `client`) and
    the executors are bounded by CLUSTER_CONF; extras of the connection: `archives` (a packed environment, see
    `python -m walferry.spark pack`), `conf` (Spark properties), `ui` (the master's web page), `queue`, `namespace`.
    The operator's `conf` overrides the connection's.

    With `through`, a later phase, the app continues with the phases up to that one; the phases' own tasks do what the
    app leaves undone. The app ends with this task's process. An error that the app recorded as final is not retried.
    """

    template_fields: Sequence[str] = ("run", "phase", "table", "conf")
    operator_extra_links: tuple[BaseOperatorLink, ...] = (BoardLink(), SparkLink())

    def __init__(
        self,
        *,
        run: str,
        phase: str,
        table: str = "",
        through: str = "",
        conn_id: str = SparkHook.default_conn_name,
        conf: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.phase = phase
        self.table = table
        self.through = through
        self.conn_id = conn_id
        self.conf = dict(conf or {})
        self.spark_page = ""
        self._hook: SparkHook | None = None

    def execute(self, context: Any) -> Any:
        """Submit the app and wait until it ends."""
        self.submit(self.table)

    def on_kill(self) -> None:
        """End the app when the task is ended."""
        if self._hook is not None:
            self._hook.kill()

    def submit(self, table: str = "") -> None:
        """Submit the app for a table (or the whole run) and wait until it ends. Submits nothing for a phase that is
        done; raises the errors of `Run.is_due` for a phase that may not start."""
        with step(self.run) as run:
            label = f"{self.phase} {table}".strip()
            if not run.is_due(self.phase, table):
                log.info("%s: already done", label)
                return
            attempts = _attempts(run, self.phase, table)
            note_submitted(run.ledger, label)
        self._hook = SparkHook(self.conn_id)
        with final_errors():
            command = self.command(self._hook, table)
        log.info("%s", " ".join(command))
        code, error = self._hook.run(command, self._show_page)
        if code:
            with step(self.run) as run:
                self._raise_recorded(run, table, attempts + 1)
                run.ledger.require_running()
            raise AirflowException(error or f"spark-submit ended with exit code {code}; its output is above")

    def command(self, hook: SparkHook, table: str = "") -> list[str]:
        """The command line of the app."""
        arguments = [self.phase, self.run, *([table] if table else []), "--parent", str(os.getpid()), "--actor", ACTOR]
        arguments += ["--through", self.through] if self.through else []
        conf = {"spark.ui.enabled": "false"} | self.conf
        return hook.command(str(SPARK_APP), arguments, name=f"walferry {self.phase}", conf=conf)

    def _show_page(self, page: str) -> None:
        self.spark_page = page
        get_current_context()["ti"].xcom_push(key=SparkLink().xcom_key, value=page)

    def _raise_recorded(self, run: Run, table: str, attempt: int) -> None:
        """Raise the error that this attempt recorded. If it recorded none (it was killed, or never started the phase),
        return without raising: an older attempt's error may no longer apply."""
        phase = run.ledger.phases.find(self.phase, table)
        if phase is None or (phase.state, phase.attempts) != ("failed", attempt):
            return
        raise (AirflowException if phase.transient else AirflowFailException)(phase.message) from None


class HBaseSnapshotOperator(BaseOperator):
    """Examines both clusters, makes the source keep its WALs, sets the start fence and takes a FLUSH snapshot of
    each of the run's tables. Returns the run's id."""

    template_fields = ("run",)
    operator_extra_links = (BoardLink(),)

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def execute(self, context: Any) -> str:
        """Do what the ledger does not have yet."""
        with step(self.run) as run:
            for phase in ("plan", "protect", "fence"):
                do_phase(run, phase)
            for pair in run.tables:
                do_phase(run, "snapshot", pair.source)
        return self.run


class HBaseCopyOperator(WalferrySparkOperator):
    """Copies the snapshots' files, clones the target tables from them and checks them. Returns the run's id.

    Use it after HBaseSnapshotOperator.
    """

    operator_extra_links = (BoardLink(), DocsLink(), SparkLink())

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(run=run, phase="copy", **kwargs)

    def execute(self, context: Any) -> str:
        """Do what the ledger does not have yet, table by table."""
        tables = _tables(self.run)
        for table in tables:
            self.submit(table)
        with step(self.run) as run:
            for table in tables:
                do_phase(run, "clone", table)
            do_phase(run, "check_copy")
        return self.run


class HBaseReplayOperator(WalferrySparkOperator):
    """Follows the source's log and applies it until the run's writes have stopped. Returns the run's id.

    Use it after HBaseCopyOperator, in parallel with HBaseCutoverOperator (or a @task that does `write_stop`).
    """

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(run=run, phase="replay", **kwargs)

    def execute(self, context: Any) -> str:
        """Submit the app and wait until it ends."""
        self.submit()
        return self.run


class HBaseCutoverOperator(WalferrySparkOperator):
    """Waits until the gate is open, stops the writes, applies the rest of the log, and opens the target to clients if
    the rows written last are equal on both sides. Returns the run's id.

    `approval` is a person's answer from an ApprovalOperator. With `write_stop: confirm` (the default) only the writers'
    owner knows whether writes have stopped: pass the answer of a second ApprovalOperator as `writes_stopped`.
    `wait_seconds` bounds the wait for the gate, and then the wait for the replay to end.
    """

    template_fields = (*WalferrySparkOperator.template_fields, "approval", "writes_stopped")

    def __init__(
        self,
        *,
        run: str,
        approval: Any,
        writes_stopped: Any = None,
        wait_seconds: float = 3600,
        **kwargs: Any,
    ) -> None:
        super().__init__(run=run, phase="drain", **kwargs)
        self.approval = approval
        self.writes_stopped = writes_stopped
        self.wait_seconds = wait_seconds

    def execute(self, context: Any) -> str:
        """Do what the ledger does not have yet."""
        with step(self.run) as run:
            person, confirmed_by = f"airflow {approved_by(self.approval)}", None
            if run.spec.write_stop == "confirm":
                confirmed_by = f"airflow {approved_by(self.writes_stopped)}"
            self._approve(run, person)
            do_phase(run, "write_stop", by=confirmed_by, said_ms=answered_ms(self.writes_stopped))
            self._await_end_of_replay(run)
            do_phase(run, "end_fence")
        self.submit()
        with step(self.run) as run:
            do_phase(run, "open_target")
        return self.run

    def _approve(self, run: Run, by: str) -> None:
        from walferry.cutover.gates import before_cutover
        from walferry.errors import GateShutError

        deadline = time.monotonic() + self.wait_seconds
        while run.ledger.phases.facts("approve") is None:
            try:
                before_cutover(run)
                do_phase(run, "approve", by=by)
            except GateShutError as shut:
                if time.monotonic() > deadline:
                    raise
                log.info("not yet: %s", "; ".join(shut.facts["reasons"]))
                time.sleep(_POLL_SECONDS)

    def _await_end_of_replay(self, run: Run) -> None:
        deadline = time.monotonic() + self.wait_seconds
        while run.ledger.phases.facts("replay") is None:
            if time.monotonic() > deadline:
                raise TransientError(f"the replay of {self.run} has not ended in {self.wait_seconds:.0f} s")
            time.sleep(_POLL_SECONDS)


class HBaseCompareOperator(WalferrySparkOperator):
    """Compares both sides of each table, region by region, and fails when a difference has no explanation.

    After HBaseCutoverOperator this is the last check of a migration, with Great Expectations, gaps and late edits. In a
    run of its own, opened by `open_run`, it compares tables that something else keeps in sync. Returns the run's id.
    """

    operator_extra_links = (BoardLink(), DocsLink(), SparkLink())

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(run=run, phase="compare", **kwargs)

    def execute(self, context: Any) -> str:
        """Do what the ledger does not have yet, table by table."""
        from walferry.cutover.gates import require_alike

        with step(self.run) as run:
            moves = run.record.kind == "migration"
            if not moves:
                do_phase(run, "fence")  # the log past this fence has the writes during the comparison
            elif run.ledger.phases.facts("drain") is None:
                raise UsageError(
                    f"run {self.run} still replays: compare it after HBaseCutoverOperator, or in a run of its own"
                )
        for table in _tables(self.run):
            self.submit(table)
        with step(self.run) as run:
            if moves:
                do_phase(run, "check_drain")
            else:
                require_alike(run)
        return self.run


def approved_by(answer: Any) -> str:
    """Who approved, from an ApprovalOperator's answer. Raises UsageError if there is no answer, or a rejection."""
    try:
        chosen, person = answer["chosen_options"], answer["responded_by_user"]["name"]
    except (TypeError, KeyError):
        raise UsageError("no person's answer was given: pass the output of an ApprovalOperator") from None
    if list(chosen) != ["Approve"]:
        raise UsageError(f"{person} answered {', '.join(chosen)}: the cutover is not approved")
    return str(person)


def answered_ms(answer: Any) -> int | None:
    """When a person answered an ApprovalOperator, in ms since 1970; None if there is no such answer."""
    at = answer.get("responded_at") if isinstance(answer, Mapping) else None
    if at is None:
        return None
    return round((datetime.fromisoformat(at) if isinstance(at, str) else at).timestamp() * 1000)


def _tables(run_id: str) -> list[str]:
    with step(run_id) as run:
        return [pair.source for pair in run.tables]


def _attempts(run: Run, phase: str, table: str) -> int:
    """How often a phase has been started so far."""
    known = run.ledger.phases.find(phase, table)
    return known.attempts if known else 0


def _docs() -> Path:
    return reports_folder() / "data_docs"

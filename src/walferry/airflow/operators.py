"""Operators and the frame of every task: open the run, say errors in one line, fail for good what is final.

The operators take the id of a run, as `open_run` returns it, and hand it on: they mix with @task functions, whose
frame is `step`. What is done stands in the ledger, so that any task may be killed, retried or cleared.

What the work needs (PySpark, Great Expectations) is imported when a task runs: Airflow parses DAGs all the time.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink, get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from walferry.airflow.hook import airflow_connection
from walferry.airflow.links import BoardLink, DocsLink, SparkLink
from walferry.errors import SidesDifferError, TransientError, UsageError, WalferryError
from walferry.ledger.rows import RunKind
from walferry.process import opened, quiet_libraries, reports_folder
from walferry.run.run import Run
from walferry.run.start import start_run

log = logging.getLogger(__name__)

SPARK_APPS = Path(os.environ.get("WALFERRY_SPARK_APPS", Path(__file__).parents[3] / "spark_apps"))
SPARK_CONN_ID = "spark_default"
CLUSTER_CONF = {"spark.executor.cores": "1", "spark.executor.memory": "1g", "spark.cores.max": "2"}
"""of an app on a cluster, unless the connection's extra `conf` or the operator says otherwise"""
ENVIRONMENT = "environment"
"""the folder in which an executor unpacks the connection's extra `archives`"""

_APP_ID = re.compile(r"\b(app-\d{14}-\d+|application_\d+_\d+)\b")
_POLL_SECONDS = 5.0


@contextmanager
def final_errors() -> Iterator[None]:
    """Let Airflow retry what is transient; everything else fails the task at once, in one line."""
    quiet_libraries()
    try:
        yield
    except TransientError:
        raise
    except WalferryError as error:
        raise AirflowFailException(str(error)) from None


@contextmanager
def step(run_id: str) -> Iterator[Run]:
    """The frame of a task of a run: the migration, with errors as `final_errors` has them."""
    with final_errors(), opened(run_id, actor="airflow") as run:
        yield run


def open_run(
    name: str, tables: Sequence[Any], *, owner: str | None = None, kind: RunKind = "migration", **keys: Any
) -> str:
    """Open a run in the ledger, or find the unfinished one of the same owner and spec again; its id. For a @task.

    `kind` says which phases it has: a whole migration, a `copy` as of one moment, a `standby` that follows until
    somebody ends it, or a `comparison` (walferry/run/phases.py). `keys` are those of a spec: `source` and `target`
    (ids of connections of type `hbase`), `write_stop`, `max_lag`… The owner is the DAG run that asks, if none is given.
    An unusable spec fails the task for good.
    """
    if owner is None:
        context = get_current_context()
        owner = f"airflow {context['dag'].dag_id} {context['run_id']}"
    with final_errors():
        return start_run({"name": name, "tables": list(tables), **keys}, airflow_connection, owner, kind)


def finish(run_id: str, outcome: str = "done") -> None:
    """Remove what the run made on the clusters, target tables aside, and end it. For a @task."""
    from walferry.replay import protect

    with step(run_id) as run:
        protect.finish(run, outcome)


class WalferrySparkOperator(SparkSubmitOperator):
    """Submits one of walferry's Spark apps for a run, to where the Spark connection points.

    With `local[…]` the app is one process. On a cluster its driver stays beside this task (deploy mode `client`) and
    the executors are bounded by CLUSTER_CONF; extras of the connection: `archives` (a packed environment, see
    `python -m walferry.spark pack`), `conf` (Spark properties), `ui` (the master's web page).

    The app ends when this task's process does; a final error of the app (its exit code is not 1, or the ledger says
    so) is not retried.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "run", "phase", "table")
    operator_extra_links: tuple[BaseOperatorLink, ...] = (BoardLink(), SparkLink())

    def __init__(self, *, app: str, run: str, phase: str, table: str = "", **kwargs: Any) -> None:
        super().__init__(
            application=str(SPARK_APPS / app),
            conf={"spark.ui.enabled": "false"} | kwargs.pop("conf", {}),
            name=f"walferry {phase}",
            conn_id=kwargs.pop("conn_id", SPARK_CONN_ID),
            **kwargs,
        )
        self.run = run
        self.phase = phase
        self.table = table
        self.spark_page = ""

    def execute(self, context: Any) -> Any:
        """Submit the app and wait for its end."""
        self.submit(context, self.table)

    def submit(self, context: Any, table: str = "") -> None:
        """Submit the app for a table (or the whole run) and wait for its end."""
        self.application_args = [self.run, *([table] if table else []), "--parent", str(os.getpid())]
        self._hook = None  # each carries one app
        try:
            super().execute(context)
        except AirflowFailException:
            raise
        except AirflowException:
            with opened(self.run, actor="airflow") as run:
                self._give_up_if_final(run, table)
            raise

    def submit_missing(self, context: Any, tables: Iterable[str]) -> None:
        """Submit the app for each table for which the ledger has no such phase done."""
        for table in tables:
            with step(self.run) as run:
                done = run.ledger.phases.facts(self.phase, table) is not None
            if not done:
                self.submit(context, table)

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        master = hook._connection["master"]
        if master.startswith("local"):
            return hook
        if hook._connection["deploy_mode"] == "cluster":
            raise AirflowFailException(
                f"connection {self._conn_id}: set deploy-mode to client; walferry's drivers stay beside their task"
            )
        extra = BaseHook.get_connection(self._conn_id).extra_dejson
        hook._conf = cluster_conf(extra) | hook._conf
        if archives := extra.get("archives"):
            hook._archives = f"{archives}#{ENVIRONMENT}"
        if ui := extra.get("ui"):
            read = hook._process_spark_submit_log

            def read_and_look(itr: Iterator[Any]) -> None:
                read(self._find_page(itr, master, ui))

            hook._process_spark_submit_log = read_and_look  # type: ignore[method-assign]
        return hook

    def _find_page(self, lines: Iterable[str], master: str, ui: str) -> Iterator[str]:
        """Hand spark-submit's lines on; the first that names the app tells where its page is."""
        for line in lines:
            if not self.spark_page and (found := _APP_ID.search(line)):
                self.spark_page = app_page(ui, master, found[1])
                get_current_context()["ti"].xcom_push(key=SparkLink().xcom_key, value=self.spark_page)
            yield line

    def _give_up_if_final(self, run: Run, table: str) -> None:
        for phase in run.ledger.phases.all():
            if (phase.phase, phase.subject, phase.state) == (self.phase, table, "failed"):
                kind, _, message = phase.error.partition(": ")
                if not is_transient(kind):
                    raise AirflowFailException(message) from None
                raise AirflowException(message) from None


def cluster_conf(extra: Mapping[str, Any]) -> dict[str, str]:
    """Spark's properties for an app on a cluster, from the extras of its connection."""
    python = {}
    if extra.get("archives"):
        python = {"spark.pyspark.python": f"./{ENVIRONMENT}/bin/python", "spark.pyspark.driver.python": sys.executable}
    return CLUSTER_CONF | python | {key: str(value) for key, value in (extra.get("conf") or {}).items()}


def app_page(ui: str, master: str, app_id: str) -> str:
    """Where a browser finds an app: at a standalone master, or at YARN's resource manager; else what `ui` says."""
    if master.startswith("spark://"):
        return f"{ui.rstrip('/')}/app/?appId={app_id}"
    if master.startswith("yarn"):
        return f"{ui.rstrip('/')}/cluster/app/{app_id}"
    return ui


class HBaseSnapshotOperator(BaseOperator):
    """Examines both clusters, makes the source keep its WALs, sets the start fence and takes a FLUSH snapshot of
    each table of the run. Returns the run's id."""

    template_fields = ("run",)
    operator_extra_links = (BoardLink(),)

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def execute(self, context: Any) -> str:
        """Do what the ledger does not have yet."""
        from walferry.migration.copy import snapshot
        from walferry.migration.plan import plan_run
        from walferry.replay.cut import start_fence
        from walferry.replay.protect import protect

        with step(self.run) as run:
            plan_run(run)
            protect(run)
            start_fence(run)
            for pair in run.tables:
                snapshot(run, pair.source)
        return self.run


class HBaseCopyOperator(WalferrySparkOperator):
    """Copies the snapshots' files, clones the target tables from them and checks them. Returns the run's id.

    Comes after HBaseSnapshotOperator.
    """

    operator_extra_links = (BoardLink(), DocsLink(), SparkLink())

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(app="copy_snapshot.py", run=run, phase="copy", **kwargs)

    def execute(self, context: Any) -> str:  # type: ignore[override]
        """Do what the ledger does not have yet, table by table."""
        from walferry.checks.gates import check_copy
        from walferry.migration.copy import clone

        tables = _tables(self.run)
        self.submit_missing(context, tables)
        with step(self.run) as run:
            for table in tables:
                clone(run, table)
            check_copy(run, _docs())
        return self.run


class HBaseReplayOperator(WalferrySparkOperator):
    """Follows the source's log and applies it until the run's writes have stopped. Returns the run's id.

    Comes after HBaseCopyOperator, and beside HBaseCutoverOperator (or a @task that calls `stop_writes`).
    """

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(app="replay_wal.py", run=run, phase="replay", **kwargs)

    def execute(self, context: Any) -> str:  # type: ignore[override]
        """Submit the app and wait for its end."""
        self.submit(context)
        return self.run


class HBaseCutoverOperator(WalferrySparkOperator):
    """Waits until the gate is open, stops the writes, and applies the rest of the log. Returns the run's id.

    `approval` is the answer that an ApprovalOperator got from a person. With `write_stop: confirm` (the default of a
    spec) nobody but the writers' owner can tell that writes have stopped: `writes_stopped` is that answer.
    `wait_seconds` bounds the wait for the gate, and then for the replay to end.
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
        super().__init__(app="drain_wal.py", run=run, phase="drain", **kwargs)
        self.approval = approval
        self.writes_stopped = writes_stopped
        self.wait_seconds = wait_seconds

    def execute(self, context: Any) -> str:  # type: ignore[override]
        """Do what the ledger does not have yet."""
        from walferry.migration.cutover import stop_writes
        from walferry.replay.cut import end_fence

        with step(self.run) as run:
            person, confirmed_by = f"airflow {approved_by(self.approval)}", None
            if run.spec.write_stop == "confirm":
                confirmed_by = f"airflow {approved_by(self.writes_stopped)}"
            self._approve(run, person)
            stop_writes(run, confirmed_by)
            self._await_end_of_replay(run)
            end_fence(run)
        self.submit(context)
        return self.run

    def _approve(self, run: Run, by: str) -> None:
        from walferry.checks.gates import before_cutover
        from walferry.errors import GateShutError
        from walferry.migration.cutover import approve

        deadline = time.monotonic() + self.wait_seconds
        while run.ledger.phases.facts("approve") is None:
            try:
                before_cutover(run)
                approve(run, by, before_cutover)
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

    After HBaseCutoverOperator it is the last check of a migration: Great Expectations, gaps and late edits included.
    With a run of its own, fresh from `open_run`, it compares tables that other means keep alike. Returns the run's id.
    """

    operator_extra_links = (BoardLink(), DocsLink(), SparkLink())

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(app="compare_table.py", run=run, phase="compare", **kwargs)

    def execute(self, context: Any) -> str:  # type: ignore[override]
        """Do what the ledger does not have yet, table by table."""
        from walferry.checks.gates import check_drain
        from walferry.migration.report import summary
        from walferry.replay.cut import start_fence

        with step(self.run) as run:
            moves = run.record.kind == "migration"
            if not moves:
                start_fence(run)  # from here on the log tells what was written meanwhile
            elif run.ledger.phases.facts("drain") is None:
                raise UsageError(
                    f"run {self.run} still replays: compare it after HBaseCutoverOperator, or in a run of its own"
                )
        self.submit_missing(context, _tables(self.run))
        with step(self.run) as run:
            if moves:
                check_drain(run, _docs())
            elif unexplained := summary(run.ledger)["unexplained"]:
                raise SidesDifferError(
                    f"{unexplained} rows differ without an explanation; see `walferry report {self.run}`"
                )
        return self.run


def approved_by(answer: Any) -> str:
    """Who approved, from an ApprovalOperator's answer; UsageError when it is none, or a rejection."""
    try:
        chosen, person = answer["chosen_options"], answer["responded_by_user"]["name"]
    except (TypeError, KeyError):
        raise UsageError("no person's answer was given: pass the output of an ApprovalOperator") from None
    if list(chosen) != ["Approve"]:
        raise UsageError(f"{person} answered {', '.join(chosen)}: the cutover is not approved")
    return str(person)


def _tables(run_id: str) -> list[str]:
    with step(run_id) as run:
        return [pair.source for pair in run.tables]


def _docs() -> Path:
    return reports_folder() / "data_docs"


def is_transient(class_name: str) -> bool:
    """Whether the error class that a phase recorded may go away by itself; unknown ones (a bug, a kill) may."""
    kinds: list[type[WalferryError]] = [WalferryError]
    while kinds:
        kind = kinds.pop()
        if kind.__name__ == class_name:
            return issubclass(kind, TransientError)
        kinds += kind.__subclasses__()
    return True

"""Keep what restores any later moment of HBase tables: bases (snapshots), the log, and the ends of open logs.

Trigger it with the form; each run is one DAG run, and several run side by side. The first task examines the source and
the folder, the second one creates the folder. The task `keep` then copies the log and takes bases, until `walferry
abort NAME` ends it, which deletes what was kept. It takes a worker's slot all that time and needs no Spark. It may be
killed, retried or cleared at any time: the next attempt goes on. While `walferry pause` is in force, the log is still
copied. To keep more tables, or to change the times, mark the DAG run as failed and trigger the DAG with the same name:
the new DAG run goes on with it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, get_current_context, task

from walferry.airflow.dag_parts import (
    FOR_EVER,
    MOST_RUNS,
    TASK_DEFAULTS,
    owned_step,
    retried_while_busy,
    spec_params,
    until_ended,
)
from walferry.airflow.hook import airflow_connection
from walferry.airflow.links import BoardLink, ReportLink, add_links
from walferry.airflow.operators import ACTOR, final_errors, record_trigger
from walferry.ledger import Ledger
from walferry.moments.keeping.keep_spec import KeepSpec
from walferry.process import open_ledger
from walferry.run.phases import phase_of

if TYPE_CHECKING:
    from walferry.moments.keeping.keep_run import KeepRun

KEYS = (
    "name", "source", "tables", "folder", "base_hours", "copy_bases", "keep_days", "keep_bytes", "tail_seconds",
    "source_requests",
)  # fmt: skip
PARAMS = spec_params(model=KeepSpec, keys=KEYS, defaults={"name": "moments", "tables": [], "folder": ""})


def keep_step(run_id: str) -> AbstractContextManager[KeepRun]:
    """Open a run for a task; see `owned_step`."""

    def opened(ledger: Ledger) -> KeepRun:
        from walferry.moments.keeping.keep_run import KeepRun

        return KeepRun(ledger, run_id, ACTOR)

    return owned_step(run_id, _owner(), opened)


@task
def plan() -> str:
    """Open the run in the ledger, examine the source and the folder, refuse what cannot be kept."""
    from walferry.moments.keeping.start import start_keep

    with final_errors(), open_ledger() as ledger:
        params = dict(get_current_context()["params"])
        with retried_while_busy():
            run_id = start_keep(ledger, params, airflow_connection, _owner())
        record_trigger(ledger, run_id, get_current_context())
    _do(run_id, "plan")
    return run_id


@task
def do(run: str, phase: str) -> str:
    """Do a phase. Returns the run's id."""
    _do(run, phase)
    return run


@task(retries=FOR_EVER)
def keep(run: str) -> str:
    """Keep until a person ends the run. Returns how it ended.

    The task is skipped if another process goes on with the run, and not tried again.
    """
    from walferry.moments.keeping.keep import keep_on

    with keep_step(run) as opened:
        return until_ended(opened, keep_on)


def _do(run_id: str, phase: str) -> None:
    with keep_step(run_id) as run:
        from walferry.moments.keeping.keep import WORK

        WORK[phase](run)


def _owner() -> str:
    return f"airflow {get_current_context()['run_id']}"


def hbase_keep_log() -> DAG:
    """The DAG that keeps what restores any moment: one task for each phase of a run of kind `keep` (`run.phases`)."""
    with DAG(
        "hbase_keep_log",
        schedule=None,
        catchup=False,
        max_active_runs=MOST_RUNS,
        max_active_tasks=MOST_RUNS,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=__doc__,
        default_args=TASK_DEFAULTS,
    ) as made:
        run: Any = plan()
        run = do.override(task_id="protect", doc_md=phase_of("keep", "protect").what)(run, "protect")
        keep.override(doc_md=phase_of("keep", "keep").what)(run)
    add_links(made, {"protect": [BoardLink()], "keep": [BoardLink(), ReportLink()]})
    return made

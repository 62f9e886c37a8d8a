"""Watch a run of `walferry receive`, whose processes serve elsewhere: whether they serve, whether they refuse, the lag.

Trigger it with the run's name, after its first process has started; several runs are watched side by side. The task
`watch` looks every minute, and alerts if no process has served, or one has refused what the source sends, for longer
than is tolerated, or if the lag is above the run's `max_lag`. It goes on until `walferry abort NAME` ends the run.
Between two looks it waits in the triggerer, without a worker. It asks only the ledger, and no cluster. The board shows
processes and tables; docs/platform.md lists alerts and metrics. To stop watching a run that goes on, mark the DAG run
as failed.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from walferry.airflow.dag_parts import FOR_EVER, MOST_RUNS, TASK_DEFAULTS
from walferry.airflow.links import BoardLink, add_links
from walferry.airflow.operators import final_errors
from walferry.airflow.sensors import ReceiveSensor
from walferry.errors import UsageError
from walferry.process import open_ledger

PARAMS = {
    "name": Param("", type="string", minLength=1, title="Run", description="The name of the run, or its id."),
    "look_seconds": Param(
        60, type="integer", minimum=10, maximum=3600, title="Seconds between two looks",
        description="How often the ledger is looked at.",
    ),
    "tolerated_seconds": Param(
        120, type="integer", minimum=0, maximum=86_400, title="Tolerated seconds",
        description="Raises an alert if no process serves, or calls are refused, for longer. While a process restarts, "
        "the source waits, and loses nothing.",
    ),
}  # fmt: skip


@task
def find() -> str:
    """Find the run in the ledger. Returns its id."""
    name = str(get_current_context()["params"]["name"])
    with final_errors(), open_ledger(create=False) as ledger:
        run = ledger.find(name)
        if run.kind != "receive":
            raise UsageError(f"{run.run_id} is a run of kind {run.kind}: name a run of `walferry receive`")
        return run.run_id


def hbase_receive() -> DAG:
    """The DAG that watches a run to which a source replicates."""
    with DAG(
        "hbase_receive",
        schedule=None,
        catchup=False,
        max_active_runs=MOST_RUNS,
        max_active_tasks=MOST_RUNS,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=__doc__,
        default_args=TASK_DEFAULTS,
    ) as made:
        run: Any = find()
        run >> ReceiveSensor(
            task_id="watch",
            run=run,
            look_seconds="{{ params.look_seconds }}",
            tolerated_seconds="{{ params.tolerated_seconds }}",
            retries=FOR_EVER,
        )
    add_links(made, {"find": [BoardLink()]})
    return made

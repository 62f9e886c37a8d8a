"""Watch what an HBase cluster replicates by itself: what is not shipped, what is stuck and why, which settings stop it.

Trigger it with the form; each run watches one source, and several run side by side. The first task examines the
settings of both clusters, as `walferry replicate plan` does, and says what it finds in its log. The task `watch` then
looks at the queues of the peers every minute, as `walferry replicate status` does, until `walferry abort NAME` ends it.
Between two looks it waits in the triggerer, without a worker. It changes no peer and no table; with `canary`, it writes
into a table of its own. The board shows the newest look; docs/platform.md lists alerts and metrics. To watch other
tables, or to change the times, mark the DAG run as failed and trigger the DAG with the same name.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from walferry.airflow.dag_parts import FOR_EVER, MOST_RUNS, TASK_DEFAULTS, retried_while_busy, spec_params
from walferry.airflow.hook import airflow_connection
from walferry.airflow.links import BoardLink, add_links
from walferry.airflow.operators import final_errors, record_trigger
from walferry.airflow.sensors import ReplicationSensor
from walferry.process import open_ledger
from walferry.replication.spec import ReplicateSpec

log = logging.getLogger(__name__)

KEYS = ("name", "source", "target", "peer", "tables", "max_lag", "look_seconds", "plan_minutes", "canary")
PARAMS = spec_params(model=ReplicateSpec, keys=KEYS, defaults={})


@task
def plan() -> str:
    """Look at the settings of both clusters, and open the run in the ledger. Returns the run's id."""
    from walferry.replication.watching import begin
    from walferry.run.notes.watched_replication import kept_plan

    context = get_current_context()
    with final_errors(), open_ledger() as ledger:
        before = {run.run_id: run for run in ledger.runs() if run.state == "running"}
        with retried_while_busy():
            run_id = begin(ledger, dict(context["params"]), airflow_connection, f"airflow {context['run_id']}")
        record_trigger(ledger, run_id, context)
        if (old := before.get(run_id)) is not None and old.owner != ledger.run(run_id).owner:
            now = ledger.run(run_id).spec
            changed = [f"{key}: {old.spec.get(key)} -> {now[key]}" for key in now if old.spec.get(key) != now[key]]
            log.warning("%s is taken over from %s; changed: %s", run_id, old.owner, ", ".join(changed) or "nothing")
        for finding in (kept_plan(ledger.of(run_id)) or {"findings": ()})["findings"]:
            log.info("%s: %s: %s", finding["level"], finding["subject"], finding["message"])
        return run_id


def hbase_replicate() -> DAG:
    """The DAG that watches HBase's own replication."""
    with DAG(
        "hbase_replicate",
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
        run >> ReplicationSensor(task_id="watch", run=run, retries=FOR_EVER)
    add_links(made, {"plan": [BoardLink()]})
    return made

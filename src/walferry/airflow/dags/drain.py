"""Apply the sealed edits of the source's log to existing tables of the target, whenever something is sealed.

The Airflow Variable `walferry_drain` names the tables: JSON with the keys of the form, for example
`{"tables": ["shop:orders"]}`. Values from the form override the Variable. The first run adds a disabled replication
peer, which keeps the source's WALs, and sets the start fence; edits before the fence are not applied. `walferry abort`
ends the drain (docs/platform.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Variable, get_current_context, task
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowFailException

from walferry.airflow.dag_parts import TASK_DEFAULTS, spec_keys, spec_params, takes
from walferry.airflow.hook import airflow_connection
from walferry.airflow.notifiers import WalferryNotifier
from walferry.airflow.operators import WalferrySparkOperator, do_phase, final_errors, step
from walferry.airflow.sensors import CLEANER_TTL_SECONDS, wal_asset
from walferry.process import open_ledger

SOURCE = "hbase_source"
VARIABLE = "walferry_drain"
DEADLINE = timedelta(minutes=15)

DEFAULTS = {"name": "drain", "source": SOURCE, "max_lag": 300}
KEYS = ("name", "source", "target", "tables", "apply", "compare", "max_lag", "source_requests", "throttle")
PARAMS = spec_params(keys=KEYS, else_variable=VARIABLE, defaults=DEFAULTS)


def drain_spec(params: Mapping[str, Any], variable: Any) -> dict[str, Any]:
    """The spec of the drain: params override the Variable's values, which override the defaults."""
    spec = spec_keys(params, variable, VARIABLE, DEFAULTS, PARAMS)
    if not spec.get("tables"):
        raise AirflowFailException(
            f'hbase_wal_drain has no tables: set the Variable {VARIABLE}, for example to {{"tables": ["ns:t"]}}'
        )
    return spec


@task
def prepare() -> str:
    """Find the run or open it, check the tables, keep the WALs, set the start fence."""
    from walferry.replay.rounds.drain import DRAINER, check_targets
    from walferry.run.start import start_run

    context = get_current_context()
    variable = Variable.get(VARIABLE, default={}, deserialize_json=True)
    with final_errors(), open_ledger() as ledger:
        spec = drain_spec(dict(context["params"]), variable)
        run_id = start_run(ledger, spec, airflow_connection, DRAINER, "drain")
    with step(run_id) as run:
        check_targets(run)
        for phase in ("protect", "fence"):
            do_phase(run, phase)
    return run_id


@task
def measure(run: str) -> None:
    """Send the metrics of the runs on this source once edits are applied."""
    from walferry.airflow.sensors import measure
    from walferry.watch.watch import list_now

    with step(run) as opened:
        cluster = opened.spec.source
        measure(opened.ledger.whole, None, SOURCE, cluster, list_now(cluster), CLEANER_TTL_SECONDS)


def hbase_wal_drain() -> DAG:
    """The DAG that applies the sealed edits of the log of `hbase_source`."""
    with DAG(
        "hbase_wal_drain",
        schedule=[wal_asset(SOURCE)],
        catchup=False,
        max_active_runs=1,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=f"{__doc__}\n{takes(PARAMS)}\n",
        default_args=TASK_DEFAULTS,
        deadline=DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=DEADLINE,
            callback=AsyncCallback(
                WalferryNotifier,
                kwargs={
                    "event": "lag",
                    "message": f"sealed edits were not applied within {DEADLINE} (hbase_wal_drain)",
                },
            ),
        ),
    ) as made:
        run: Any = prepare()
        applied = WalferrySparkOperator(task_id="apply", run=run, phase="drain_sealed")
        run >> applied >> measure(run)
    return made

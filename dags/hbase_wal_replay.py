"""Replay the log by the clock: each run applies what the source wrote in one window, [from, to) in UTC.

Scheduled every hour ($WALFERRY_REPLAY_CRON changes it). Past windows are repeated, in any order, by
`airflow backfill create --dag-id hbase_wal_replay --from-date … --to-date …`: they converge. The target tables must be
there. Scheduled runs take name, source, target, tables and apply from the Airflow Variable `walferry_replay` (JSON with
the same keys); what the form, or `--dag-run-conf`, gives stands above it. A window whose log is not complete yet waits
without a worker; one whose log is gone fails and names what is missing.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import CronDataIntervalTimetable, Param, Variable, dag, get_current_context, task

from walferry.airflow.dag_parts import TASK_DEFAULTS, spec_keys
from walferry.airflow.operators import WalferrySparkOperator, final_errors, step

log = logging.getLogger(__name__)

CRON = os.environ.get("WALFERRY_REPLAY_CRON", "0 * * * *")
VARIABLE = "walferry_replay"
TEXT = ["null", "string"]
PARAMS = {
    "name": Param(None, type=TEXT, title="Name", description="How the windows' runs are called; replay if not given."),
    "source": Param(None, type=TEXT, title="Source", description="Airflow connection; hbase_source if not given."),
    "target": Param(None, type=TEXT, title="Target", description="Airflow connection; hbase_target if not given."),
    "tables": Param([], type="array", title="Tables", items={"type": ["string", "object"]},
                    description="One a line, as ns:table; none: those of the Variable walferry_replay."),
    "apply": Param(None, type=TEXT, enum=[None, "auto", "rpc", "thrift"], title="Way to apply edits"),
    "from": Param(None, type=TEXT, format="date-time", title="From", description="Of a window of its own, UTC."),
    "to": Param(None, type=TEXT, format="date-time", title="To", description="Its end, not included."),
}  # fmt: skip


@dag(
    dag_id="hbase_wal_replay",
    schedule=CronDataIntervalTimetable(CRON, timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    tags=["walferry", "hbase"],
    doc_md=__doc__,
    default_args=TASK_DEFAULTS,
)
def hbase_wal_replay() -> None:
    @task
    def open_window() -> dict[str, str]:
        """Validate the window and open its run. Returns the run's id, and from when on the window is complete."""
        from datetime import UTC, datetime

        from walferry.airflow.hook import airflow_connection
        from walferry.ledger import Ledger
        from walferry.replay.window import complete_at_ms, open_window
        from walferry.run.spec import parse_spec, resolve

        context = get_current_context()
        variable = Variable.get(VARIABLE, default={}, deserialize_json=True)
        keys = spec_keys(dict(context["params"]), PARAMS, variable, VARIABLE)
        keys = {"name": "replay"} | {k: value for k, value in keys.items() if value is not None or k in variable}
        window = {key: keys.pop(key) for key in ("from", "to") if key in keys}
        if not window:
            window = {"from": context["data_interval_start"], "to": context["data_interval_end"]}
        with final_errors():
            spec = resolve(parse_spec(keys | {"window": window}, origin="params"), airflow_connection)
            with Ledger.open() as ledger:
                run = open_window(ledger, spec, f"airflow {context['run_id']}")
        assert spec.window is not None
        log.info("%s: window %s", run.run_id, spec.window)
        complete = datetime.fromtimestamp(complete_at_ms(spec.window) / 1000, UTC)
        return {"run": run.run_id, "complete_at": complete.isoformat()}

    @task
    def report(run_id: str) -> None:
        """Say what was applied."""
        with step(run_id) as run:
            facts = run.done("replay_window")
        log.info("%s: %s", run_id, ", ".join(f"{key} {value}" for key, value in sorted(facts.items())))

    opened: Any = open_window()
    wait = DateTimeSensorAsync(
        task_id="wait_until_complete", target_time="{{ ti.xcom_pull('open_window')['complete_at'] }}"
    )
    replay = WalferrySparkOperator(
        task_id="replay", app="replay_window.py", run="{{ ti.xcom_pull('open_window')['run'] }}", phase="replay_window",
        # A backfill has a limit of its own, ten runs at once: they would only wait for each other's lease.
        max_active_tis_per_dag=1,
    )  # fmt: skip
    opened >> wait >> replay >> report(opened["run"])


hbase_wal_replay()

"""Replay the log on a schedule: each run applies the edits that the source wrote in one window, [from, to) in UTC.

The schedule is hourly ($WALFERRY_REPLAY_CRON changes it). `airflow backfill create --dag-id hbase_wal_replay
--from-date … --to-date …` repeats past windows; they converge in any order. The target tables must exist. Scheduled
runs take their values from the Airflow Variable `walferry_replay` (JSON with the keys of the form); values from the
form or `--dag-run-conf` override the Variable. A window whose log is not complete yet waits without a worker; a window
whose log has missing files fails and names them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG, CronDataIntervalTimetable, Variable, get_current_context, task

from walferry.airflow.dag_parts import TASK_DEFAULTS, spec_keys, spec_params, takes, window_params
from walferry.airflow.hook import airflow_connection
from walferry.airflow.operators import WalferrySparkOperator, final_errors, record_trigger, step
from walferry.process import open_ledger
from walferry.settings import LogTimes, Schedules

log = logging.getLogger(__name__)

VARIABLE = "walferry_replay"
DEFAULTS = {"name": "replay"}
KEYS = ("name", "source", "target", "tables", "apply", "compare", "source_requests", "throttle")
PARAMS = spec_params(keys=KEYS, else_variable=VARIABLE, defaults=DEFAULTS) | window_params()


def replay_spec(params: Mapping[str, Any], variable: Any, window: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a window: params override the Variable's values, which override the defaults.

    `window` is the schedule's window, used if the params name none.
    """
    keys = spec_keys(params, variable, VARIABLE, DEFAULTS, PARAMS)
    own = {key: keys.pop(key) for key in window if key in keys}
    return keys | {"window": own or dict(window)}


@task
def open_window() -> dict[str, str]:
    """Validate the window and open its run. Returns the run's id and the time at which the window will be complete."""
    from walferry.replay.windows.window import complete_at_ms, open_window
    from walferry.run.given_spec import parse_spec, resolve

    context = get_current_context()
    variable = Variable.get(VARIABLE, default={}, deserialize_json=True)
    scheduled = {"from": context["data_interval_start"], "to": context["data_interval_end"]}
    with final_errors():
        keys = replay_spec(dict(context["params"]), variable, scheduled)
        spec = resolve(parse_spec(keys, origin="params"), airflow_connection)
        with open_ledger() as ledger:
            run = open_window(ledger, spec, f"airflow {context['run_id']}")
            record_trigger(ledger, run.run_id, context)
    assert spec.window is not None
    log.info("%s: window %s", run.run_id, spec.window)
    complete = datetime.fromtimestamp(complete_at_ms(spec.window, LogTimes.read()) / 1000, UTC)
    return {"run": run.run_id, "complete_at": complete.isoformat()}


@task
def report(run: str) -> None:
    """Log what was applied."""
    with step(run) as opened:
        facts = opened.done("replay_window")
    log.info("%s: %s", run, ", ".join(f"{key} {value}" for key, value in sorted(facts.items())))


def hbase_wal_replay() -> DAG:
    """The DAG that replays one window per run."""
    with DAG(
        "hbase_wal_replay",
        schedule=CronDataIntervalTimetable(Schedules.read().replay_cron, timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=f"{__doc__}\n{takes(PARAMS)}\n",
        default_args=TASK_DEFAULTS,
    ) as made:
        opened: Any = open_window()
        wait = DateTimeSensorAsync(
            task_id="wait_until_complete", target_time="{{ ti.xcom_pull('open_window')['complete_at'] }}"
        )
        replay = WalferrySparkOperator(
            task_id="replay", run="{{ ti.xcom_pull('open_window')['run'] }}",
            phase="replay_window",
            # A backfill runs up to ten windows at once, but they would only wait for each other's lease.
            max_active_tis_per_dag=1,
        )  # fmt: skip
        opened >> wait >> replay >> report(opened["run"])
    return made

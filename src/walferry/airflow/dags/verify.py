"""Verify a pair of tables that something else keeps equal: HBase's own replication, or another tool.

Each run is a pass. At first it reads regions whole, later only the rows that either side has written since the last
pass, according to the logs of both clusters. It changes nothing on the clusters, except that it rolls the source's logs
before it calls rows different if a `peer` is named. The schedule is every five minutes ($WALFERRY_VERIFY_CRON changes
it). The Airflow Variable `walferry_verify` names the tables: JSON with the keys of the form, for example `{"tables":
["shop:orders"]}`; values from the form override the Variable. A run fails while rows differ, but an alert
(`difference`) is sent only for new rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, Variable, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from walferry.airflow.dag_parts import TASK_DEFAULTS, spec_keys, spec_params, takes
from walferry.airflow.hook import airflow_connection
from walferry.airflow.notifiers import send
from walferry.airflow.operators import WalferrySparkOperator, final_errors, record_trigger, step
from walferry.errors import SidesDifferError
from walferry.process import open_ledger
from walferry.run.pair_spec import PairSpec
from walferry.settings import Schedules

log = logging.getLogger(__name__)

VARIABLE = "walferry_verify"
DEFAULTS = {"name": "verify"}
WHOLE_EVERY = "whole_every"
PARAMS = spec_params(
    keys=("name", "source", "target", "tables", "peer", "peer_back", "max_lag", "spot_check", "source_requests"),
    else_variable=VARIABLE,
    defaults=DEFAULTS,
    model=PairSpec,
) | {
    WHOLE_EVERY: Param(
        None, type=["null", "number"], exclusiveMinimum=0, title="Days until a region is read whole again",
        description=f"This finds what the log does not show. If empty: the Variable {VARIABLE}, else 7.",
    )
}  # fmt: skip
SHOWN = 5


def pair_spec(params: Mapping[str, Any], variable: Any) -> tuple[dict[str, Any], float | None]:
    """The spec of the pair, and `whole_every`: params override the Variable's values, which override the defaults."""
    keys = spec_keys(params, variable, VARIABLE, DEFAULTS, PARAMS)
    if not keys.get("tables"):
        raise AirflowFailException(
            f'hbase_verify has no tables: set the Variable {VARIABLE}, for example to {{"tables": ["ns:t"]}}'
        )
    days = keys.pop(WHOLE_EVERY, None)
    return keys, None if days is None else float(days)


@task
def open_pair() -> str:
    """Find the pair's run, or open it. Returns the run's id."""
    from walferry.migration.pairs import pair_pass
    from walferry.run.given_spec import parse_keys, refuse_window, resolve

    context = get_current_context()
    variable = Variable.get(VARIABLE, default={}, deserialize_json=True)
    with final_errors():
        keys, days = pair_spec(dict(context["params"]), variable)
        given = parse_keys(PairSpec, keys, origin="params")
        refuse_window(given, "params")
        spec = resolve(given, airflow_connection)
        with open_ledger() as ledger:
            actor = f"airflow {context['run_id']}"
            run = pair_pass.open_pair(ledger, spec, actor, pair_pass.WHOLE_EVERY_DAYS if days is None else days)
            record_trigger(ledger, run.run_id, context)
            return run.run_id


@task(on_failure_callback=[])  # the task alerts itself, for new rows only
def judge(run: str) -> None:
    """Fail while rows differ, or cannot be judged; alert for rows that no earlier alert has named."""
    from walferry.migration.pairs.pair_findings import (
        differing_rows,
        findings,
        new_differences,
        news_of_judging,
        pass_line,
        require_judged,
        told,
        told_judging,
    )

    context = get_current_context()
    with step(run) as opened:
        facts = opened.done("pass")
        log.info("%s: %s", run, pass_line(facts))
        found = findings(opened.ledger, SHOWN)
        news = new_differences(opened.ledger)
        differ = [row for row in found["differences"] if row["state"] == "differs"]
        rows = "; ".join(f"{row['row']} of {row['table']}: {row['detail']}" for row in differ)
        count = differing_rows(facts["differing_rows"])
        message = f"pair {opened.record.name}: {f'{count}: {rows}' if rows else count}"
        if not news or _sent(context, run, "difference", message):
            told(opened.ledger)
        unjudged = f"pair {opened.record.name}: rows that differ are not judged: {facts['not_judged']}"
        if not news_of_judging(opened.ledger, facts) or _sent(context, run, "replication", unjudged):
            told_judging(opened.ledger, facts)
        if facts["differing_rows"]:
            raise SidesDifferError(message, run=run)
        require_judged(opened.record.name, facts)


def _sent(context: Mapping[str, Any], run: str, event: str, message: str) -> bool:
    """Send an alert. Returns whether it was accepted."""
    instance = context["ti"]
    about = {"dag": instance.dag_id, "dag_run": context["run_id"], "task": instance.task_id, "run": run}
    if send({"event": event, **about, "message": message}):
        return True
    log.warning("the alert was not accepted: the next run sends it again")
    return False


def hbase_verify() -> DAG:
    """The DAG that verifies a pair, one pass per run."""
    with DAG(
        "hbase_verify",
        schedule=CronDataIntervalTimetable(Schedules.read().verify_cron, timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=f"{__doc__}\n{takes(PARAMS)}\n",
        default_args=TASK_DEFAULTS,
    ) as made:
        run: Any = open_pair()
        compared = WalferrySparkOperator(task_id="compare", run=run, phase="pass")
        run >> compared >> judge(run)
    return made

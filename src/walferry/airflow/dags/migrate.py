"""Move live HBase tables to another cluster: plan, protect, fence, snapshot, copy, replay, cut over, compare.

Trigger it with the form. Two steps wait for a person: `approve_cutover`, and `confirm_writes_stopped` unless walferry
stops the writes itself (write_stop: readonly). If a check after the write stop does not pass, `way_out` asks how to go
on, does what the person chooses, and starts another run of this DAG, which continues from there. Every task may be
killed, retried or cleared at any time: walferry's ledger, not Airflow, records what is done.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, get_current_context, task

from walferry.airflow.dag_parts import TASK_DEFAULTS, retried_while_busy, spec_params
from walferry.airflow.hook import airflow_connection
from walferry.airflow.links import BoardLink, DocsLink, ReportLink, add_links
from walferry.airflow.operators import (
    WalferrySparkOperator,
    answered_ms,
    approved_by,
    do_phase,
    final_errors,
    record_trigger,
    step,
)
from walferry.airflow.questions import CONTINUES, NEXT_DAG_RUN, AskOperator, HearAnswersOperator, WayOutOperator
from walferry.airflow.triggers import use_answer
from walferry.process import open_ledger, reports_folder
from walferry.run.phases import Phase, phases_of

_BY_TABLE = "{{ task.table }}"
# A rejection fails the task, and the retry asks again. If Airflow loses a try after a yes, the retry uses that yes.
_ASKED: dict[str, Any] = {"fail_on_reject": True, "retries": 5, "trigger_rule": "none_failed"}

log = logging.getLogger(__name__)

ANYWAY = "anyway"
KEYS = (
    "name", "source", "target", "tables", "apply", "history", "protect", "stage", "write_stop", "compare", "max_lag",
    "max_comparison_age", "follow", "compare_ahead", "spot_check", "repair", "unlogged_writes", "source_requests",
    "throttle",
)  # fmt: skip
SPEC_PARAMS = spec_params(keys=KEYS, defaults={"name": "move", "tables": []})
PARAMS = SPEC_PARAMS | {
    ANYWAY: Param(
        [],
        type="array",
        title="Cut over although these rows differ",
        description="Rows that may differ, each with a reason for the audit trail, as JSON: "
        '[{"table": "shop:orders", "row": "r1", "reason": "…"}]. Accepted are their differences at the time of the '
        "gate's check.",
        items={
            "type": "object",
            "properties": {key: {"type": "string", "minLength": 1} for key in ("table", "row", "reason")},
            "required": ["table", "row", "reason"],
            "additionalProperties": False,
        },
    ),
    CONTINUES: Param(
        None,
        type=["null", "string"],
        title="Continue a run",
        description="Id of an unfinished run that another run of this DAG started: this DAG run does the rest of it. "
        "The other fields must be as they were then.",
    ),
}

LINKS = {
    "protect": [BoardLink()],
    "fence": [BoardLink()],
    "check_copy": [BoardLink(), DocsLink()],
    "check_drain": [BoardLink(), DocsLink()],
    "report": [BoardLink(), ReportLink(), DocsLink()],
    "way_out": [BoardLink(), DocsLink()],
}


@task
def plan() -> str:
    """Open the run in the ledger, examine both clusters, refuse tables that cannot be moved."""
    from walferry.run.start import continue_run, start_run

    context = get_current_context()
    params = dict(context["params"])
    continued, _ = params.pop(CONTINUES, None), params.pop(ANYWAY, None)
    owner = f"airflow {context['run_id']}"
    with final_errors(), open_ledger() as ledger:
        with retried_while_busy():
            if continued:
                run_id = continue_run(ledger, continued, params, airflow_connection, owner)
            else:
                run_id = start_run(ledger, params, airflow_connection, owner)
        record_trigger(ledger, run_id, context)
    with step(run_id) as run:
        do_phase(run, "plan")
    return run_id


@task
def do(run: str, phase: str) -> list[str]:
    """Do a phase. Returns the source tables, for the phases that are done by table."""
    with step(run) as opened:
        do_phase(opened, phase)
        return [pair.source for pair in opened.tables]


@task(map_index_template="{{ table }}")
def do_for_table(run: str, phase: str, table: str) -> None:
    """Do a phase for a table."""
    get_current_context()["table"] = table  # type: ignore[typeddict-unknown-key]
    with step(run) as opened:
        do_phase(opened, phase, table)


# Airflow may mistake a quick reschedule for a lost task ("finished with success, but state is queued"), and that costs
# a try. So the interval is long, and there are tries to spare.
@task.sensor(poke_interval=15, timeout=timedelta(days=14).total_seconds(), mode="reschedule", retries=20)
def wait_until_ready(run: str) -> bool:
    """Wait until a cutover may begin. Rows that the parameter `anyway` names are accepted as they are."""
    from walferry.cutover.gates import before_cutover
    from walferry.errors import GateShutError
    from walferry.migration.explaining.accept import accept_named

    with step(run) as opened:
        if opened.ledger.phases.facts("approve") is not None:
            return True
        for named in get_current_context()["params"].get(ANYWAY) or ():
            accept_named(opened.ledger, **named, actor=opened.actor)
        try:
            before_cutover(opened)
        except GateShutError as shut:
            log.info("not yet: %s", "; ".join(shut.facts["reasons"]))
            return False
        return True


@task.branch
def how_to_stop_writes(run: str, answer: dict[str, Any]) -> str:
    """Record the approval. Continue with the confirmation, or directly with setting the source tables READONLY."""
    with step(run) as opened:
        use_answer(opened.ledger, "approve")
        do_phase(opened, "approve", by=f"airflow {approved_by(answer)}")
        return "stop_writes" if opened.spec.write_stop == "readonly" else "confirm_writes_stopped"


@task(trigger_rule="none_failed_min_one_success")
def stop_writes(run: str, answer: dict[str, Any] | None) -> None:
    """Record a person's confirmation that writes have stopped, or make the source refuse writes from now on."""
    with step(run) as opened:
        by = f"airflow {approved_by(answer)}" if answer else None
        do_phase(opened, "write_stop", by=by, said_ms=answered_ms(answer))


# No task waits for this one, and it ends by itself. It must go on even if other tasks fail, hence the many retries.
@task(retries=100)
def stage_log(run: str) -> None:
    """Beside all other tasks, copy each WAL once it is closed. Ends at once unless the run has `protect: stage`."""
    from walferry.replay.keeping.protect import tend, way_of

    with step(run) as opened:
        owner = opened.record.owner

        def ended(seconds: float) -> bool:
            time.sleep(seconds)
            return opened.ledger.record.owner != owner  # another DAG run continues, with its own stage_log

        tend(opened, way_of(opened), ended)


@task
def report(run: str) -> str:
    """Write the report, and print it to this task's log."""
    from walferry.pipeline import write_report

    with step(run) as opened:
        path = write_report(opened, reports_folder())
    log.info("\n%s", path.read_text())
    return str(path)


def hbase_migrate() -> DAG:
    """The DAG that moves live tables: one task for each phase of `run.phases`, and the tasks that ask a person."""
    with DAG(
        "hbase_migrate",
        schedule=None,
        catchup=False,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=__doc__,
        default_args=TASK_DEFAULTS,
    ) as made:
        run: Any = plan()
        begins, ends = {"plan": run}, {"plan": run}
        for phase in phases_of("migration")[1:]:
            if phase.waits_for == "approval":
                begins[phase.name], ends[phase.name] = _approval(run)
            elif phase.waits_for == "write stop":
                begins[phase.name], ends[phase.name] = _write_stop(run)
            else:
                begins[phase.name] = ends[phase.name] = _phase(run, phase, ends.get("fence"))
            for name in phase.needs:
                ends[name] >> begins[phase.name]
        ends["protect"] >> stage_log(run)
        begins["approve"] >> _hear(run)
        ends["release"] >> report(run)
        [ends["compare"], ends["check_drain"], ends["release"]] >> _way_out(run)
    add_links(made, LINKS)
    return made


def _phase(run: Any, phase: Phase, tables: Any) -> Any:
    """The task of a phase; `tables` is the output of the task that returns the source tables."""
    about: dict[str, Any] = {"task_id": phase.name, "doc_md": phase.what}
    if phase.spark and phase.by_table:
        operator = WalferrySparkOperator.partial(**about, run=run, phase=phase.name, map_index_template=_BY_TABLE)
        return operator.expand(table=tables)
    if phase.spark:
        # Clients cannot write during the phases after the replay, so the replay's warm app continues with them.
        through = "check_drain" if phase.name == "replay" else ""
        return WalferrySparkOperator(**about, run=run, phase=phase.name, through=through)
    if phase.by_table:
        return do_for_table.override(**about).partial(run=run, phase=phase.name).expand(table=tables)
    return do.override(**about)(run, phase.name)


def _approval(run: Any) -> tuple[Any, Any]:
    """Ask a person to approve the cutover once it is possible. Returns the first task and the last."""
    ready: Any = wait_until_ready(run)
    approved: Any = AskOperator(
        task_id="approve_cutover",
        run=run,
        phase="approve",
        subject="Cut over {{ params.name }}?",
        body="The target follows the source. Approve: writes stop next, then the rest of the log is applied and both "
        "sides are compared. Reject: replay goes on, and you will be asked again.",
        **_ASKED,
    )
    ready >> approved
    return ready, how_to_stop_writes(run, approved.output)


def _write_stop(run: Any) -> tuple[Any, Any]:
    """Ask a person whether writes have stopped, or stop them. Returns the possible first tasks and the last one."""
    confirmed: Any = AskOperator(
        task_id="confirm_writes_stopped",
        run=run,
        phase="write_stop",
        subject="Have all writers to {{ params.name }} stopped?",
        body="Approve once no client writes to the source tables. A later edit shuts the gate again.",
        **_ASKED,
    )
    stopped: Any = stop_writes(run, confirmed.output)
    return [confirmed, stopped], stopped


def _hear(run: Any) -> Any:
    return HearAnswersOperator(
        task_id="hear_answers",
        run=run,
        doc_md="Records a person's answers in the ledger: the app of `replay` learns at once that writes have stopped, "
        "and a task whose try is lost need not ask again. No task waits for this one.",
        retries=100,
    )


def _way_out(run: Any) -> Any:
    """Unless the run is done, ask a person how to go on once the tasks after the write stop have ended, and go on."""
    chosen = WayOutOperator(
        task_id="way_out",
        run=run,
        trigger_rule="all_done",
        retries=100,
        doc_md="Asks how to go on after a check that did not pass, and does what a person chooses. Skipped otherwise.",
    )
    answered: Any = chosen.output
    chosen >> TriggerDagRunOperator(
        task_id="go_on",
        trigger_dag_id="{{ dag.dag_id }}",
        trigger_run_id=f"{{{{ ti.xcom_pull(task_ids='way_out', key='{NEXT_DAG_RUN}') }}}}",
        conf=answered,
        skip_when_already_exists=True,
        doc_md="Starts another run of this DAG, which continues from there.",
    )
    return chosen

"""Make rows of the target of a migration or pair equal, or copy a table again, like `walferry repair` and `walferry
copy-again`.

Trigger it with the form. A dry run, which is the default, changes nothing: the task's log and return value say what
would be done, and what either way costs. While a process follows the log, that process does the work and this task
waits for it; otherwise this task does the work. The retry of an interrupted try continues its work. A request that is
not possible, such as copying a table again once the cutover has started, fails the task at once with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk import DAG, Param, get_current_context, task

from walferry.airflow.dag_parts import TASK_DEFAULTS
from walferry.airflow.operators import ACTOR, final_errors
from walferry.errors import UsageError
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.run.run import Run

log = logging.getLogger(__name__)

RepairWay = Literal["rows", "copy again"]
MOST_ROWS = 200
"""rows that the task returns; its log counts the others, and the ledger has the repaired ones"""
PARAMS = {
    "run": Param(type="string", minLength=1, title="Run", description="Its name, or its id."),
    "table": Param(
        None, type=["null", "string"], title="Source table",
        description="Empty: all tables of the run; to copy again, name one.",
    ),
    "way": Param(
        "rows", type="string", enum=list(get_args(RepairWay)), title="Way",
        description="rows: makes rows equal that differed when they were last looked at and that nobody has accepted. "
        "copy again: empties the target table and copies all of it.",
    ),
    "reason": Param(
        "", type="string", title="Reason",
        description="For the audit trail. Needed unless it is a dry run.",
    ),
    "dry_run": Param(
        True, type="boolean", title="Dry run",
        description="Change nothing; say what would be done, and what it costs.",
    ),
}  # fmt: skip


@task
def repair() -> dict[str, Any]:
    """Do what the form requests, or say what would change. Returns the facts that the verbs print for `--json`."""
    from walferry.run.run import Run

    context = get_current_context()
    params, dag_run = context["params"], context["run_id"]
    person = getattr(context.get("dag_run"), "triggering_user_name", None)
    actor = f"{ACTOR} {person or dag_run}"
    with (
        final_errors(),
        open_ledger(actor=actor, create=False) as ledger,
        Run(ledger, ledger.find(params["run"]).run_id, actor) as run,
    ):
        if not params["dry_run"] and not params["reason"].strip():
            raise UsageError("give a reason: it is recorded in the audit trail")
        if params["way"] == "copy again":
            return _copy_again(run, params, dag_run)
        return _repair_rows(run, params)


def _repair_rows(run: Run, params: Mapping[str, Any]) -> dict[str, Any]:
    from walferry.migration.pairs.pair_repair import ask

    dry_run = bool(params["dry_run"])
    if not dry_run:
        run.ledger.audit(run.actor, "ask for a repair", {"table": params["table"] or "", "reason": params["reason"]})
    found = ask(run, params["table"] or None, dry_run=dry_run)
    log.info("%s", "\n".join(found.lines()))
    facts = found.facts()
    facts |= {"rows": facts["rows"][:MOST_ROWS], "all_rows": len(found.rows)}
    if dry_run:
        return facts
    get_current_context()["ti"].xcom_push(key="repaired", value=facts)
    found.require_all()
    return facts


def _copy_again(run: Run, params: Mapping[str, Any], request: str) -> dict[str, Any]:
    from walferry.migration.repairing.copy_again import copy_again, plan_copy_again, plan_lines

    table = params["table"]
    if not table:
        raise UsageError("name the table that is to be copied again")
    facts = {"run": run.run_id, "dry_run": bool(params["dry_run"])}
    if params["dry_run"]:
        plan = plan_copy_again(run, table)
        log.info("%s", "\n".join(plan_lines(plan)))
        return facts | plan
    done = copy_again(run, table, params["reason"], request)
    return facts | {"table": table, "cells": done.cells, "bytes": done.size}


def hbase_repair() -> DAG:
    """The DAG that repairs rows, or copies a table again."""
    with DAG(
        "hbase_repair",
        schedule=None,
        catchup=False,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=__doc__,
        default_args=TASK_DEFAULTS,
    ) as made:
        repair()
    return made

"""Move live HBase tables to another cluster: plan, protect, fence, snapshot, copy, replay, cut over, prove.

Trigger it with the form. Two steps wait for a person: `approve_cutover`, and `confirm_writes_stopped` unless walferry
stops the writes itself (write_stop: readonly). Every task may be killed, retried or cleared at any time: what is done
stands in walferry's ledger, not here.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, dag, get_current_context, task

from walferry.airflow.dag_parts import TABLE_ITEMS, TASK_DEFAULTS
from walferry.airflow.links import BoardLink, DocsLink, ReportLink, add_links
from walferry.airflow.operators import WalferrySparkOperator, approved_by, final_errors, step

log = logging.getLogger(__name__)

PARAMS = {
    "name": Param("move", type="string", pattern=r"^[a-z][a-z0-9_]{0,39}$", title="Name",
                  description="Prefix of every object that the run makes on the clusters."),
    "source": Param("hbase_source", type="string", title="Source", description="Airflow connection of type hbase."),
    "target": Param("hbase_target", type="string", title="Target", description="Airflow connection of type hbase."),
    "tables": Param(
        [], type="array", title="Tables", minItems=1,
        items=TABLE_ITEMS,
        description='One a line, as ns:table. To map one to another name, write {"source": "ns:a", "target": "ns:b"} '
                    "into the JSON under Advanced Options.",
    ),
    "apply": Param("auto", type="string", enum=["auto", "rpc", "thrift"], title="Way to apply edits"),
    "protect": Param("peer", type="string", enum=["peer"], title="What keeps the source's WALs"),
    "write_stop": Param("confirm", type="string", enum=["confirm", "readonly"], title="How writes stop",
                        description="confirm: you stop the writers and say so. readonly: the tables become READONLY."),
    "max_lag": Param(30, type="integer", minimum=1, title="Largest lag before cutover, in seconds"),
}  # fmt: skip


@dag(
    dag_id="hbase_migrate",
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["walferry", "hbase"],
    doc_md=__doc__,
    default_args=TASK_DEFAULTS,
)
def hbase_migrate() -> None:
    @task
    def plan() -> str:
        """Open the run in the ledger, examine both clusters, refuse what cannot be moved."""
        from walferry.airflow.hook import airflow_connection
        from walferry.migration.plan import plan_run
        from walferry.run.start import start_run

        context = get_current_context()
        with final_errors():
            run_id = start_run(dict(context["params"]), airflow_connection, f"airflow {context['run_id']}")
        with step(run_id) as run:
            plan_run(run)
        return run_id

    @task
    def protect(run_id: str) -> None:
        """Add the replication peer that keeps the source's WALs."""
        from walferry.replay.protect import protect

        with step(run_id) as run:
            protect(run)

    @task
    def fence(run_id: str) -> list[str]:
        """Roll the WALs: the place from which replay begins. Returns the source tables."""
        from walferry.replay.cut import start_fence

        with step(run_id) as run:
            start_fence(run)
            return [pair.source for pair in run.tables]

    @task(map_index_template="{{ table }}")
    def snapshot(run_id: str, table: str) -> str:
        """Take the FLUSH snapshot of a table."""
        from walferry.migration.copy import snapshot

        get_current_context()["table"] = table  # type: ignore[typeddict-unknown-key]
        with step(run_id) as run:
            snapshot(run, table)
        return table

    @task(map_index_template="{{ table }}")
    def clone(run_id: str, table: str) -> None:
        """Create the target table from the copied files."""
        from walferry.migration.copy import clone

        get_current_context()["table"] = table  # type: ignore[typeddict-unknown-key]
        with step(run_id) as run:
            clone(run, table)

    @task
    def check_copy(run_id: str) -> str:
        """Great Expectations: files, bytes, checksums, region borders, schema."""
        from walferry.checks.gates import check_copy
        from walferry.process import reports_folder

        with step(run_id) as run:
            return str(check_copy(run, reports_folder() / "data_docs")["data_docs"])

    # Airflow may take a quick reschedule for a lost task ("finished with success, but state is queued"), which costs a
    # try; so not too quick, and with tries to spare.
    @task.sensor(poke_interval=15, timeout=timedelta(days=14).total_seconds(), mode="reschedule", retries=20)
    def wait_until_ready(run_id: str) -> bool:
        """Wait until the lag is small, the quarantine is empty and the schemas agree."""
        from walferry.checks.gates import before_cutover
        from walferry.errors import GateShutError

        with step(run_id) as run:
            try:
                before_cutover(run)
            except GateShutError as shut:
                log.info("not yet: %s", "; ".join(shut.facts["reasons"]))
                return False
            return True

    @task.branch
    def how_to_stop_writes(run_id: str, answer: dict[str, Any]) -> str:
        """Record the approval; go on to the confirmation, or straight to setting the source tables READONLY."""
        from walferry.checks.gates import before_cutover
        from walferry.migration.cutover import approve

        with step(run_id) as run:
            approve(run, f"airflow {approved_by(answer)}", before_cutover)
            return "stop_writes" if run.spec.write_stop == "readonly" else "confirm_writes_stopped"

    @task(trigger_rule="none_failed_min_one_success")
    def stop_writes(run_id: str, answer: dict[str, Any] | None) -> None:
        """Writes have stopped, as a person said, or are refused from here on."""
        from walferry.migration.cutover import stop_writes

        with step(run_id) as run:
            stop_writes(run, f"airflow {approved_by(answer)}" if answer else None)

    @task
    def end_fence(run_id: str) -> None:
        """Roll the WALs once more: the place at which replay ends."""
        from walferry.replay.cut import end_fence

        with step(run_id) as run:
            end_fence(run)

    @task
    def check_drain(run_id: str) -> str:
        """Great Expectations: rows, cells and digests by region; nothing unexplained, no gap, no late edit."""
        from walferry.checks.gates import check_drain
        from walferry.process import reports_folder

        with step(run_id) as run:
            return str(check_drain(run, reports_folder() / "data_docs")["data_docs"])

    @task
    def release(run_id: str) -> None:
        """Remove peer and snapshots; the run is done."""
        from walferry.pipeline import OUTCOMES
        from walferry.replay.protect import finish

        with step(run_id) as run:
            finish(run, OUTCOMES[run.record.kind])

    @task
    def report(run_id: str) -> str:
        """Write the report and print it into this log."""
        from walferry.pipeline import write_report
        from walferry.process import reports_folder

        with step(run_id) as run:
            path = write_report(run, reports_folder())
        log.info("\n%s", path.read_text())
        return str(path)

    def waits_for_a_person(task_id: str, subject: str, body: str) -> Any:
        # A rejection fails the task and asks again; a failure of Airflow's own between answer and run heals likewise.
        return ApprovalOperator(
            task_id=task_id, subject=subject, body=body, fail_on_reject=True, retries=5, trigger_rule="none_failed"
        )

    run: Any = plan()
    protected = protect(run)
    tables: Any = fence(run)
    snapshots = snapshot.partial(run_id=run).expand(table=tables)
    copies = WalferrySparkOperator.partial(
        task_id="copy", app="copy_snapshot.py", run=run, phase="copy", map_index_template="{{ task.table }}"
    ).expand(table=tables)
    clones = clone.partial(run_id=run).expand(table=tables)
    copy_checked = check_copy(run)
    replay = WalferrySparkOperator(task_id="replay", app="replay_wal.py", run=run, phase="replay")
    ready = wait_until_ready(run)
    approved = waits_for_a_person(
        "approve_cutover",
        "Cut over {{ params.name }}?",
        "The target follows the source. Approve: writes stop next, then the rest of the log is applied and both "
        "sides are compared. Reject: replay goes on, and you are asked again.",
    )
    branch = how_to_stop_writes(run, approved.output)
    confirmed = waits_for_a_person(
        "confirm_writes_stopped",
        "Have all writers to {{ params.name }} stopped?",
        "Approve once no client writes to the source tables any more. A later edit shuts the gate again.",
    )
    stopped = stop_writes(run, confirmed.output)
    ended = end_fence(run)
    drain = WalferrySparkOperator(task_id="drain", app="drain_wal.py", run=run, phase="drain")
    compared = WalferrySparkOperator.partial(
        task_id="compare", app="compare_table.py", run=run, phase="compare", map_index_template="{{ task.table }}"
    ).expand(table=tables)
    drain_checked = check_drain(run)
    released = release(run)

    run >> protected >> tables >> snapshots >> copies >> clones >> copy_checked >> [replay, ready]
    ready >> approved >> branch >> [confirmed, stopped]
    confirmed >> stopped
    [replay, stopped] >> ended >> drain >> compared >> drain_checked >> released >> report(run)


LINKS = {
    "protect": [BoardLink()],
    "fence": [BoardLink()],
    "check_copy": [BoardLink(), DocsLink()],
    "check_drain": [BoardLink(), DocsLink()],
    "report": [BoardLink(), ReportLink(), DocsLink()],
}
add_links(hbase_migrate(), LINKS)

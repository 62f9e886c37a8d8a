"""Move a table: snapshot, copy, replay, cut over when a person approves, compare.

The same steps as `hbase_migrate` in fewer tasks, to combine with tasks of your own.
"""

from __future__ import annotations

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, task

from walferry.airflow.operators import (
    HBaseCompareOperator,
    HBaseCopyOperator,
    HBaseCutoverOperator,
    HBaseReplayOperator,
    HBaseSnapshotOperator,
    finish,
    open_run,
)


@dag(schedule=None, catchup=False, tags=["walferry", "example"], doc_md=__doc__, default_args={"retries": 3})
def example_hbase_cutover() -> None:
    @task
    def begin() -> str:
        return open_run("orders", [{"source": "shop:orders", "target": "crm:orders"}], write_stop="readonly")

    @task
    def point_clients_to_the_target(run: str) -> str:
        """Your own task: change a setting, restart an application."""
        return run

    @task
    def end(run: str) -> None:
        finish(run, "cut over; nothing unexplained")

    snapshot = HBaseSnapshotOperator(task_id="snapshot", run=begin())  # type: ignore[arg-type]
    copy = HBaseCopyOperator(task_id="copy", run=snapshot.output)  # type: ignore[arg-type]
    replay = HBaseReplayOperator(task_id="replay", run=copy.output)  # type: ignore[arg-type]
    approve = ApprovalOperator(task_id="approve", subject="Cut over shop:orders?", fail_on_reject=True, retries=5)
    cutover = HBaseCutoverOperator(task_id="cutover", run=copy.output, approval=approve.output)  # type: ignore[arg-type]
    compare = HBaseCompareOperator(task_id="compare", run=cutover.output)  # type: ignore[arg-type]
    copy >> [replay, approve]
    approve >> cutover
    end(point_clients_to_the_target(compare.output))  # type: ignore[arg-type]


example_hbase_cutover()

"""Take snapshots of tables before a risky step, and remove them once the step has succeeded.

Until the snapshots are removed, the source also keeps its log: if the risky step fails, no later edit is lost.
"""

from __future__ import annotations

from airflow.sdk import dag, task

from walferry.airflow.operators import HBaseSnapshotOperator, finish, open_run, step


@dag(schedule=None, catchup=False, tags=["walferry", "example"], doc_md=__doc__)
def example_hbase_snapshot() -> None:
    @task
    def begin() -> str:
        return open_run(
            "before_deploy", ["shop:orders", "customers"], source="hbase_source", target="hbase_target", kind="snapshot"
        )

    @task
    def deploy(run: str) -> str:
        """Any @task may use the run: here for the names of its snapshots."""
        with step(run) as opened:
            print("to go back to:", [opened.snapshot(pair.source) for pair in opened.tables])
        return run

    @task
    def clean_up(run: str) -> None:
        finish(run, "the deployment went well")

    snapshot = HBaseSnapshotOperator(task_id="snapshot", run=begin())  # type: ignore[arg-type]
    clean_up(deploy(snapshot.output))  # type: ignore[arg-type]


example_hbase_snapshot()

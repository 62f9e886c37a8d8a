"""Copy tables as of one moment, for example from production to a test cluster, while writers continue."""

from __future__ import annotations

from airflow.sdk import Param, dag, get_current_context, task

from walferry.airflow.operators import HBaseCopyOperator, HBaseSnapshotOperator, finish, open_run

PARAMS = {"tables": Param([{"source": "shop:orders", "target": "test:orders"}], type="array")}


@dag(schedule=None, catchup=False, params=PARAMS, tags=["walferry", "example"], doc_md=__doc__)
def example_hbase_copy() -> None:
    @task
    def begin() -> str:
        return open_run("copy", get_current_context()["params"]["tables"], kind="copy")

    @task
    def end(run: str) -> None:
        finish(run, "copied")

    snapshot = HBaseSnapshotOperator(task_id="snapshot", run=begin())  # type: ignore[arg-type]
    copy = HBaseCopyOperator(task_id="copy", run=snapshot.output)  # type: ignore[arg-type]
    end(copy.output)  # type: ignore[arg-type]


example_hbase_copy()

"""Compare tables of two clusters each night; anything may keep them in sync (for example HBase's own replication)."""

from __future__ import annotations

from airflow.sdk import Param, dag, get_current_context, task

from walferry.airflow.operators import HBaseCompareOperator, finish, open_run

PARAMS = {"tables": Param(["shop:orders"], type="array")}


@dag(schedule="@daily", catchup=False, max_active_runs=1, params=PARAMS, tags=["walferry", "example"], doc_md=__doc__)
def example_hbase_compare() -> None:
    @task
    def begin() -> str:
        return open_run("nightly", get_current_context()["params"]["tables"], kind="comparison")

    @task
    def end(run: str) -> None:
        """End the run, also after a failure: tomorrow's comparison needs the name."""
        finish(run, "compared")

    run = begin()
    compare = HBaseCompareOperator(task_id="compare", run=run)  # type: ignore[arg-type]
    compare >> end(run).as_teardown(setups=run)  # type: ignore[arg-type]


example_hbase_compare()

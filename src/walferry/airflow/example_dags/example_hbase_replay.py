"""Keep a second cluster up to date until a person ends the run, while the source's writers continue."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, task

from walferry.airflow.operators import (
    HBaseCopyOperator,
    HBaseReplayOperator,
    HBaseSnapshotOperator,
    approved_by,
    do_phase,
    finish,
    open_run,
    step,
)


@dag(schedule=None, catchup=False, tags=["walferry", "example"], doc_md=__doc__)
def example_hbase_replay() -> None:
    @task
    def begin() -> str:
        return open_run("standby", ["shop:orders"], kind="standby")

    @task
    def stop(run: str, answer: dict[str, Any]) -> None:
        """End the replay after its current round."""
        with step(run) as opened:
            do_phase(opened, "write_stop", by=f"airflow {approved_by(answer)}")

    @task
    def end(run: str) -> None:
        finish(run, "followed until a person ended it")

    snapshot = HBaseSnapshotOperator(task_id="snapshot", run=begin())  # type: ignore[arg-type]
    copy = HBaseCopyOperator(task_id="copy", run=snapshot.output)  # type: ignore[arg-type]
    replay = HBaseReplayOperator(task_id="replay", run=copy.output, retries=3)  # type: ignore[arg-type]
    enough = ApprovalOperator(task_id="enough", subject="End the replay?", fail_on_reject=True, retries=5)
    copy >> enough >> stop(copy.output, enough.output)  # type: ignore[arg-type]
    end(replay.output)  # type: ignore[arg-type]


example_hbase_replay()

"""A run of `walferry receive`, watched in a real Airflow until a person ends it."""

from __future__ import annotations

import pytest

from e2e.readers import wait_for
from unit.receive.two_clusters import KEYS
from unit.run.progress.received_ledger import come, receiver
from walferry.embedded.dag_run import DagRun
from walferry.embedded.environment import Environment
from walferry.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

NAME = "received_here"


def log_of(environment: Environment) -> str:
    files = environment.airflow.directory.glob("logs/dag_id=hbase_receive/**/task_id=watch/**/*.log")
    return "".join(file.read_text() for file in files)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_that_nobody_serves_is_told_although_the_triggerer_dies_and_the_watch_ends_with_the_run(
    environment: Environment,
) -> None:
    with environment.airflow.client() as airflow, Ledger.open(environment.ledger, actor="test") as book:
        run = book.of(book.open_run(NAME, "kim", KEYS | {"name": NAME}, "kim", "receive").run_id)
        run.received.beat(receiver())
        come(run)
        environment.airflow.unpause("hbase_receive")
        conf = {"name": NAME, "look_seconds": 10, "tolerated_seconds": 20}
        dag_run = DagRun.trigger(airflow, "hbase_receive", conf)
        wait_for(lambda: "receiving: 1 process serves" in log_of(environment), 180, "it is looked at")
        environment.airflow.kill("triggerer")
        environment.airflow.start_component("triggerer")
        wait_for(lambda: "walferry receive: " in log_of(environment), 300, "that nobody serves is told")
        assert "no process serves: the last one, east-1.example:16040" in log_of(environment)
        run.end("aborted", "kim", "no longer needed")
        wait_for(lambda: dag_run.state() in ("success", "failed"), 180, "the DAG run ends")
        airflow.patch("/api/v2/dags/hbase_receive", json={"is_paused": True}).raise_for_status()
        assert {task.task_id: task.state for task in dag_run.tasks()} == {"find": "success", "watch": "success"}

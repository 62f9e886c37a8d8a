from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from airflow.sdk.exceptions import AirflowFailException

from walferry.airflow import example_dags
from walferry.airflow.links import SparkLink
from walferry.airflow.operators import (
    HBaseCompareOperator,
    HBaseCutoverOperator,
    WalferrySparkOperator,
    app_page,
    approved_by,
    cluster_conf,
)
from walferry.errors import UsageError
from walferry.ledger import Ledger

EXAMPLES = Path(str(example_dags.__file__)).parent
READ_DAGS = """
import json, sys
from airflow.dag_processing.dagbag import DagBag

bag = DagBag(sys.argv[1])
operators = {task.task_type for dag in bag.dags.values() for task in dag.tasks}
print(json.dumps({"dags": sorted(bag.dags), "errors": bag.import_errors, "operators": sorted(operators)}))
"""
CLUSTER = {"zookeeper": "127.0.0.1:1", "webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"}
TABLES = [{"source": "orders", "target": "orders"}]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("WALFERRY_LEDGER", url)
    with Ledger.open(url, actor="tester") as opened:
        yield opened


def open_run(ledger: Ledger, **keys: Any) -> str:
    spec = {"name": "move", "source": CLUSTER, "target": CLUSTER, "tables": TABLES} | keys
    return ledger.open_run("move", "tester", spec, "tester").run_id


def done(ledger: Ledger, run: str, *phases: str) -> None:
    for phase in phases:
        ledger.of(run).phases.start(phase)
        ledger.of(run).phases.finish(phase, {})


def answer(option: str = "Approve") -> dict[str, Any]:
    return {"chosen_options": [option], "responded_by_user": {"id": "1", "name": "ann"}}


def spark_connection(monkeypatch: pytest.MonkeyPatch, host: str, **extra: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": host, "extra": extra}))


def command(operator: WalferrySparkOperator) -> str:
    """What would be run."""
    return " ".join(operator._get_hook()._build_spark_submit_command(operator.application))


def test_every_example_dag_is_read_without_an_error(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", READ_DAGS, str(EXAMPLES)],
        capture_output=True, text=True, check=True, env={"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["errors"] == {}
    assert found["dags"] == sorted(path.stem for path in EXAMPLES.glob("example_*.py"))
    for step in ("Snapshot", "Copy", "Replay", "Compare", "Cutover"):
        assert f"HBase{step}Operator" in found["operators"]


def test_in_one_process_nothing_is_asked_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "local[*]")
    line = command(
        WalferrySparkOperator(task_id="t", app="replay_wal.py", run="move-1", phase="replay", conn_id="spark")
    )
    assert "--master local[*]" in line
    assert "spark.executor" not in line
    assert "--archives" not in line


def test_on_a_cluster_apps_are_bounded_and_bring_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"archives": "/x/env.tar.gz", "conf": {"spark.cores.max": 8}, "deploy-mode": "client"}
    spark_connection(monkeypatch, "spark://master.example:7077", **extra)
    line = command(
        WalferrySparkOperator(task_id="t", app="replay_wal.py", run="move-1", phase="replay", conn_id="spark")
    )
    for part in (
        "--master spark://master.example:7077", "--archives /x/env.tar.gz#environment", "spark.executor.cores=1",
        "spark.executor.memory=1g", "spark.cores.max=8", "spark.pyspark.python=./environment/bin/python",
        f"spark.pyspark.driver.python={sys.executable}",
    ):  # fmt: skip
        assert part in line


def test_an_operators_own_conf_wins_over_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "spark://master.example:7077", conf={"spark.cores.max": 8})
    operator = WalferrySparkOperator(
        task_id="t", app="a.py", run="move-1", phase="replay", conn_id="spark", conf={"spark.cores.max": "3"}
    )
    assert "spark.cores.max=3" in command(operator)
    assert cluster_conf({}) == {
        "spark.executor.cores": "1", "spark.executor.memory": "1g", "spark.cores.max": "2",
    }  # fmt: skip


def test_a_driver_away_from_its_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "spark://master.example:7077", **{"deploy-mode": "cluster"})
    with pytest.raises(AirflowFailException, match="set deploy-mode to client"):
        command(WalferrySparkOperator(task_id="t", app="a.py", run="move-1", phase="replay", conn_id="spark"))


def test_the_apps_page_is_told_once_its_id_is_read() -> None:
    operator = WalferrySparkOperator(task_id="t", app="a.py", run="move-1", phase="replay")
    lines = [
        "INFO starting",
        "INFO Connected to Spark cluster with app ID app-20260101120000-0007",
        "app-20260101120001-0008",
    ]
    with patch("walferry.airflow.operators.get_current_context") as context:
        assert list(operator._find_page(lines, "spark://m:7077", "http://m:8080/")) == lines
    page = "http://m:8080/app/?appId=app-20260101120000-0007"
    context()["ti"].xcom_push.assert_called_once_with(key=SparkLink().xcom_key, value=page)
    assert SparkLink().get_link(operator, ti_key=None) == page
    assert app_page("http://rm:8088", "yarn", "application_1_2") == "http://rm:8088/cluster/app/application_1_2"


def test_nothing_but_a_persons_approval_approves() -> None:
    assert approved_by(answer()) == "ann"
    with pytest.raises(UsageError, match="ann answered Reject"):
        approved_by(answer("Reject"))
    for nothing in (None, True, {}, {"chosen_options": ["Approve"], "responded_by_user": None}):
        with pytest.raises(UsageError, match="no person's answer"):
            approved_by(nothing)


def test_a_cutover_by_confirmation_needs_the_second_answer_and_records_nothing_without(ledger: Ledger) -> None:
    run = open_run(ledger, write_stop="confirm")
    operator = HBaseCutoverOperator(task_id="t", run=run, approval=answer())
    with pytest.raises(AirflowFailException, match="no person's answer"):
        operator.execute({})
    assert ledger.of(run).phases.all() == []


def test_a_run_that_still_replays_is_not_compared(ledger: Ledger) -> None:
    run = open_run(ledger)
    done(ledger, run, "plan", "protect", "fence")
    with pytest.raises(AirflowFailException, match="still replays"):
        HBaseCompareOperator(task_id="t", run=run).execute({})
    assert ledger.of(run).phases.facts("compare", "orders") is None

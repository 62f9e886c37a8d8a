"""The provider in a real Airflow: the connection's test, an example DAG, and the main job on a Spark cluster.

The cluster is a standalone master and two workers that have nothing but the packed environment.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.readers import content, wait_for
from walferry.airflow import example_dags
from walferry.embedded.dag_run import ENDED, DagRun
from walferry.embedded.environment import Environment
from walferry.embedded.spark import SparkCluster
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

TABLE = "spread"
FAMILIES = {"d": {"VERSIONS": "3"}, "e": {"VERSIONS": "1"}}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    folder = tmp_path_factory.mktemp("spark")
    with SparkCluster.lay_out(folder) as cluster:
        yield cluster
    shutil.rmtree(folder)  # holds an environment for each executor


@contextmanager
def spark_default(environment: Environment, connection: dict[str, Any]) -> Iterator[httpx.Client]:
    """Let the connection of all DAGs point elsewhere for a while."""
    path, before = "/api/v2/connections/spark_default", environment.connections()["spark_default"]

    def point_to(wanted: dict[str, Any]) -> None:
        body = wanted | {"connection_id": "spark_default", "extra": json.dumps(wanted["extra"])}
        airflow.patch(path, json=body).raise_for_status()

    with environment.airflow.client() as airflow:
        point_to(connection)
        try:
            yield airflow
        finally:
            point_to(before)


def write(address: ClusterAddress, table: str, first: int, count: int) -> None:
    with connect(address).table(table).batch() as batch:
        for i in range(first, first + count):
            batch.put(b"%05d" % (i * 7919 % 100_000), {b"d:q": b"value %d" % i, b"e:n": b"%d" % i})
            if i % 10 == 0:
                batch.delete(b"%05d" % ((i - 5) * 7919 % 100_000), [b"e:n"])


def state(run: DagRun, task_id: str) -> str | None:
    return next((task.state for task in run.tasks() if task.task_id == task_id), None)


def finished_tasks(worker: Path) -> int:
    """Spark tasks that the executors of a worker say they have finished."""
    return sum(log.read_text().count("Finished task") for log in worker.glob("app-*/*/stderr"))


@pytest.mark.timeout(120)
def test_the_button_in_the_form_tells_version_and_cluster_id_or_what_does_not_answer(environment: Environment) -> None:
    connection = environment.connections()["hbase_source"]

    def press(**changes: Any) -> dict[str, Any]:
        body = connection | {"connection_id": "tried", "extra": json.dumps(connection["extra"])} | changes
        answer = airflow.post("/api/v2/connections/test", json=body)
        answer.raise_for_status()
        return dict(answer.json())

    with environment.airflow.client() as airflow:
        with HBaseClient(environment.source.address) as client:
            expected = f"HBase {client.version()}, cluster {client.cluster_id()}"
        assert press() == {"status": True, "message": expected}
        began = time.monotonic()
        assert press(port=1) == {
            "status": False, "message": "ZooKeeper at 127.0.0.1:1 does not answer within 10 s; is it up?",
        }  # fmt: skip
        assert time.monotonic() - began < 15


@pytest.mark.timeout(300)
def test_an_example_dag_copies_a_table_and_leaves_nothing_else(environment: Environment) -> None:
    source, target = environment.source.address, environment.target.address
    with HBaseClient(source) as client:
        client.create_table("original", FAMILIES, [b"50000"])
    write(source, "original", 0, 500)
    conf = {"tables": [{"source": "original", "target": "copies:one"}]}
    with_examples = replace(environment.airflow, dags=Path(str(example_dags.__file__)).parent)
    said = with_examples.command("dags", "test", "example_hbase_copy", "--conf", json.dumps(conf))
    with HBaseClient(source) as here, HBaseClient(target) as there:
        assert there.table_exists("copies:one"), said
        assert not [name for name in here.peers() if "copy" in name]
        assert not [s.name for client in (here, there) for s in client.snapshots() if "copy" in s.name]
    before = content(source, "original")
    assert len(before) > 400
    assert content(target, "copies:one") == before


@pytest.mark.timeout(900)
def test_the_main_job_runs_on_two_workers_and_ends_equal(environment: Environment, spark: SparkCluster) -> None:
    source, target = environment.source.address, environment.target.address
    with HBaseClient(source) as client:
        client.create_table(TABLE, FAMILIES, [b"25000", b"50000", b"75000"])
    write(source, TABLE, 0, 1000)
    with spark_default(environment, spark.connection()) as airflow:
        conf = {"name": "spread", "tables": [TABLE], "write_stop": "readonly", "max_lag": 60}
        run = DagRun.trigger(airflow, "hbase_migrate", conf)
        wait_for(lambda: state(run, "replay") == "running" or run.state() in ENDED, 300, "the replay begins")
        write(source, TABLE, 1000, 1000)
        asked = "approve_cutover"
        wait_for(lambda: state(run, asked) == "awaiting_input" or run.state() in ENDED, 300, "the approval is asked")
        run.answer(asked)
        wait_for(lambda: run.state() in ENDED, 300, "the run ends")
        failed = [task.task_id for task in run.tasks() if task.state == "failed"]
        assert run.state() == "success", [run.log(task_id) for task_id in failed]

        links = airflow.get(f"/api/v2/dags/hbase_migrate/dagRuns/{run.run_id}/taskInstances/replay/links").json()
    apps = httpx.get(f"{spark.ui}/json/").json()["completedapps"]
    page = httpx.get(links["extra_links"]["Spark UI"])

    before = content(source, TABLE)
    assert len(before) > 1500
    assert content(target, TABLE) == before
    assert {app["state"] for app in apps} == {"FINISHED"}
    assert len(apps) == 4  # copy, replay, drain, compare
    workers = [spark.directory / f"worker-{number}" for number in (1, 2)]
    assert all(finished_tasks(worker) > 0 for worker in workers)
    assert all(list(worker.glob("app-*/*/environment/bin/python")) for worker in workers)
    assert page.is_success
    assert links["extra_links"]["Migration board"] == f"{environment.airflow.url}/walferry/runs/spread-1"

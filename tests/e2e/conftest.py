"""A real Airflow and a Spark cluster beside the two real clusters, booted once for all tests here, and stopped after
the last of them: other tests may follow."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from walferry.embedded.airflow import USERNAME
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.environment import Environment
from walferry.embedded.spark import SparkCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, put

READER = "reader"
"""a user whom Airflow lets change nothing"""
WINDOWED = "windowed"
VARIABLES = {
    # Windows of the log last a minute instead of an hour.
    "WALFERRY_REPLAY_CRON": "* * * * *",
    "WALFERRY_CLOCK_SKEW_SECONDS": "5",
    # A killed task is noticed after half the time that `make up` takes for it.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
    # No test changes a file of DAGs: each is parsed once, not twice a minute for a second of a processor.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
}


@pytest.fixture(scope="package")
def environment(servers: Environment, clusters: tuple[MiniCluster, MiniCluster]) -> Iterator[Environment]:
    """What `make up` boots, with Airflow."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        users = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USERNAME}:admin,{READER}:viewer"}
        servers.airflow.environment = {**servers.airflow.environment, **users}
        servers.airflow.start(servers.connections())
        try:
            servers.airflow.unpause("hbase_migrate")
            yield servers
        finally:
            servers.airflow.stop()


@pytest.fixture(scope="package")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers that have nothing but the packed environment."""
    folder = tmp_path_factory.mktemp("spark")
    with SparkCluster.lay_out(folder) as cluster:
        yield cluster
    shutil.rmtree(folder)  # holds half a gigabyte of unpacked packages


@pytest.fixture(scope="package", autouse=True)
def two_windows(clusters: tuple[MiniCluster, MiniCluster]) -> Iterator[Future[datetime]]:
    """The border between two windows, with edits of WINDOWED on both sides of it. Written beside the other tests:
    by the time they have ended, so have both windows, and nobody waits for the clock."""
    source, target = clusters
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there, ThreadPoolExecutor(1) as thread:
        for client in (here, there):
            client.create_table(WINDOWED, {"f": {"VERSIONS": "9"}})
        yield thread.submit(_edit_around_a_border, here)


def _edit_around_a_border(client: HBaseClient) -> datetime:
    border = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    if border - datetime.now(UTC) < timedelta(seconds=10):
        border += timedelta(minutes=1)
    time.sleep((border - datetime.now(UTC)).total_seconds() - 8)
    _edit(client, 1)
    assert datetime.now(UTC) < border, "the edits of the first window took too long"
    time.sleep((border - datetime.now(UTC)).total_seconds() + 1)
    _edit(client, 2)
    return border


def _edit(client: HBaseClient, seed: int) -> None:
    """Puts and deletes of few cells at few timestamps, so that their order decides."""
    chance = random.Random(seed)
    for number in range(60):
        row, timestamp = b"%d" % chance.randrange(9), chance.randint(1, 3)
        if chance.random() < 0.15:
            client.mutate(WINDOWED, [delete_column(row, b"f", b"q", timestamp)])
        else:
            client.mutate(WINDOWED, [put(row, [Cell(row, b"f", b"q", b"%d-%d" % (seed, number), timestamp)])])

"""The DAG in a real Airflow, driven through its API while an ordinary client writes; compared by happybase's scans.

Its Spark is a standalone master and two workers that have nothing but the packed environment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from e2e.readers import content, wait_for
from walferry.embedded.dag_run import ENDED, DagRun
from walferry.embedded.environment import Environment
from walferry.embedded.spark import SparkCluster
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect
from walferry.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

FAMILIES = {"d": {"VERSIONS": "3"}, "e": {"VERSIONS": "1"}}
MAPPED, PLAIN = "e2e:ledger", "visits"


class Traffic:
    """Puts, deletes and overwrites by happybase, until told to stop."""

    def __init__(self, address: ClusterAddress, tables: list[str]) -> None:
        self._address = address
        self._tables = tables
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.writes = 0
        self.error: Exception | None = None

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End after the present batch."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        dice = random.Random(7)
        try:
            connection = connect(self._address)
            while not self._stop.wait(0.2):  # more would only take time from those that are tested
                for name in self._tables:
                    with connection.table(name).batch() as batch:
                        for _ in range(30):
                            ending, kind = dice.randrange(3), dice.random()
                            row = b"%04d\x00%d" % (dice.randrange(1000), ending)
                            # Rows with an empty qualifier lose single columns only: HBase's own reads of a family
                            # that was deleted below one depend on what is flushed (docs/fine-print.md).
                            if kind < 0.1 and ending:
                                batch.delete(row)
                            elif kind < 0.2:
                                batch.delete(row, [b"d:q"])
                            else:
                                empty = {} if ending else {b"d:": b"empty"}
                                batch.put(row, {b"d:q": dice.randbytes(8), b"e:n": dice.randbytes(4)} | empty)
                            self.writes += 1
        except Exception as error:
            self.error = error


def versions(address: ClusterAddress, table: str, rows: list[bytes]) -> list[list[tuple[bytes, int]]]:
    """All versions of d:q of some rows."""
    reader = connect(address).table(table)
    return [reader.cells(row, b"d:q", versions=10, include_timestamp=True) for row in rows]


def states(run: DagRun) -> dict[str, set[str | None]]:
    found: dict[str, set[str | None]] = {}
    for task in run.tasks():
        found.setdefault(task.task_id, set()).add(task.state)
    return found


def processes(*words: str) -> list[psutil.Process]:
    """Processes whose command line (or title) holds all the words."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if all(word in line for word in words):
            found.append(process)
    return found


def kill_all(victims: list[psutil.Process]) -> None:
    assert victims, "there is nothing to kill"
    for victim in victims:
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


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


def finished_tasks(worker: Path) -> int:
    """Spark tasks that the executors of a worker say they have finished."""
    return sum(log.read_text().count("Finished task") for log in worker.glob("app-*/*/stderr"))


def left_on(client: HBaseClient) -> tuple[set[str], set[str]]:
    """Peers and snapshots of a cluster, which other tests share."""
    return set(client.peers()), {snapshot.name for snapshot in client.snapshots()}


@contextmanager
def clients(environment: Environment) -> Iterator[tuple[HBaseClient, HBaseClient]]:
    with HBaseClient(environment.source.address) as source, HBaseClient(environment.target.address) as target:
        yield source, target


def answering(run: DagRun, task_id: str, reached: Callable[[], bool]) -> Callable[[], bool]:
    """Whether something is reached; until then a step is approved whenever it asks."""

    def look() -> bool:
        run.answer_if_asked(task_id)
        return reached()

    return look


def await_round(ledger: Ledger, what: str) -> None:
    """Wait for another replay round of the run."""
    rounds = len(ledger.of("e2e-1").rounds.all())
    wait_for(lambda: len(ledger.of("e2e-1").rounds.all()) > rounds, 600, what)


def require_equal(environment: Environment, table: str, moved: str) -> None:
    """The target's table shows all that the source's does, and the same versions of some rows."""
    before, after = content(environment.source.address, table), content(environment.target.address, moved)
    assert len(before) > 500
    assert after == before
    rows = sorted(before)[::7]
    assert versions(environment.target.address, moved, rows) == versions(environment.source.address, table, rows)


@pytest.mark.timeout(2400)
def test_a_live_migration_on_two_spark_workers_survives_kills_and_clears_and_ends_equal(
    environment: Environment, spark_cluster: SparkCluster
) -> None:
    with clients(environment) as (source, target), spark_default(environment, spark_cluster.connection()) as airflow:
        before_run = left_on(source), left_on(target)
        source.create_namespace("e2e")
        for table in (MAPPED, PLAIN):
            source.create_table(table, FAMILIES, [b"0300", b"0600"])
        with Traffic(environment.source.address, [MAPPED, PLAIN]) as traffic:
            wait_for(lambda: traffic.writes > 1000, 300, "writes before the snapshot")
            tables = [{"source": MAPPED, "target": "moved:ledger"}, PLAIN]
            run = DagRun.trigger(airflow, "hbase_migrate", {"name": "e2e", "tables": tables, "max_lag": 60})

            wait_for(lambda: processes("spark_app.py", "copy", "e2e-1"), 600, "the copy runs")
            kill_all(processes("spark_app.py", "copy", "e2e-1"))  # kill -9 of the drivers

            with Ledger.open(environment.ledger) as ledger:
                wait_for(lambda: ledger.of("e2e-1").rounds.all(), 600, "a replay round")
                kill_all(processes("spark_app.py", "replay", "e2e-1", "java"))
                await_round(ledger, "replay goes on after its driver was killed")
                environment.airflow.kill("scheduler")  # and with it the running tasks
                environment.airflow.start_component("scheduler")
                await_round(ledger, "replay goes on after the scheduler was killed")

            run.clear("fence")
            run.clear("snapshot")
            wait_for(lambda: states(run)["approve_cutover"] == {"awaiting_input"}, 600, "the approval is asked for")
            wait_for(
                lambda: states(run)["snapshot"] == states(run)["fence"] == {"success"}, 600, "cleared tasks are done"
            )
            confirmation = answering(run, "approve_cutover", lambda: "confirm_writes_stopped" in run.waiting())
            wait_for(confirmation, 600, "the confirmation is asked")
            traffic.stop()
            ended = answering(run, "confirm_writes_stopped", lambda: run.state() in ENDED)
            wait_for(ended, 1200, "the run ends")
        assert run.state() == "success", {k: v for k, v in states(run).items() if v != {"success"}}
        assert traffic.error is None
        # Of whichever attempt submitted the app: the last one may have found its phase done.
        path = f"/api/v2/dags/hbase_migrate/dagRuns/{run.run_id}/taskInstances/copy/links"
        links = airflow.get(path, params={"map_index": 0}).json()["extra_links"]
        assert links["Migration board"] == f"{environment.airflow.url}/walferry/runs/e2e-1"
        assert httpx.get(links["Spark UI"]).is_success

        for number in (1, 2):
            worker = spark_cluster.directory / f"worker-{number}"
            assert finished_tasks(worker) > 0
            assert list(worker.glob("app-*/*/environment/bin/home")), "the executors have another environment"

        for table, moved in ((MAPPED, "moved:ledger"), (PLAIN, PLAIN)):
            require_equal(environment, table, moved)
        assert (left_on(source), left_on(target)) == before_run
        with Ledger.open(environment.ledger) as ledger:
            assert ledger.run("e2e-1").state == "done"
            assert not ledger.of("e2e-1").log.gaps()
            ledger.verify_audit()
            trail = ledger.of("e2e-1").audit_trail()
            assert {line.actor for line in trail if line.action == "trigger"} == {"airflow admin"}
            for phase in ("approve", "write_stop"):
                assert (ledger.of("e2e-1").phases.facts(phase) or {})["by"].startswith("airflow ")
        assert (environment.reports / "e2e-1" / "report.txt").exists()


@pytest.mark.timeout(900)
def test_a_missing_table_fails_the_plan_in_one_line_and_changes_nothing(environment: Environment) -> None:
    with clients(environment) as (source, _), environment.airflow.client() as airflow:
        before_run = left_on(source)
        run = DagRun.trigger(airflow, "hbase_migrate", {"name": "absent", "tables": ["nowhere"]})
        wait_for(lambda: run.state() in ENDED, 600, "the run ends")
        assert run.state() == "failed"
        assert states(run)["plan"] == {"failed"}
        assert "nowhere: there is no such table at the source" in run.log("plan")
        assert left_on(source) == before_run

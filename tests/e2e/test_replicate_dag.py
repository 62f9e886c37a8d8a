"""HBase's own replication, watched in a real Airflow: what stops it is on the board until it is mended."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from e2e.readers import content, wait_for
from integration.replication.native import make_both, native_peer
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.dag_run import DagRun
from walferry.embedded.environment import Environment
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect
from walferry.ledger import Ledger
from walferry.run.progress.state import state_of

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

TABLE = "watched"
RUN = "native-1"


def page_of(airflow: httpx.Client) -> dict[str, Any]:
    answer = airflow.get(f"/walferry/api/runs/{RUN}")
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def log_of(environment: Environment) -> str:
    files = environment.airflow.directory.glob("logs/dag_id=hbase_replicate/**/task_id=watch/**/*.log")
    return "".join(file.read_text() for file in files)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_stops_native_replication_is_on_the_board_and_told_until_it_is_mended(
    environment: Environment, clusters: tuple[MiniCluster, MiniCluster]
) -> None:
    source, target = clusters
    with (
        HBaseClient(source.address) as here, HBaseClient(target.address) as there,
        environment.airflow.client() as airflow, Ledger.open(environment.ledger, actor="test") as book,
    ):  # fmt: skip
        make_both(here, there, name=TABLE)
        with native_peer(source, target, [TABLE]) as peer:
            environment.airflow.unpause("hbase_replicate")
            conf = {"name": "native", "target": "hbase_target", "peer": peer, "tables": [TABLE], "max_lag": 60,
                    "look_seconds": 10, "plan_minutes": 1}  # fmt: skip
            run = DagRun.trigger(airflow, "hbase_replicate", conf)
            try:
                wait_for(lambda: any(one.run_id == RUN for one in book.runs()), 180, "the run is in the ledger")
                ledger = book.of(RUN)
                wait_for(lambda: state_of(ledger).name == "following", 180, "it is looked at")
                connect(source.address).table(TABLE).put(b"a", {b"f:q": b"1"})
                wait_for(lambda: b"a" in content(target.address, TABLE), 90, "HBase replicates the row")

                there.disable_table(TABLE)
                connect(source.address).table(TABLE).put(b"b", {b"f:q": b"2"})
                wait_for(lambda: state_of(ledger).name == "stuck", 180, "that the table is disabled is seen")
                wait_for(lambda: "walferry replication: " in log_of(environment), 60, "it is told")
                page = page_of(airflow)
                assert page["run"]["state"] == "stuck"
                assert f"{TABLE}: it is disabled at the sink of peer {peer}" in page["run"]["cause"]
                wait_for(lambda: "STUCK" in word_of(airflow), 180, "the queue is stuck, once a minute has passed")

                environment.airflow.kill("triggerer")
                there.enable_table(TABLE)
                wait_for(lambda: b"b" in content(target.address, TABLE), 180, "HBase replicates what waited")
                environment.airflow.start_component("triggerer")
                wait_for(lambda: state_of(ledger).name == "following", 300, "that it is mended is seen")
                assert len(page_of(airflow)["replication"]["trend"][0]["at_ms"]) > 3
            finally:
                book.of(RUN).end("aborted", "kim", "no longer needed")
            wait_for(lambda: run.state() in ("success", "failed"), 180, "the DAG run ends")
            airflow.patch("/api/v2/dags/hbase_replicate", json={"is_paused": True}).raise_for_status()
            assert {task.task_id: task.state for task in run.tasks()} == {"plan": "success", "watch": "success"}


def word_of(airflow: httpx.Client) -> str:
    """What is wrong with the worst queue."""
    return str(page_of(airflow)["replication"]["queues"]["rows"][0]["word"])

"""A stream in a real Airflow: what is written arrives in Kafka, once and in order, until a person ends the stream."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from booting import CHEAP_JVM
from e2e.readers import wait_for
from kafka_reading import read
from walferry.cutover.ways_out import abort
from walferry.embedded.dag_run import DagRun
from walferry.embedded.environment import Environment
from walferry.embedded.kafka import Broker
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect
from walferry.ledger import Ledger, RunLedger
from walferry.run.heartbeat import NOTE
from walferry.run.progress.state import state_of
from walferry.run.progress.status import status
from walferry.streams.stream_run import StreamRun

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

TABLE = "streamed"
RUN = "sent-1"
TOPIC = "default.streamed"
PARTITIONS = 3
SECRET = "hush-of-the-test"
"""in Kafka's connection, which the broker does not ask for"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
        with Broker.start(tmp_path_factory.mktemp("kafka")) as started:
            yield started


def write(address: ClusterAddress, first: int, count: int) -> None:
    table = connect(address).table(TABLE)
    for number in range(first, first + count):
        table.put(b"r%d" % (number % 5), {b"d:q": b"%d" % number})


def values(broker: Broker) -> dict[str, list[int]]:
    """What a consumer that reads committed messages sees of each row, in its order."""
    found: dict[str, list[int]] = {}
    for message in read(broker.address, TOPIC, PARTITIONS):
        assert message.value is not None
        said = json.loads(message.value)
        if "row" in said:
            found.setdefault(said["row"], []).extend(int(cell["value"]) for cell in said["cells"])
    return found


def written(count: int) -> dict[str, list[int]]:
    return {f"r{row}": list(range(row, count, 5)) for row in range(5)}


def arrived(broker: Broker, count: int) -> None:
    wait_for(lambda: values(broker) == written(count), 180, f"{count} puts in Kafka, once and in order")


def kill_task(ledger: RunLedger) -> None:
    """kill -9 the process of the task that streams."""
    facts, _ = ledger.notes.named(NOTE)["stream"]
    os.kill(int(facts["pid"]), signal.SIGKILL)


def recorded(environment: Environment) -> Iterator[tuple[Path, bytes]]:
    """What Airflow and the ledger have written: databases and logs."""
    directory = environment.airflow.directory
    for path in (directory.parent / "ledger.db", *directory.glob("logs/dag_id=hbase_stream/**/*.log")):
        yield path, path.read_bytes()


def task_states(run: DagRun) -> dict[str, str | None]:
    return {task.task_id: task.state for task in run.tasks()}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_is_written_arrives_until_a_person_ends_the_stream(environment: Environment, broker: Broker) -> None:
    source = environment.source.address
    with HBaseClient(source) as here, environment.airflow.client() as airflow:
        here.create_table(TABLE, {"d": {}}, [b"r2"])
        connection = {
            "connection_id": "kafka_default", "conn_type": "kafka",
            "extra": json.dumps({"bootstrap.servers": broker.address, "sasl.password": SECRET, "group.id": "others"}),
        }  # fmt: skip
        airflow.post("/api/v2/connections", json=connection).raise_for_status()
        environment.airflow.unpause("hbase_stream")
        conf = {"name": "sent", "tables": [TABLE], "create_topics": {"partitions": PARTITIONS, "replication": 1},
                "bytes_as": "utf8"}  # fmt: skip
        run = DagRun.trigger(airflow, "hbase_stream", conf)
        with Ledger.open(environment.ledger, actor="test") as book:
            wait_for(lambda: any(one.run_id == RUN for one in book.runs()), 180, "the run is in the ledger")
            ledger = book.of(RUN)
            try:
                _follow_its_life(environment, broker, book, ledger, run, airflow)
            finally:
                airflow.patch("/api/v2/dags/hbase_stream", json={"is_paused": True})
                if ledger.record.state == "running":
                    with StreamRun(book, RUN) as left:
                        abort(left, "the test is over")


def _follow_its_life(
    environment: Environment, broker: Broker, book: Ledger, ledger: RunLedger, run: DagRun, airflow: httpx.Client
) -> None:
    source = environment.source.address
    wait_for(lambda: state_of(ledger).name == "following", 300, "the stream follows")
    write(source, 0, 40)
    arrived(broker, 40)

    kill_task(ledger)
    write(source, 40, 10)
    arrived(broker, 50)
    assert ledger.phases.find("stream").attempts == 2  # type: ignore[union-attr]

    book.set_paused(RUN, True, "kim")
    time.sleep(5)  # a pass that has begun is sent
    assert state_of(ledger).name == "paused"
    write(source, 50, 10)
    assert values(broker) == written(50)
    book.set_paused(RUN, False, "kim")
    arrived(broker, 60)
    now = status(ledger)
    assert (now.kind, now.state, now.log is not None) == ("stream", "following", True)
    page = airflow.get(f"/walferry/api/runs/{RUN}").json()
    assert [(row["source"], row["topic"]) for row in page["tables"]["rows"]] == [(TABLE, TOPIC)]
    assert page["run"]["edits_applied"] > 0  # without what the killed process had sent and not counted yet

    with StreamRun(book, RUN) as opened:
        assert abort(opened, "no longer needed")["left"] == []
    wait_for(lambda: run.state() in ("success", "failed"), 120, "the DAG run ends")
    assert (run.state(), task_states(run)) == (
        "success", dict.fromkeys(("plan", "protect", "fence", "stream"), "success"),
    )  # fmt: skip
    assert {phase.state for phase in ledger.phases.all()} == {"done"}
    assert [path for path, content in recorded(environment) if SECRET.encode() in content] == []
    ledger.whole.verify_audit()

"""The watch and the drain in a real Airflow: what is written to the source arrives, whatever is killed meanwhile."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from e2e.readers import content, wait_for
from walferry.embedded.dag_run import DagRun
from walferry.embedded.environment import Environment
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect
from walferry.ledger import Ledger
from walferry.refusals import GapKind
from walferry.replay.keeping.objects import release
from walferry.run.progress.state import state_of
from walferry.run.run import Run

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

TABLE = "followed"
RUN = "drain-1"


def write(address: ClusterAddress, first: int, count: int) -> None:
    with connect(address).table(TABLE).batch() as batch:
        for number in range(first, first + count):
            batch.put(b"%05d" % number, {b"d:q": b"value %d" % number})
    with connect(address).table(TABLE).batch() as batch:
        for number in range(first, first + count, 10):
            batch.delete(b"%05d" % number)


def roll(environment: Environment) -> None:
    """Close the source's logs, as HBase does by itself once an hour or when they are full."""
    with HBaseClient(environment.source.address) as source:
        for server in source.servers():
            source.roll_wal(server)


def end(environment: Environment) -> None:
    """Abort the drain's run, so that other tests find no peer of it; a drain that goes on ends after its round."""
    with Ledger.open(environment.ledger) as ledger:
        for record in ledger.runs():
            if record.run_id == RUN and record.state == "running":
                ledger.of(RUN).end("aborted", "test", "the test is over")
                with Run(ledger, RUN) as run:
                    release(run, aborted=True)


def events(airflow: httpx.Client) -> list[dict[str, Any]]:
    """What the asset's events told, the newest first."""
    asked: dict[str, str | int] = {"name_pattern": "hbase_wal_hbase_source", "limit": 50}
    deadline = time.monotonic() + 120
    # Airflow 3.3 fails to tell of an event as long as a run that it has triggered is queued (start_date is None).
    while (answer := airflow.get("/api/v2/assets/events", params=asked)).status_code == 500:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.5)
    answer.raise_for_status()
    found = [event for event in answer.json()["asset_events"] if event["name"] == "hbase_wal_hbase_source"]
    return [event["extra"] for event in sorted(found, key=lambda event: event["id"], reverse=True)]


def drained(airflow: httpx.Client) -> list[str]:
    """States of the drain's runs that the asset set off."""
    runs = airflow.get("/api/v2/dags/hbase_wal_drain/dagRuns", params={"limit": 50}).json()["dag_runs"]
    return [run["state"] for run in runs if run["run_type"] == "asset_triggered"]


def watching(airflow: httpx.Client) -> bool:
    """Whether the watch waits in the triggerer."""
    found = airflow.get("/api/v2/dags/~/dagRuns/~/taskInstances", params={"dag_ids": "hbase_wal_watch", "limit": 100})
    return "deferred" in {task["state"] for task in found.json()["task_instances"]}


def verify_what_was_spoilt(environment: Environment, airflow: httpx.Client) -> None:
    """One pass over the tables as a pair: it finds the row that somebody changes at the target alone."""
    connect(environment.target.address).table(TABLE).put(b"00001", {b"d:q": b"spoilt"}, timestamp=1 << 50)
    environment.airflow.unpause("hbase_verify")
    run = DagRun.trigger(airflow, "hbase_verify", {"tables": [TABLE], "max_lag": 1})
    wait_for(lambda: run.state() in ("success", "failed"), 600, "the pass ends")
    airflow.patch("/api/v2/dags/hbase_verify", json={"is_paused": True}).raise_for_status()
    assert {task.task_id: task.state for task in run.tasks()} == {
        "open_pair": "success", "compare": "success", "judge": "failed",
    }  # fmt: skip
    with Ledger.open(environment.ledger) as ledger:
        pair = ledger.of(ledger.find("verify").run_id)
        assert [(d.row, d.detail) for d in pair.passes.differences()] == [
            (b"00001", f"only at the target: put d:q at {1 << 50}")
        ]
        assert (state_of(pair).name, pair.passes.latest(1)[0].rows_read >= 1080) == ("differing", True)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sealed_edits_reach_the_target_though_the_triggerer_was_killed(environment: Environment) -> None:
    source, target = environment.source.address, environment.target.address
    with HBaseClient(source) as here, HBaseClient(target) as there, environment.airflow.client() as airflow:
        for client in (here, there):
            client.create_table(TABLE, {"d": {"VERSIONS": "2"}}, [b"00500"])
        variable = {"key": "walferry_drain", "value": json.dumps({"tables": [TABLE]})}
        airflow.post("/api/v2/variables", json=variable).raise_for_status()
        try:
            for dag in ("hbase_wal_drain", "hbase_wal_watch"):
                environment.airflow.unpause(dag)
            first = DagRun.trigger(airflow, "hbase_wal_drain", {})  # sets the fence, before anything is written
            wait_for(lambda: first.state() in ("success", "failed"), 600, "the first drain ends")
            assert first.state() == "success", [task for task in first.tasks() if task.state != "success"]

            wait_for(lambda: watching(airflow), 600, "the watch waits in the triggerer")
            environment.airflow.kill("triggerer")
            write(source, 0, 1000)
            roll(environment)  # nobody looks
            told = len(events(airflow))
            environment.airflow.start_component("triggerer")
            wait_for(lambda: len(events(airflow)) > told, 600, "the sealed files are announced")
            assert events(airflow)[0]["with_edits"] >= 1

            write(source, 1000, 200)
            roll(environment)
            expected = content(source, TABLE)
            assert len(expected) == 1080
            wait_for(lambda: content(target, TABLE) == expected, 600, "the target has what was written")
            assert drained(airflow), "the asset set off no drain"

            with Ledger.open(environment.ledger) as ledger:
                (watch,) = [run for run in ledger.runs() if run.name == "watch_hbase_source"]
                needed = {file.name for file in ledger.of(RUN).log.files()}
                wait_for(
                    lambda: needed <= {file.name for file in ledger.of(watch.run_id).log.files()},
                    120,
                    "the watch saw every file",
                )
                assert not [gap for gap in ledger.of(RUN).log.gaps() if gap.kind is GapKind.MISSING]
                ledger.verify_audit()
            verify_what_was_spoilt(environment, airflow)
        finally:
            for dag in ("hbase_wal_watch", "hbase_wal_drain"):
                airflow.patch(f"/api/v2/dags/{dag}", json={"is_paused": True})
            end(environment)

"""Airflow's own backfill replays windows of the log backwards, and the target ends as the source."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from e2e.readers import content
from walferry.embedded.environment import Environment
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, put
from walferry.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

DAG = "hbase_wal_replay"
DAG_VARIABLE = "walferry_replay"
TABLE = "windowed"


def edit(client: HBaseClient, seed: int) -> None:
    """Puts and deletes of few cells at few timestamps, so that their order decides."""
    chance = random.Random(seed)
    for number in range(60):
        row, timestamp = b"%d" % chance.randrange(9), chance.randint(1, 3)
        if chance.random() < 0.15:
            client.mutate(TABLE, [delete_column(row, b"f", b"q", timestamp)])
        else:
            client.mutate(TABLE, [put(row, [Cell(row, b"f", b"q", b"%d-%d" % (seed, number), timestamp)])])


def backfilled(airflow: httpx.Client) -> list[str]:
    """States of the runs that the backfill made; scheduled ones go on beside them."""
    found = airflow.get(f"/api/v2/dags/{DAG}/dagRuns", params={"limit": 100}).json()["dag_runs"]
    return [run["state"] for run in found if run["run_type"] == "backfill"]


def backfill(environment: Environment, airflow: httpx.Client, first: datetime, last: datetime) -> None:
    """Run the windows that begin at `first` to `last`, the last one first, by Airflow's command line.

    The DAG is paused until the runs are there: otherwise the schedule would make them.
    """
    environment.airflow.command(
        "backfill", "create", "--dag-id", DAG, "--from-date", first.isoformat(), "--to-date", last.isoformat(),
        "--dag-run-conf", json.dumps({"tables": [TABLE]}), "--run-backwards",
    )  # fmt: skip
    environment.airflow.unpause(DAG)
    deadline = time.monotonic() + 400
    while len(states := backfilled(airflow)) < 2 or not set(states) <= {"success", "failed"}:
        assert time.monotonic() < deadline, states
        time.sleep(1)
    assert states == ["success", "success"]


@pytest.mark.timeout(900)
def test_windows_that_are_backfilled_backwards_end_as_the_source(environment: Environment) -> None:
    source, target = environment.source.address, environment.target.address
    with HBaseClient(source) as here, HBaseClient(target) as there, environment.airflow.client() as airflow:
        for client in (here, there):
            client.create_table(TABLE, {"f": {"VERSIONS": "9"}})
        border = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        time.sleep(max(0.0, (border - datetime.now(UTC)).total_seconds() - 5))
        edit(here, 1)  # at the end of one window
        time.sleep(max(0.0, (border - datetime.now(UTC)).total_seconds() + 1))
        edit(here, 2)  # at the beginning of the next
        time.sleep(max(0.0, (border - datetime.now(UTC)).total_seconds() + 61))
        environment.airflow.command("variables", "set", DAG_VARIABLE, json.dumps({"tables": [TABLE]}))
        try:
            backfill(environment, airflow, border - timedelta(minutes=1), border)
        finally:
            airflow.patch(f"/api/v2/dags/{DAG}", json={"is_paused": True}).raise_for_status()
        expected = content(source, TABLE)
        assert len(expected) > 4
        assert content(target, TABLE) == expected
        with Ledger.open(environment.ledger) as ledger:
            windows = [run for run in ledger.runs() if run.name.startswith("replay_") and run.state == "done"]
            facts = [ledger.of(run.run_id).phases.facts("replay_window") for run in windows]
            assert sum(fact["cells"] > 0 for fact in facts if fact) >= 2

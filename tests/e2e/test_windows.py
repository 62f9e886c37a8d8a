"""Airflow's own backfill replays windows of the log backwards, and the target ends as the source."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from e2e.conftest import WINDOWED
from e2e.readers import content
from walferry.embedded.environment import Environment
from walferry.errors import WalferryError
from walferry.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

DAG = "hbase_wal_replay"
ATTEMPTS = 8
"""at Airflow's command, whose database others write to"""
DAG_VARIABLE = "walferry_replay"


def backfilled(airflow: httpx.Client) -> list[str]:
    """States of the runs that the backfill made; scheduled ones go on beside them."""
    found = airflow.get(f"/api/v2/dags/{DAG}/dagRuns", params={"limit": 100}).json()["dag_runs"]
    return [run["state"] for run in found if run["run_type"] == "backfill"]


def backfill(environment: Environment, airflow: httpx.Client, first: datetime, last: datetime) -> None:
    """Run the windows that begin at `first` to `last`, the last one first, by Airflow's command line.

    The DAG is paused until the runs are there: otherwise the schedule would make them.
    """
    command = [
        "backfill", "create", "--dag-id", DAG, "--from-date", first.isoformat(), "--to-date", last.isoformat(),
        "--dag-run-conf", json.dumps({"tables": [WINDOWED]}), "--run-backwards",
    ]  # fmt: skip
    again: list[str] = []
    for attempt in range(ATTEMPTS):
        try:
            environment.airflow.command(*command, *again)
            break
        except WalferryError as error:
            # Airflow's scheduler writes to its SQLite between what this command reads and writes, for which no timeout
            # helps. What was created by then is cancelled.
            if "database is locked" not in str(error) or attempt == ATTEMPTS - 1:
                raise
        for begun in airflow.get("/api/v2/backfills", params={"dag_id": DAG}).json()["backfills"]:
            if begun["completed_at"] is None:
                airflow.put(f"/api/v2/backfills/{begun['id']}/cancel").raise_for_status()
        again = ["--reprocess-behavior", "failed"]
    environment.airflow.unpause(DAG)
    deadline = time.monotonic() + 400
    while len(states := backfilled(airflow)) < 2 or not set(states) <= {"success", "failed"}:
        assert time.monotonic() < deadline, states
        time.sleep(1)
    assert states == ["success", "success"]


@pytest.mark.timeout(1800)
def test_windows_that_are_backfilled_backwards_end_as_the_source(
    environment: Environment, two_windows: Future[datetime]
) -> None:
    source, target = environment.source.address, environment.target.address
    border = two_windows.result()
    time.sleep(max(0.0, (border - datetime.now(UTC)).total_seconds() + 61))  # unless this test runs alone: over
    with environment.airflow.client() as airflow:
        environment.airflow.command("variables", "set", DAG_VARIABLE, json.dumps({"tables": [WINDOWED]}))
        try:
            backfill(environment, airflow, border - timedelta(minutes=1), border)
        finally:
            airflow.patch(f"/api/v2/dags/{DAG}", json={"is_paused": True}).raise_for_status()
        expected = content(source, WINDOWED)
        assert len(expected) > 4
        assert content(target, WINDOWED) == expected
        with Ledger.open(environment.ledger) as ledger:
            windows = [run for run in ledger.runs() if run.name.startswith("replay_") and run.state == "done"]
            facts = [ledger.of(run.run_id).phases.facts("replay_window") for run in windows]
            assert sum(fact["cells"] > 0 for fact in facts if fact) >= 2

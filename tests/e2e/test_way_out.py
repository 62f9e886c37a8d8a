"""After a gate that stays shut, a person chooses in Airflow how to go on, while an ordinary client waits to write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from e2e.readers import content, wait_for
from walferry.embedded.dag_run import ENDED, DagRun
from walferry.embedded.environment import Environment
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect
from walferry.ledger import Ledger, RunLedger
from walferry.run.progress.state import state_of

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

TABLE = "ways"
ROW_IS_A_REASON = re.compile(r"not yet: (.*; )?ways at .*: 1 without an explanation")
"""in a task's log; on a busy machine the lag is a reason too, and comes first"""


class Client:
    """Puts one row after the other until told to stop; goes on with the same one while it is refused."""

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.writes = 0
        self.refused = False

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        table = connect(self._address).table(TABLE)
        while not self._stop.wait(0.1):
            try:
                table.put(b"%06d" % self.writes, {b"d:q": b"%d" % self.writes})
            except Exception:  # Thrift has one error for whatever a server says
                self.refused = True
                table = connect(self._address).table(TABLE)
            else:
                self.writes += 1
                self.refused = False


def walferry(environment: Environment, *arguments: str) -> str:
    """What a command in a shell prints."""
    command = [sys.executable, "-m", "walferry.cli", *arguments]
    told = subprocess.run(
        command, env=os.environ | {"WALFERRY_LEDGER": environment.ledger}, capture_output=True, text=True, timeout=240
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def until_asked(run: DagRun, task_id: str) -> dict[str, object]:
    """Wait until a step asks; the cutover is approved meanwhile. Returns the question."""

    def asked() -> bool:
        assert run.state() not in ENDED, run.tasks()
        if task_id != "approve_cutover":
            run.answer_if_asked("approve_cutover")
        return task_id in run.waiting()

    wait_for(asked, 600, f"{task_id} asks")
    return run.question(task_id)


def choose(run: DagRun, way: str, reached: Callable[[], object], **fields: Any) -> None:
    """Answer `way_out`, whenever it asks, until something is reached: Airflow may lose the try that has the answer."""

    def chosen() -> bool:
        if "way_out" in run.waiting():
            run.answer("way_out", way, {"rows": [], "reason": ""} | fields)
        return bool(reached())

    wait_for(chosen, 300, f"{way} is done")


def repaired_by_a_person(environment: Environment, airflow: httpx.Client, ledger: RunLedger) -> None:
    """The row that differs is repaired from Airflow, where the board leads to, by the process that follows the log."""
    environment.airflow.unpause("hbase_repair")
    (table,) = airflow.get("/walferry/api/runs/ways-1").json()["tables"]["rows"]
    assert table["repair"]
    assert 'data-repair="/dags/hbase_repair"' in airflow.get("/walferry/runs/ways-1").text
    assert airflow.get("/dags/hbase_repair").is_success
    assert "ways, repairing 1 row: 0.0 MB are sent" in walferry(environment, "repair", "ways", "--dry-run")

    def ended(**params: Any) -> DagRun:
        run = DagRun.trigger(airflow, "hbase_repair", {"run": "ways", "table": TABLE} | params)
        wait_for(lambda: run.state() in ENDED, 240, "the repair has ended")
        return run

    plan = ended()
    assert "would repair ways stray (unexplained): delete exactly 1 version" in plan.log("repair")
    assert not ledger.repairs.all()
    again = ended(way="copy again")
    assert "would copy 2 regions of ways again" in again.log("repair")
    refused = ended(dry_run=False)
    assert (plan.state(), again.state(), refused.state()) == ("success", "success", "failed")
    assert "give a reason: it is recorded in the audit trail" in refused.log("repair")
    assert "Traceback" not in refused.log("repair")
    assert [task.try_number for task in refused.tasks()] == [1]
    assert ended(dry_run=False, reason="nobody knows it").state() == "success"
    (row,) = ledger.repairs.all()
    assert (row.row, row.fault) == (b"stray", "")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_shut_gate_is_withdrawn_from_the_writer_goes_on_and_the_second_cutover_is_repaired_and_equal(
    environment: Environment,
) -> None:
    source, target = environment.source.address, environment.target.address
    with ExitStack() as stack:
        client = stack.enter_context(HBaseClient(source))
        airflow = stack.enter_context(environment.airflow.client())
        ledger = stack.enter_context(Ledger.open(environment.ledger)).of("ways-1")
        client.create_table(TABLE, {"d": {}}, [b"000100"])
        stack.enter_context(writer := Client(source))
        spec = {"name": "ways", "tables": [TABLE], "write_stop": "readonly", "max_lag": 60}
        spec |= {"repair": "ask", "compare_ahead": False}
        run = DagRun.trigger(airflow, "hbase_migrate", spec)
        until_asked(run, "approve_cutover")
        connect(target).table(TABLE).put(b"stray", {b"d:q": b"nobody knows"})

        question = until_asked(run, "way_out")
        assert "1 row of ways" in str(question["body"])
        assert writer.refused
        refused = "Accept, check again was not possible: no row absent of ways waits for a decision"
        wrong = {"rows": ["ways absent"], "reason": "a guess"}
        choose(run, "Accept, check again", lambda: refused in state_of(ledger).cause, **wrong)
        until_asked(run, "way_out")
        choose(run, "Withdraw", lambda: ledger.phases.facts("write_stop") is None, reason="where does it come from?")
        written = writer.writes
        wait_for(lambda: writer.writes > written + 20, 120, "the writer goes on")

        second = DagRun(airflow, "hbase_migrate", "ways-1__continued_1")
        wait_for(lambda: run.state() == "failed", 120, "the first run of the DAG is over")
        wait_for(lambda: ROW_IS_A_REASON.search(second.log("wait_until_ready")), 240, "the row is still a reason")
        repaired_by_a_person(environment, airflow, ledger)
        walferry(environment, "verify", "ways")
        until_asked(second, "approve_cutover")
        connect(target).table(TABLE).put(b"another", {b"d:q": b"nobody knows"})
        until_asked(second, "way_out")
        assert writer.refused
        third = DagRun(airflow, "hbase_migrate", "ways-1__continued_2")
        choose(second, "Repair, check again", lambda: second.state() == "failed")
        wait_for(lambda: third.state() in ENDED, 600, "the run ends")
        assert third.state() == "success", [task for task in third.tasks() if task.state != "success"]
    found = content(source, TABLE)
    assert len(found) > 20
    assert content(target, TABLE) == found
    with Ledger.open(environment.ledger) as book:
        ledger = book.of("ways-1")
        assert ledger.record.state == "done"
        assert sorted(row.row for row in ledger.repairs.all()) == [b"another", b"stray"]
        assert not ledger.log.gaps()
        book.verify_audit()

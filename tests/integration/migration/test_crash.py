"""kill -9 of the command at any moment, then `walferry resume`: the run ends equal (R7)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from walferry.embedded.cluster import Cluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.thrift import connect
from walferry.ledger import Ledger

pytestmark = pytest.mark.cluster

COMMAND = [str(Path(sys.executable).parent / "walferry")]
KILLED_IN = ("copy", "replay")  # one without and one with the lease, whose successor waits a minute


def rows(cluster: Cluster, table: str) -> dict[bytes, dict[bytes, bytes]]:
    connection = connect(cluster.address)
    try:
        return dict(connection.table(table).scan())
    finally:
        connection.close()


def wait_for(phase: str, url: str, name: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        with Ledger.open(url) as ledger:
            if any(run.name == name for run in ledger.runs()) and any(
                found.phase == phase for found in ledger.phases(ledger.find(name).run_id)
            ):
                return
        time.sleep(0.1)
    raise AssertionError(f"{phase} was not reached: {process.communicate()[1] if process.poll() is not None else ''}")


def test_a_command_killed_in_each_phase_is_resumed_and_ends_equal(
    source: Cluster, target: Cluster, at_source: HBaseClient, make_table: Callable[..., str], tmp_path: Path
) -> None:
    table, name, url = make_table(), f"k{uuid4().hex[:8]}", f"sqlite:///{tmp_path / 'ledger.db'}"
    clusters = {
        side: {"zookeeper": c.address.zookeeper, "webhdfs": c.address.webhdfs, "rootdir": c.rootdir}
        for side, c in (("source", source), ("target", target))
    }
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"name": name, "tables": [table], **clusters}))
    environment = os.environ | {"WALFERRY_LEDGER": url}

    def launch(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments, "--yes", "--reports", str(tmp_path / "reports")],
            env=environment, cwd=tmp_path, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    process = launch("start", str(spec))
    try:
        for step, phase in enumerate(KILLED_IN):
            wait_for(phase, url, name, process)
            values = [Cell(b"%c%d" % (letter, step), b"f", b"q", b"%d" % step, 1) for letter in b"aknz"]
            at_source.put(table, [*values, Cell(b"same", b"f", b"q", b"%d" % step, 1)])
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            process = launch("resume", name)
        _, error = process.communicate(timeout=500)
        assert process.returncode == 0, error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    with Ledger.open(url) as ledger:
        assert ledger.find(name).state == "done"
    assert len(rows(source, table)) == 9
    assert rows(target, table) == rows(source, table)

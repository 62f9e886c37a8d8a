"""What `make up` tells a shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from walferry.embedded.environment import Environment, Settings
from walferry.run.spec import environment_connection


def test_a_shell_that_reads_the_file_has_what_airflow_and_walferry_need(tmp_path: Path) -> None:
    environment = Environment.lay_out(tmp_path / "it's here; $HOME", Settings())
    file = tmp_path / "environment"
    file.write_text(environment.shell())
    say = 'printf "%s\\0" "$AIRFLOW_HOME" "$WALFERRY_LEDGER" "$AIRFLOW_CONN_HBASE_SOURCE"; command -v walferry'
    answer = subprocess.run(
        ["sh", "-c", f". '{file}'; {say}"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    home, ledger, connection, command = answer.stdout.split("\0")
    assert home == str(environment.airflow.directory)
    assert ledger == environment.ledger
    assert json.loads(connection)["port"] == environment.source.ports.zookeeper
    assert command.strip().endswith("/bin/walferry")


def test_the_connections_in_it_are_those_of_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment.lay_out(tmp_path, Settings())
    monkeypatch.setenv("AIRFLOW_CONN_HBASE_TARGET", json.dumps(environment.connections()["hbase_target"]))
    cluster = environment_connection("hbase_target")
    assert cluster.zookeeper == environment.target.address.zookeeper
    assert cluster.rootdir == environment.target.address.rootdir

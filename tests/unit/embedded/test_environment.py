"""What `make up` tells a shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from walferry.embedded import jars
from walferry.embedded.environment import Environment
from walferry.errors import UsageError
from walferry.run.given_spec import environment_connection
from walferry.settings import EmbeddedServers


def test_a_shell_that_reads_the_file_has_what_airflow_and_walferry_need(tmp_path: Path) -> None:
    environment = Environment.lay_out(tmp_path / "it's here; $HOME", EmbeddedServers.read())
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
    environment = Environment.lay_out(tmp_path, EmbeddedServers.read())
    monkeypatch.setenv("AIRFLOW_CONN_HBASE_TARGET", json.dumps(environment.connections()["hbase_target"]))
    cluster = environment_connection("hbase_target")
    assert cluster.zookeeper == environment.target.address.zookeeper
    assert cluster.rootdir == environment.target.address.rootdir


def test_make_up_boots_the_versions_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_SOURCE_VERSION", "1.7.2")
    monkeypatch.setenv("WALFERRY_TARGET_VERSION", "")  # as `make` passes one that nobody set
    environment = Environment.lay_out(tmp_path, EmbeddedServers.read())
    assert environment.source.version == "1.7.2"
    assert environment.target.version == jars.NEWEST


def test_make_up_refuses_a_version_that_cannot_be_booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_SOURCE_VERSION", "1.4.99")
    with pytest.raises(UsageError, match=r"HBase 1\.4\.99 cannot be booted"):
        Environment.lay_out(tmp_path, EmbeddedServers.read())


def test_secured_clusters_have_connections_with_principal_and_keytab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_SECURITY", "kerberos")
    environment = Environment.lay_out(tmp_path, EmbeddedServers.read())
    kdc = environment.kdc
    assert kdc is not None
    assert environment.airflow.variables()["KRB5_CONFIG"] == str(kdc.config)
    for name, urls in (("hbase_source", 2), ("hbase_target", 1)):
        connection = environment.connections()[name]
        extra = connection["extra"]
        assert connection["host"] == "localhost"
        assert (extra["principal"], extra["keytab"]) == ("ferry@EXAMPLE.COM", str(kdc.keytab_path(["ferry"])))
        assert "user" not in extra
        assert len(extra["webhdfs"].split(";")) == urls


def test_make_up_refuses_a_security_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_SECURITY", "tls")
    with pytest.raises(UsageError, match="WALFERRY_SECURITY is 'tls': give `kerberos`"):
        EmbeddedServers.read()

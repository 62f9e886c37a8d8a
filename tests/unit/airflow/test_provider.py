from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from walferry.airflow import CONNECTION_TYPE, get_provider_info, hook
from walferry.airflow.hook import HBaseHook, examine
from walferry.errors import TransientError, UsageError
from walferry.hbase import zookeeper
from walferry.hbase.zookeeper import Server
from walferry.run.spec import Cluster
from walferry.security.spec import KerberosKeys, TlsKeys
from walferry.spark.__main__ import dependencies, pack
from walferry.storage import Local

ASK_AIRFLOW = """
import json
from airflow.providers_manager import ProvidersManager

manager = ProvidersManager()
fields = {name: widget.field for name, widget in manager.connection_form_widgets.items() if "__hbase__" in name}
print(json.dumps({"fields": fields, "form": manager.field_behaviours["hbase"], "links": manager.extra_links_class_names,
                  "hook": manager.hooks["hbase"].hook_name}, default=str))
"""


def cluster(port: int) -> Cluster:
    return Cluster(zookeeper=f"127.0.0.1:{port}", webhdfs="http://127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")


def test_airflow_takes_form_fields_and_links_from_the_provider(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", ASK_AIRFLOW],
        capture_output=True, text=True, check=True, env={"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    known = json.loads(answer.stdout.splitlines()[-1])
    assert {name.removeprefix("extra__hbase__") for name in known["fields"]} == {
        "znode", "webhdfs", "rootdir", "waldir", "wal_webhdfs", "thrift", "user", "principal", "keytab", "ccache",
        "service", "qop", "zookeeper_service", "realms", "tls_rpc", "tls_zookeeper", "tls_ca", "tls_certificate",
        "tls_key",
    }  # fmt: skip
    assert known["form"]["relabeling"]["host"] == "ZooKeeper quorum"
    assert set(known["form"]["hidden_fields"]) == {"schema", "login", "password"}
    assert {"walferry.airflow.links.BoardLink", "walferry.airflow.links.SparkLink"} <= set(known["links"])
    assert known["hook"] == "HBase"


def test_the_form_names_every_key_that_a_connection_is_read_from() -> None:
    tls = {f"tls_{name}" for name in TlsKeys.model_fields}
    keys = ({*Cluster.model_fields, *KerberosKeys.model_fields} | tls) - {"zookeeper", "security", "tls"}
    assert set(CONNECTION_TYPE["conn-fields"]) == keys
    for name in [CONNECTION_TYPE["hook-class-name"], *get_provider_info()["extra-links"]]:
        module, _, kind = name.rpartition(".")
        assert hasattr(import_module(module), kind)


def test_a_refused_port_is_told_in_one_line_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    fields: dict[str, Any] = {
        "conn_type": "hbase",
        "host": "127.0.0.1",
        "port": 1,
        "extra": cluster(1).model_dump(exclude_none=True),
    }
    del fields["extra"]["zookeeper"]
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps(fields))
    monkeypatch.setattr(zookeeper, "CONNECT_TIMEOUT_S", 0.5)
    reached, message = HBaseHook("tried").test_connection()
    assert not reached
    assert message == "ZooKeeper at 127.0.0.1:1 did not answer within 0.5 s; is it up?"


def test_a_connection_without_a_required_field_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({"conn_type": "hbase", "host": "127.0.0.1"}))
    assert HBaseHook("tried").test_connection() == (
        False,
        "the connection: webhdfs: Field required; rootdir: Field required",
    )


def test_a_server_that_never_answers_is_given_up_at_the_deadline() -> None:
    too_late = pytest.raises(TransientError, match=r"^ZooKeeper at .* did not answer within 1 s")
    with socket.create_server(("127.0.0.1", 0)) as silent, too_late:
        examine(cluster(silent.getsockname()[1]), 1)


def test_a_wal_folder_without_wals_is_named_by_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = SimpleNamespace(cluster_id=lambda: "c1", master=lambda: Server("m", 1, 2), version=lambda: "2.6.3")
    monkeypatch.setattr(hook, "HBaseClient", lambda *_, **__: nullcontext(answers))
    monkeypatch.setattr(hook, "file_system", lambda *_: Local())
    Local().write(f"{tmp_path}/root/hbase.id", [b"id"])
    keys = {"rootdir": f"hdfs://nn:1{tmp_path}/root", "waldir": f"hdfs://nn:1{tmp_path}/logs"}
    tried = cluster(1).model_copy(update=keys)
    with pytest.raises(UsageError, match="logs is not HBase's WAL folder: WebHDFS finds no WALs in it"):
        examine(tried, 10)
    Local().mkdirs(f"{tmp_path}/logs/WALs")
    assert examine(tried, 10) == "HBase 2.6.3, cluster c1"


def test_drivers_packages_stay_out_of_the_packed_environment() -> None:
    needed = dependencies("walferry")
    assert {"numba", "protobuf", "happybase", "pyarrow"} <= needed
    assert not {"pyspark", "apache-airflow", "great-expectations", "psutil"} & needed


def test_an_archive_of_a_kind_that_spark_does_not_unpack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"name it \*\.zip"):
        pack(tmp_path / "environment.tar.gz")

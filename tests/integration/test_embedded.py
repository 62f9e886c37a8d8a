"""The clusters that `walferry.embedded` boots are real ones, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import happybase
import psutil
import pytest
import requests

from walferry.embedded import tools
from walferry.embedded.cluster import Cluster
from walferry.errors import WalferryError

pytestmark = pytest.mark.cluster


def connect(cluster: Cluster) -> happybase.Connection:
    host, port = str(cluster.address.thrift).split(":")
    return happybase.Connection(host, int(port))


def list_folder(cluster: Cluster, path: str) -> list[dict[str, object]]:
    answer = requests.get(f"{cluster.address.webhdfs}/webhdfs/v1{path}?op=LISTSTATUS", timeout=30)
    answer.raise_for_status()
    return list(answer.json()["FileStatuses"]["FileStatus"])


def test_what_thrift_writes_stands_in_a_log_that_hbases_own_printer_reads(source: Cluster) -> None:
    connection = connect(source)
    connection.create_table("embedded_log", {"f": {"max_versions": 3}})
    connection.table("embedded_log").put(b"row-1", {b"f:q": b"value"})
    assert connection.table("embedded_log").row(b"row-1") == {b"f:q": b"value"}

    servers = [str(status["pathSuffix"]) for status in list_folder(source, "/hbase/WALs")]
    files = [
        f"/hbase/WALs/{server}/{status['pathSuffix']}"
        for server in servers
        for status in list_folder(source, f"/hbase/WALs/{server}")
        if ".meta" not in str(status["pathSuffix"])
    ]
    entries = [entry for file in files for entry in json.loads(tools.print_wal(source, file))]
    rows = {action["row"] for entry in entries for action in entry["actions"] if entry["table"] == "embedded_log"}
    assert "row-1" in rows


def test_source_and_target_are_two_clusters(source: Cluster, target: Cluster) -> None:
    connect(target).create_table("embedded_only_here", {"f": {}})
    assert b"embedded_only_here" in connect(target).tables()
    assert b"embedded_only_here" not in connect(source).tables()


def test_the_source_has_as_many_region_servers_as_asked_for(source: Cluster) -> None:
    folders = {str(status["pathSuffix"]).rsplit(",", 1)[0] for status in list_folder(source, "/hbase/WALs")}
    assert folders == {f"127.0.0.1,{port}" for port in source.ports.region_servers}


def test_a_cluster_started_again_in_its_folder_has_its_data_and_no_server_outlives_kill_9_of_its_parent(
    tmp_path: Path,
) -> None:
    # One boot for both: a program of its own boots a cluster, writes and is killed; then we start there again.
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        import happybase
        from walferry.embedded.cluster import Cluster
        cluster = Cluster.start(Path(sys.argv[1]))
        host, port = cluster.address.thrift.split(":")
        connection = happybase.Connection(host, int(port))
        connection.create_table("kept", {"f": {}})
        connection.table("kept").put(b"r", {b"f:q": b"v"})
        print(*cluster.pids.values(), flush=True)
        time.sleep(600)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "cluster")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(psutil.pid_exists(pid) for pid in pids)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in pids if is_running(pid)]

    with Cluster.start(tmp_path / "cluster") as cluster:
        assert connect(cluster).table("kept").row(b"r") == {b"f:q": b"v"}
        pids = list(cluster.pids.values())
    assert not [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_server_that_cannot_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(WalferryError, match=r"(?s)hdfs ended .*hdfs\.log.*fs-limits"):
        Cluster.start(tmp_path / "cluster", hdfs_site={"dfs.namenode.fs-limits.max-component-length": "many"})

"""The clusters that `walferry.embedded` boots are real ones, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import happybase
import psutil
import pytest
import requests

from walferry.embedded import tools
from walferry.embedded.cluster import MiniCluster, Ports
from walferry.embedded.demo_writer import TABLES, DemoWriter, read_count
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient

pytestmark = pytest.mark.cluster


def connect(cluster: MiniCluster) -> happybase.Connection:
    host, port = str(cluster.address.thrift).split(":")
    return happybase.Connection(host, int(port))


def list_folder(cluster: MiniCluster, path: str) -> list[dict[str, object]]:
    answer = requests.get(f"{cluster.address.webhdfs}/webhdfs/v1{path}?op=LISTSTATUS", timeout=30)
    answer.raise_for_status()
    return list(answer.json()["FileStatuses"]["FileStatus"])


def closed_logs(cluster: MiniCluster) -> list[str]:
    """Roll the logs of all region servers and return those that were written to just before."""
    before = {newest_log(cluster, folder) for folder in list_folder(cluster, "/hbase/WALs")}
    with HBaseClient(cluster.address) as client:
        for server in client.servers():
            client.roll_wal(server)
    archived = {str(status["pathSuffix"]): status for status in list_folder(cluster, "/hbase/oldWALs")}
    return [f"/hbase/oldWALs/{Path(path).name}" if Path(path).name in archived else path for path in sorted(before)]


def newest_log(cluster: MiniCluster, folder: dict[str, object]) -> str:
    parent = f"/hbase/WALs/{folder['pathSuffix']}"
    names = [str(status["pathSuffix"]) for status in list_folder(cluster, parent)]
    newest = max((name for name in names if ".meta" not in name), key=lambda name: int(name.rpartition(".")[2]))
    return f"{parent}/{newest}"


def logged_actions(cluster: MiniCluster, *tables: str) -> list[dict[str, Any]]:
    """What HBase's own printer finds about the tables in the logs that are open now."""
    entries = [entry for file in closed_logs(cluster) for entry in tools.print_wal(cluster, file)]
    return [action for entry in entries if entry["table"]["nameAsString"] in tables for action in entry["actions"]]


def test_what_thrift_writes_stands_in_a_log_that_hbases_own_printer_reads(source: MiniCluster) -> None:
    connection = connect(source)
    connection.create_table("embedded_log", {"f": {"max_versions": 3}})
    connection.table("embedded_log").put(b"row-1", {b"f:q": b"value"})
    assert connection.table("embedded_log").row(b"row-1") == {b"f:q": b"value"}
    assert "row-1" in {action["row"] for action in logged_actions(source, "embedded_log")}


def test_the_writer_logs_every_kind_of_mutation_and_stops_when_its_tables_refuse_writes(
    source: MiniCluster, tmp_path: Path
) -> None:
    status = tmp_path / "writer.json"
    with HBaseClient(source.address) as client:
        writer = DemoWriter(client, source.address, status)
        writer.create_tables()
        writer.load(2_000)
        assert len(client.regions("shop:orders")) == 4
        assert sum(1 for _ in connect(source).table("customers").scan()) == 1_000

        def freeze() -> None:
            deadline = time.monotonic() + 60
            while read_count(status).cells_written < 4_000 and time.monotonic() < deadline:
                time.sleep(0.1)
            with HBaseClient(source.address) as other:
                for table in TABLES:
                    other.set_read_only(table, True)

        with ThreadPoolExecutor(1) as pool:
            frozen = pool.submit(freeze)
            writer.run(2_000, stop=lambda: False)
            frozen.result()
    assert read_count(status).state == "stopped: every table is read-only"
    assert read_count(status).cells_written >= 4_000
    with HBaseClient(source.address) as client:
        for table in TABLES:
            client.disable_table(table)
            client.delete_table(table)
    kinds = {action["type"] for action in logged_actions(source, *TABLES) if "type" in action}
    assert kinds >= {"Put", "Delete", "DeleteColumn", "DeleteFamily", "DeleteFamilyVersion"}


def test_source_and_target_are_two_clusters(source: MiniCluster, target: MiniCluster) -> None:
    connect(target).create_table("embedded_only_here", {"f": {}})
    assert b"embedded_only_here" in connect(target).tables()
    assert b"embedded_only_here" not in connect(source).tables()


def test_the_source_has_as_many_region_servers_as_asked_for(source: MiniCluster) -> None:
    # By ZooKeeper, not by the folders of WALs: a server that was restarted and has no region yet has none.
    with HBaseClient(source.address) as client:
        assert sorted(server.port for server in client.servers()) == sorted(source.ports.region_servers)


def test_no_server_outlives_kill_9_of_its_parent_and_the_next_start_finds_the_data(tmp_path: Path) -> None:
    # HDFS alone, for speed: a program of its own boots it, writes a file and is killed.
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        import requests
        from walferry.embedded.cluster import MiniCluster, Ports
        cluster = MiniCluster(Path(sys.argv[1]), Ports.free())
        cluster.start_hdfs()
        cluster.await_ready("hdfs")
        requests.put(f"{cluster.address.webhdfs}/webhdfs/v1/kept?op=CREATE&user.name={cluster.address.user}", b"v")
        print(*cluster.pids.values(), flush=True)
        time.sleep(600)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cluster")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (pid,) = (int(pid) for pid in parent.stdout.readline().split())
        assert is_running(pid)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not is_running(pid)

    with MiniCluster(tmp_path / "cluster", Ports.free()) as cluster:
        cluster.start_hdfs()
        cluster.await_ready("hdfs")
        answer = requests.get(f"{cluster.address.webhdfs}/webhdfs/v1/kept?op=OPEN", timeout=30)
        assert answer.content == b"v"
        (pid,) = cluster.pids.values()
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_server_that_cannot_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(WalferryError, match=r"(?s)hdfs ended .*hdfs\.log.*Invalid size prefix"):
        MiniCluster.start(tmp_path / "cluster", hdfs_site={"dfs.namenode.fs-limits.max-component-length": "many"})

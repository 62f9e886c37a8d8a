"""The clusters that `walferry.embedded` boots are real ones, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Moment:
    """The number of the log that each region server writes to at `ms`, by the log's name without it."""

    ms: int
    logs: dict[str, int]

    def not_yet_closed(self, log: str) -> bool:
        """Whether a log was open at this moment, or was begun later. Those of a server that had died were closed."""
        group, number = parts(log)
        return number >= self.logs.get(group, self.ms)


def moment(cluster: MiniCluster) -> Moment:
    return Moment(int(time.time() * 1000), open_logs(cluster))


def open_logs(cluster: MiniCluster) -> dict[str, int]:
    """The number of the log that each region server writes to, by the log's name without it."""
    newest: dict[str, int] = {}
    for folder in list_folder(cluster, "/hbase/WALs"):
        for group, number in map(parts, log_names(cluster, f"/hbase/WALs/{folder['pathSuffix']}")):
            newest[group] = max(number, newest.get(group, 0))
    return newest


def log_names(cluster: MiniCluster, folder: str) -> list[str]:
    """Those of region servers, without hbase:meta's: oldWALs also has what the master logs of its own tables, by and by
    (`…$masterlocalwal$`)."""
    names = [str(status["pathSuffix"]) for status in list_folder(cluster, folder)]
    return [name for name in names if ".meta" not in name and not name.endswith("$")]


def parts(log: str) -> tuple[str, int]:
    group, _, number = log.rpartition(".")
    return group, int(number)


def rolled_logs(cluster: MiniCluster, since: Moment) -> list[str]:
    """Roll the logs of all region servers; return those that were open at `since` and what was written after them.

    HBase rolls a log by itself, too, when a disk is slow.
    """
    before = open_logs(cluster)
    with HBaseClient(cluster.address) as client:
        for server in client.servers():
            client.roll_wal(server)  # only asks for it
    deadline = time.monotonic() + 30
    while any(number <= before.get(group, 0) for group, number in open_logs(cluster).items()):
        assert time.monotonic() < deadline, "a region server does not roll its log"
        time.sleep(0.05)
    still_open = set(open_logs(cluster).items())
    folders = [f"/hbase/WALs/{folder['pathSuffix']}" for folder in list_folder(cluster, "/hbase/WALs")]
    # Those that are archived last, since a log may be moved between the two looks.
    found = {name: folder for folder in (*folders, "/hbase/oldWALs") for name in log_names(cluster, folder)}
    later = [name for name in found if since.not_yet_closed(name) and parts(name) not in still_open]
    return sorted(f"{found[name]}/{name}" for name in later)


def logged_actions(cluster: MiniCluster, since: Moment, *tables: str) -> list[dict[str, Any]]:
    """What HBase's own printer finds about the tables in the logs since those."""
    entries = [entry for file in rolled_logs(cluster, since) for entry in tools.print_wal(cluster, file)]
    return [action for entry in entries if entry["table"]["nameAsString"] in tables for action in entry["actions"]]


def test_what_thrift_writes_stands_in_a_log_that_hbases_own_printer_reads(source: MiniCluster) -> None:
    before = moment(source)
    connection = connect(source)
    connection.create_table("embedded_log", {"f": {"max_versions": 3}})
    connection.table("embedded_log").put(b"row-1", {b"f:q": b"value"})
    assert connection.table("embedded_log").row(b"row-1") == {b"f:q": b"value"}
    assert "row-1" in {action["row"] for action in logged_actions(source, before, "embedded_log")}


def test_the_writer_logs_every_kind_of_mutation_and_stops_when_its_tables_refuse_writes(
    source: MiniCluster, tmp_path: Path
) -> None:
    status, before = tmp_path / "writer.json", moment(source)
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
    kinds = {action["type"] for action in logged_actions(source, before, *TABLES) if "type" in action}
    assert kinds >= {"Put", "Delete", "DeleteColumn", "DeleteFamily", "DeleteFamilyVersion"}


def test_source_and_target_are_two_clusters(source: MiniCluster, target: MiniCluster) -> None:
    connect(target).create_table("embedded_only_here", {"f": {}})
    assert b"embedded_only_here" in connect(target).tables()
    assert b"embedded_only_here" not in connect(source).tables()


def test_the_source_has_as_many_region_servers_as_asked_for(source: MiniCluster) -> None:
    # By ZooKeeper, not by the folders of WALs: a server that was restarted and has no region yet has none.
    with HBaseClient(source.address) as client:
        assert sorted(server.port for server in client.servers()) == sorted(source.ports.region_servers)


@pytest.mark.long
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

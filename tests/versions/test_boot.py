"""Each version of HBase that can be booted is really that version, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import happybase
import psutil
import pytest
import requests

from walferry.embedded import jars, tools
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient

pytestmark = pytest.mark.cluster
ROWS = [b"row-%d" % number for number in range(50)]


@pytest.mark.parametrize("version", jars.VERSIONS)
def test_it_serves_tables_writes_logs_and_stops(version: str, tmp_path: Path) -> None:
    with MiniCluster.start(tmp_path / "cluster", region_servers=2, version=version) as cluster:
        pids = list(cluster.pids.values())
        assert sorted(cluster.pids) == ["hbase", "hdfs", "regionserver-1", "thrift"]
        with HBaseClient(cluster.address) as client:
            assert client.version().partition("-")[0] == version
            assert client.master().address == cluster.master
            servers = {(server.host, server.port) for server in client.servers()}
            assert servers == {("127.0.0.1", port) for port in cluster.ports.region_servers}
            # Not by Thrift, whose client of the newest version asks before it creates a table what 1.x does not know.
            client.create_table("booted", {"f": {"VERSIONS": "3"}})
        write_by_thrift(cluster)
        assert rows_in_logs(cluster) >= {row.decode() for row in ROWS}
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def write_by_thrift(cluster: MiniCluster) -> None:
    host, port = str(cluster.address.thrift).split(":")
    connection = happybase.Connection(host, int(port))
    table = connection.table("booted")
    for row in ROWS:
        table.put(row, {b"f:q": b"value of " + row})
    assert list(table.scan()) == [(row, {b"f:q": b"value of " + row}) for row in sorted(ROWS)]
    connection.close()


def rows_in_logs(cluster: MiniCluster) -> set[str]:
    """The rows that the version's own printer finds in its logs, once they are closed."""
    before = set(wals(cluster, "/hbase/WALs"))
    with HBaseClient(cluster.address) as client:
        for server in client.servers():
            client.roll_wal(server)
    found = set()
    for path in {path for path in before if ".meta" not in path}:
        archived = f"/hbase/oldWALs/{Path(path).name}"
        where = archived if archived in wals(cluster, "/hbase/oldWALs") else path
        entries = tools.print_wal(cluster, where)
        found |= {action["row"] for entry in entries for action in entry["actions"] if "booted" in json.dumps(entry)}
    return found


def wals(cluster: MiniCluster, folder: str) -> list[str]:
    """Paths of the files in a folder and those below it."""
    answer = requests.get(f"{cluster.address.webhdfs}/webhdfs/v1{folder}?op=LISTSTATUS", timeout=30)
    answer.raise_for_status()
    paths = []
    for status in answer.json()["FileStatuses"]["FileStatus"]:
        path = f"{folder}/{status['pathSuffix']}"
        paths += wals(cluster, path) if status["type"] == "DIRECTORY" else [path]
    return paths

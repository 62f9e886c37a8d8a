from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.migration.planning.versions import of_version
from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.zookeeper import ZooKeeper
from walferry.replay.keeping import obstacles
from walferry.replay.keeping.obstacles import folder_obstacle, peer_obstacles, require_log_folder
from walferry.security import Kerberos
from walferry.storage import Local


@pytest.mark.parametrize("version", ["1.2.0-cdh5.16.2", "1.4.13", "2.0.6", "2.1.10"])
def test_servers_may_lack_the_peers_class(version: str) -> None:
    (found,) = peer_obstacles(of_version(version))
    assert "could not start again" in found


@pytest.mark.parametrize("version", ["1.5.0", "1.7.2", "2.2.0", "2.3.7"])
def test_servers_that_have_the_peers_class_are_no_obstacle(version: str) -> None:
    assert list(peer_obstacles(of_version(version))) == []


def test_replication_may_be_off_before_2_0() -> None:
    (found,) = peer_obstacles(of_version("1.7.2", {"hbase.replication": "false"}))
    assert "hbase.replication is false at the source" in found
    assert list(peer_obstacles(of_version("1.7.2", {"hbase.replication": "true"}))) == []
    assert list(peer_obstacles(of_version("2.6.3", {"hbase.replication": "false"}))) == [], "2.x has no such switch"


def test_a_zookeeper_that_hides_queues_keeps_from_a_peer_at_a_secured_cluster_only() -> None:
    def read(path: str) -> bytes:
        raise AccessDeniedError(f"no right to read {path}")

    secured, open_to_all = of_version("2.6.3", security=Kerberos("ferry@EXAMPLE.COM")), of_version("2.6.3")
    for client in (secured, open_to_all):
        client.zookeeper = cast(ZooKeeper, SimpleNamespace(read=read))
    (found,) = peer_obstacles(secured)
    assert found.startswith("the source's ZooKeeper shows the queues of peers to superusers of HBase only; add ferry")
    assert list(peer_obstacles(open_to_all)) == []


def test_queues_in_a_table_cannot_be_read() -> None:
    (found,) = peer_obstacles(of_version("3.0.0"))
    assert "replication queues in a table" in found


ROOT, ELSEWHERE = "hdfs://nn:8020/hbase", "hdfs://other:8020/wal"
TWO_NODES = {
    "dfs.ha.namenodes.logs": "nn1, nn2",
    "dfs.namenode.http-address.logs.nn1": "a:9870",
    "dfs.namenode.http-address.logs.nn2": "b:9870",
}


@pytest.mark.parametrize(
    ("page", "waldir", "advice"),
    [
        ({"hbase.wal.dir": "hdfs://nn:8020/wal"}, None, "its hbase.wal.dir is hdfs://nn:8020/wal: set `waldir` to it"),
        ({"hbase.wal.dir": "/wal"}, "hdfs://nn:8020/wrong", "its hbase.wal.dir is /wal: set `waldir` to it"),
        (
            {"hbase.wal.dir": ELSEWHERE},
            None,
            f"its hbase.wal.dir is {ELSEWHERE}: set `waldir` to it, and `wal_webhdfs` to the HTTP address of its "
            "NameNode",
        ),
        (
            {"hbase.wal.dir": "hdfs://logs/wal", **TWO_NODES},
            None,
            "its hbase.wal.dir is hdfs://logs/wal: set `waldir` to it, and `wal_webhdfs` to http://a:9870;http://b:9870",
        ),
        ({}, "hdfs://nn:8020/wal", "its region servers have no hbase.wal.dir: leave `waldir` out"),
        (
            {},
            None,
            f"its region servers have no hbase.wal.dir, and their hbase.rootdir is {ROOT}: check `rootdir` and "
            "`webhdfs`",
        ),
        (
            None,
            None,
            "its region servers' settings (/conf) cannot be read: if hbase.wal.dir is set in its hbase-site.xml, set "
            "`waldir` to it, and `wal_webhdfs` if that is on another HDFS than the root folder",
        ),
    ],
)
def test_a_folder_without_logs_of_a_live_server_is_the_wrong_one(
    page: dict[str, str] | None, waldir: str | None, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstacles, "log_files_of", lambda _: Local())
    folder = f"hdfs://nn:8020{tmp_path}"
    address = ClusterAddress("zk:2181", rootdir=folder, waldir=waldir and f"{folder}/wal")
    client = of_version("2.6.3", None if page is None else {"hbase.rootdir": ROOT, **page}, address)
    live = Path(address.wal_path) / "WALs"
    (live / "rs,1,1").mkdir(parents=True)  # left by an earlier life of the server
    found = folder_obstacle(client)
    assert found == f"{live} has no folder of a live region server; {advice}"
    with pytest.raises(UsageError, match=f"target: {live} has no folder"):
        require_log_folder(client, "target")
    (live / "rs,1,2").mkdir()
    assert folder_obstacle(client) is None
    require_log_folder(client, "target")

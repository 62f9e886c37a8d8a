from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.migration.planning.versions import of_version
from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.zookeeper import Server
from walferry.run import log_folder
from walferry.run.log_folder import folder_obstacle, log_obstacle, require_log_folder
from walferry.storage import Local

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
    monkeypatch.setattr(log_folder, "log_files_of", lambda _: Local())
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


def test_one_server_that_has_regions_and_no_folder_logs_elsewhere(tmp_path: Path) -> None:
    """While servers are restarted one by one with another hbase.wal.dir."""
    here, moved, empty = Server("rs", 1, 2), Server("rs", 2, 3), Server("rs", 3, 4)

    def regions(table: str) -> list[SimpleNamespace]:
        if table == "gone":
            raise TableNotFoundError("there is no table gone", table="gone")
        return [SimpleNamespace(server=server) for server in (here, moved, None)]

    client = SimpleNamespace(
        address=ClusterAddress("zk:2181", rootdir=f"hdfs://nn:8020{tmp_path}"),
        servers=lambda: [here, moved, empty],
        regions=regions,
        settings=lambda server: {"hbase.wal.dir": "/new"} if server == moved else {},
    )

    def found() -> str | None:
        return log_obstacle(cast(HBaseClient, client), Local(), ["gone", "t"])

    (tmp_path / "WALs" / here.name).mkdir(parents=True)
    says = "has no folder of rs,2,3, which has regions of t; its hbase.wal.dir is /new: set `waldir` to it"
    assert found() == f"{tmp_path}/WALs {says}"
    (tmp_path / "WALs" / moved.name).mkdir()
    assert found() is None, "a server without regions may have none"

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.migration.planning.versions import of_version
from walferry.errors import TransientError, UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.zookeeper import Server
from walferry.run import log_folder
from walferry.run.log_folder import log_obstacle, require_log_folder
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
    found = log_obstacle(client, [])
    assert found == f"{live} has no folder of a live region server; {advice}"
    with pytest.raises(TransientError, match=f"target: {live} has no folder"):
        require_log_folder(client, "target", [])
    with pytest.raises(TransientError if page is None else UsageError, match=f"target: {live} has no folder"):
        require_log_folder(client, "target", [], planned=False)
    (live / "rs,1,2").mkdir()
    assert log_obstacle(client, []) is None
    require_log_folder(client, "target", [])


def test_servers_that_name_the_place_of_the_address_may_be_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_folder, "log_files_of", lambda _: Local())
    folder = f"hdfs://nn:8020{tmp_path}"
    client = of_version("1.7.2", {"hbase.rootdir": folder}, ClusterAddress("zk:2181", rootdir=folder))
    with pytest.raises(TransientError, match="has no folder of a live region server"):
        require_log_folder(client, "source", [], planned=False)


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
        return log_obstacle(cast(HBaseClient, client), ["gone", "t"], Local())

    (tmp_path / "WALs" / here.name).mkdir(parents=True)
    says = "has no folder of rs,2,3, which has regions of t; its hbase.wal.dir is /new: set `waldir` to it"
    assert found() == f"{tmp_path}/WALs {says}"
    (tmp_path / "WALs" / moved.name).mkdir()
    assert found() is None, "a server without regions may have none"


def cluster(root: Path, *servers: Server, serving: Server) -> SimpleNamespace:
    """A cluster whose settings nobody tells; `asked` counts who is asked for them."""
    asked: list[Server] = []
    return SimpleNamespace(
        address=ClusterAddress("zk:2181", rootdir=f"hdfs://nn:8020{root}"),
        servers=lambda: list(servers),
        regions=lambda table: [SimpleNamespace(server=serving)],
        settings=asked.append,
        asked=asked,
    )


def obstacle(client: SimpleNamespace, files: Local | None = None) -> str | None:
    return log_obstacle(cast(HBaseClient, client), ["t"], files or Local())


def test_the_folder_of_a_killed_server_is_there_while_it_is_split(tmp_path: Path) -> None:
    """Its session may go on for 90 s, and hbase:meta still names it."""
    here, dead = Server("rs", 1, 2), Server("rs", 2, 3)
    (tmp_path / "WALs" / f"{dead.name}-splitting").mkdir(parents=True)
    assert obstacle(cluster(tmp_path, dead, serving=dead)) is None
    (tmp_path / "WALs" / here.name).mkdir()
    assert obstacle(cluster(tmp_path, here, dead, serving=dead)) is None


def test_a_killed_server_whose_port_another_process_has_taken_needs_no_folder(tmp_path: Path) -> None:
    """Its log is split already, and its regions are not open elsewhere yet."""
    dead, new = Server("rs", 2, 3), Server("rs", 2, 30)
    (tmp_path / "WALs" / new.name).mkdir(parents=True)
    assert obstacle(cluster(tmp_path, new, dead, serving=dead)) is None
    assert obstacle(cluster(tmp_path, new, Server("rs", 3, 3), serving=Server("rs", 3, 3))) is not None


def test_a_server_that_has_just_started_may_get_its_folder_while_its_regions_are_looked_up(tmp_path: Path) -> None:
    here, started = Server("rs", 1, 2), Server("rs", 2, 3)
    (tmp_path / "WALs" / here.name).mkdir(parents=True)
    client = cluster(tmp_path, here, started, serving=started)

    def regions(table: str) -> list[SimpleNamespace]:
        (tmp_path / "WALs" / started.name).mkdir()
        return [SimpleNamespace(server=started)]

    client.regions = regions
    assert obstacle(client) is None


def test_only_one_server_is_asked_for_its_settings(tmp_path: Path) -> None:
    """A server whose pages do not answer costs ten seconds."""
    servers = [Server("rs", number, 2) for number in range(9)]
    client = cluster(tmp_path, *servers, serving=servers[0])
    assert "settings (/conf) cannot be read" in str(obstacle(client))
    assert client.asked == [servers[0]]

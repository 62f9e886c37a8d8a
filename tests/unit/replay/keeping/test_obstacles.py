from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.migration.planning.versions import of_version
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import Server
from walferry.replay.keeping.obstacles import folder_obstacle, peer_obstacles
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


def test_queues_in_a_table_cannot_be_read() -> None:
    (found,) = peer_obstacles(of_version("3.0.0"))
    assert "replication queues in a table" in found


@pytest.mark.parametrize(
    ("known", "where"),
    [
        ({"hbase.wal.dir": "hdfs://nn/wal"}, "its hbase.wal.dir is hdfs://nn/wal: set `waldir` to it"),
        ({}, "if hbase.wal.dir is set in its hbase-site.xml: set `waldir` to it"),
        (None, "if hbase.wal.dir is set in its hbase-site.xml: set `waldir` to it"),
    ],
)
def test_a_folder_without_logs_of_a_live_server_is_the_wrong_one(
    known: dict[str, str] | None, where: str, tmp_path: Path
) -> None:
    server = Server("rs", 1, 2)
    client = cast(HBaseClient, SimpleNamespace(servers=lambda: [server], settings=lambda server: known))
    (tmp_path / "WALs" / "rs,1,1").mkdir(parents=True)  # left by an earlier life of the server
    found = folder_obstacle(client, Local(), str(tmp_path))
    assert found == f"{tmp_path}/WALs has no folder of a live region server; {where}"
    (tmp_path / "WALs" / "rs,1,2").mkdir()
    assert folder_obstacle(client, Local(), str(tmp_path)) is None

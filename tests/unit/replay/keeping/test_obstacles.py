from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from unit.migration.planning.versions import of_version
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.zookeeper import ZooKeeper
from walferry.replay.keeping.obstacles import peer_obstacles
from walferry.security import Kerberos, Security


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

    identity = Security(Kerberos("ferry@EXAMPLE.COM"))
    secured, open_to_all = of_version("2.6.3", security=identity), of_version("2.6.3")
    for client in (secured, open_to_all):
        client.zookeeper = cast(ZooKeeper, SimpleNamespace(read=read))
    (found,) = peer_obstacles(secured)
    assert found.startswith("the source's ZooKeeper shows the queues of peers to superusers of HBase only; add ferry")
    assert list(peer_obstacles(open_to_all)) == []
    no_login = of_version("2.6.3", security=Security(Kerberos("ferry@EXAMPLE.COM", zookeeper_service=None)))
    no_login.zookeeper = secured.zookeeper
    (found,) = peer_obstacles(no_login)
    assert "`zookeeper_service: none` says not to log in" in found
    assert "hbase.superuser" not in found


def test_queues_in_a_table_cannot_be_read() -> None:
    (found,) = peer_obstacles(of_version("3.0.0"))
    assert "replication queues in a table" in found

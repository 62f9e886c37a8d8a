"""What a sink shows of itself in a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from walferry.embedded.cluster import MiniCluster
from walferry.errors import TransientError, UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import Server, ZooKeeper, cluster_id_in
from walferry.receive.presence import Presence, remove

pytestmark = pytest.mark.cluster
SINK = str(uuid4())


@pytest.fixture
def path(target: MiniCluster) -> Iterator[str]:
    made = f"/walferry/receive/{uuid4().hex}"
    yield made
    remove(target.address, made)


@pytest.fixture(scope="module")
def zk(target: MiniCluster) -> Iterator[KazooClient]:
    with HBaseClient(target.address) as client:
        yield client.zk


def presence(target: MiniCluster, path: str, port: int = 1, cluster_id: str = SINK) -> Presence:
    return Presence(target.address, path, cluster_id, "127.0.0.1", port)


def await_true(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_it_looks_like_a_cluster_to_those_who_read_hbases_nodes(
    target: MiniCluster, path: str, zk: KazooClient
) -> None:
    with presence(target, path) as one, presence(target, path, 2) as other:
        as_cluster = ZooKeeper(target.address.zookeeper, path)
        assert (as_cluster.cluster_id(), as_cluster.servers()) == (SINK, [])
        one.show()
        other.show()
        assert as_cluster.servers() == sorted(Server.parse(each.server) for each in (one, other))
        assert (one.others(), other.others()) == ([other.server], [one.server])
        one.hide()
        one.hide()
        assert other.others() == []
        as_cluster.close()
    assert zk.get_children(f"{path}/rs") == []


def test_the_node_is_there_again_after_the_session_has_expired_unless_it_is_hidden(
    target: MiniCluster, path: str, zk: KazooClient
) -> None:
    with presence(target, path) as one:
        one.show()
        node = f"{path}/rs/{one.server}"
        before = zk.exists(node)
        expire(target, one)
        await_true(lambda: (now := zk.exists(node)) and now.ephemeralOwner != before.ephemeralOwner)
        one.hide()
        expire(target, one)
        await_true(lambda: one._zookeeper.client.connected)
        one._keep_once()
        assert zk.exists(node) is None


def test_a_node_that_somebody_deletes_comes_back(target: MiniCluster, path: str, zk: KazooClient) -> None:
    with presence(target, path) as one:
        one.show()
        zk.delete(f"{path}/rs/{one.server}")
        await_true(lambda: zk.exists(f"{path}/rs/{one.server}"))


def test_a_path_that_presents_another_cluster_is_refused_with_both_ids(target: MiniCluster, path: str) -> None:
    with presence(target, path):
        pass
    other = str(uuid4())
    with pytest.raises(UsageError, match=f"presents the cluster {SINK}, and the sink is {other}") as raised:
        presence(target, path, cluster_id=other).__enter__()
    assert path in raised.value.message


def test_a_real_clusters_path_is_neither_used_nor_removed(target: MiniCluster, zk: KazooClient) -> None:
    znode = target.address.znode
    data, _ = zk.get(f"{znode}/hbaseid")
    with pytest.raises(UsageError, match="was not made by walferry receive"):
        presence(target, znode, cluster_id=cluster_id_in(data)).__enter__()
    with pytest.raises(UsageError, match="was not made by walferry receive"):
        remove(target.address, znode)
    assert zk.get(f"{znode}/hbaseid")[0] == data


def test_nothing_is_removed_while_a_process_shows_itself_and_a_path_that_is_gone_is_fine(
    target: MiniCluster, path: str, zk: KazooClient
) -> None:
    with presence(target, path) as one:
        one.show()
        with pytest.raises(TransientError, match=f"{one.server} may still receive"):
            remove(target.address, path)
        assert zk.exists(f"{path}/hbaseid")
    zk.create(f"{path}/of somebody else")
    remove(target.address, path)
    assert zk.get_children(path) == ["of somebody else"]
    zk.delete(f"{path}/of somebody else")
    remove(target.address, path)
    remove(target.address, path)
    assert zk.exists(path) is None


def expire(target: MiniCluster, one: Presence) -> None:
    """End the session of a Presence as ZooKeeper does when a process was suspended for too long."""
    client = one._zookeeper.client
    twin = KazooClient(target.address.zookeeper, client_id=client.client_id)
    twin.start()
    twin.stop()
    twin.close()

"""Where a peer leads, and what is found there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from walferry.errors import UsageError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError, ServerGoneError, ZooKeeperError
from walferry.hbase.peers import PeerConfig
from walferry.replication import sink as sinks
from walferry.replication.sink import Sink, keyed_address, look_at_sink, sinks_of

ADDRESS = ClusterAddress("zk:2181")
SOURCE = ClusterAddress("src:2181", webhdfs="http://src:9870", user="hbase")


@pytest.mark.parametrize(
    ("key", "zookeeper", "znode"),
    [
        ("zk:2181:/hbase", "zk:2181", "/hbase"),
        ("a,b,c:2181:/hbase-secure", "a:2181,b:2181,c:2181", "/hbase-secure"),
        ("a:2181,b:2182:2181:/hbase/two", "a:2181,b:2182", "/hbase/two"),
    ],
)
def test_a_cluster_key_is_an_address_for_the_sources_user(key: str, zookeeper: str, znode: str) -> None:
    found = keyed_address(key, SOURCE)
    assert (found.zookeeper, found.znode, found.user, found.webhdfs) == (zookeeper, znode, "hbase", None)


@pytest.mark.parametrize("key", ["", "zk:2181", "zk:/hbase", "hbase+zk://zk:2181/hbase", "hbase+rpc://m:16000"])
def test_a_key_that_is_none_is_refused_by_its_text(key: str) -> None:
    with pytest.raises(UsageError, match="cannot read the cluster key") as refused:
        keyed_address(key, SOURCE)
    assert refused.value.facts["key"] == key


def raising(error: WalferryError) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> type[HBaseClient]:
    """A cluster that answers as it is told to."""

    class There(HBaseClient):
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(sinks, "open_sink", There)
    monkeypatch.setattr(sinks, "_others", lambda _: ", but there is one below /hbase")
    monkeypatch.setattr(There, "cluster_id", lambda _: "0e1c")
    monkeypatch.setattr(There, "servers", lambda _: ["rs"])
    monkeypatch.setattr(There, "version", lambda _: "2.6.3")
    return There


def test_a_cluster_that_takes_changes_has_no_fault(there: type[HBaseClient]) -> None:
    assert look_at_sink(ADDRESS, "source") == Sink("zk:2181/hbase", "0e1c", 1, version="2.6.3")


@pytest.mark.parametrize(
    ("error", "proved", "silent"),
    [
        (ServerGoneError("no hbaseid"), True, False),
        (ZooKeeperError("no answer"), False, True),
        (AccessDeniedError("this user may not"), False, False),
    ],
    ids=["no HBase", "ZooKeeper is silent", "access denied"],
)
def test_only_what_stops_everybody_is_proved(
    there: type[HBaseClient], monkeypatch: pytest.MonkeyPatch, error: WalferryError, proved: bool, silent: bool
) -> None:
    monkeypatch.setattr(there, "cluster_id", raising(error))
    found = look_at_sink(ADDRESS, "source")
    assert (found.proved, found.silent, "from here" in (found.fault or "")) == (proved, silent, not proved)


def test_where_else_there_is_an_hbase_is_told(there: type[HBaseClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(there, "cluster_id", raising(ServerGoneError("no hbaseid")))
    assert look_at_sink(ADDRESS, "source").fault == (
        "there is no HBase below /hbase of ZooKeeper at zk:2181, but there is one below /hbase: correct the peer's "
        "key, or the `target`"
    )


def test_an_own_cluster_id_and_no_live_server_are_proved(
    there: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = look_at_sink(ADDRESS, "0e1c")
    assert (same.fault or "").startswith("it is the source itself, or a copy of it: both have the cluster id 0e1c")
    monkeypatch.setattr(there, "servers", lambda _: [])
    idle = look_at_sink(ADDRESS, "source")
    assert (idle.fault, same.proved, idle.proved) == ("no region server of it is alive", True, True)


def test_a_master_that_does_not_answer_is_no_fault_since_servers_take_edits_without_it(
    there: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(there, "version", raising(ServerGoneError("there is no master")))
    assert look_at_sink(ADDRESS, "source") == Sink("zk:2181/hbase", "0e1c", 1, master_fault="there is no master")


def test_a_key_that_cannot_be_read_is_the_address_of_a_sink_that_cannot_be_looked_at() -> None:
    peer = PeerConfig.of("p", True, pb.ReplicationPeer(clusterkey="a URI"))
    assert sinks_of([peer], {"p": "cannot read it"}, "source") == {
        "p": Sink("a URI", fault="cannot read it", proved=False)
    }

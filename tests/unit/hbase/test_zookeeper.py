"""Values of znodes, recorded from a real HBase 2.6.3, and what is made of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.protocol.states import KeeperState

from walferry.errors import DamagedInputError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import zookeeper
from walferry.hbase.errors import LoginRefusedError
from walferry.hbase.zookeeper import Server, first_server, parse_znode, unwrap
from walferry.security import Kerberos, Security

WRAPPER = "ff000000146d61737465723a32363030300eaeacad1ec2f39f"
MASTER = WRAPPER + "504255460a160a093132372e302e302e311090cb0118b3f19ae29f34100018ffffffff0f"
META = WRAPPER + "504255460a160a093132372e302e302e3110b38d0218b1959be29f3410001803"


def test_the_masters_znode_names_the_master() -> None:
    found = Server.of(parse_znode(bytes.fromhex(MASTER), pb.Master).master)
    assert found.name == "127.0.0.1,26000,1795233855667"
    assert found.address == "127.0.0.1:26000"


def test_the_meta_znode_names_the_server_of_hbase_meta() -> None:
    found = parse_znode(bytes.fromhex(META), pb.MetaRegionServer)
    assert (found.server.host_name, found.server.port) == ("127.0.0.1", 34483)


def test_a_value_without_the_wrapper_reads_the_same() -> None:
    bare = bytes.fromhex(MASTER.removeprefix(WRAPPER))
    assert unwrap(bytes.fromhex(MASTER)) == bare
    assert parse_znode(bare, pb.Master) == parse_znode(bytes.fromhex(MASTER), pb.Master)


@pytest.mark.parametrize("cut", [1, 4, 5, 20])
def test_a_value_cut_inside_its_wrapper_is_damaged(cut: int) -> None:
    with pytest.raises(DamagedInputError):
        unwrap(bytes.fromhex(MASTER)[:cut])


@pytest.mark.parametrize("value", [b"", b"PBU", b"no message", b"PBUF\x0a\xff"])
def test_a_value_that_holds_no_message_is_damaged(value: bytes) -> None:
    with pytest.raises(DamagedInputError):
        parse_znode(value, pb.Master)


def test_a_server_name_reads_back_as_it_was_written() -> None:
    name = "rs-1.example.org,16020,1700000000000"
    assert Server.parse(name) == Server("rs-1.example.org", 16020, 1700000000000)
    assert Server.parse(name).name == name


@pytest.mark.parametrize("name", ["", "host,1", "host,port,1", "host,1,2,3"])
def test_a_name_that_is_no_servers_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        Server.parse(name)


@pytest.mark.parametrize(
    ("dead", "first"),
    [
        ("h,1,22", "h,1,22"),
        ("rs-1.a-b.org,16020,1700000000000", "rs-1.a-b.org,16020,1700000000000"),
        ("rs-1.a-b.org,16020,17-rs-2.a-b.org,16020,18", "rs-1.a-b.org,16020,17"),
    ],
)
def test_a_claimed_queue_belongs_to_the_server_that_it_began_on(dead: str, first: str) -> None:
    assert first_server(dead) == first


def test_a_client_that_has_given_up_is_replaced_by_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python worker of Spark is used again and again, also after ZooKeeper was away for a while."""
    made: list[Any] = []

    class Kazoo:
        def __init__(self, hosts: str, **_: object) -> None:
            self.client_state = KeeperState.CONNECTED
            self.connected = True
            self.ended: list[str] = []
            made.append(self)

        def start_async(self) -> threading.Event:
            connected = threading.Event()
            connected.set()
            return connected

        def stop(self) -> None:
            self.ended.append("stop")

        def close(self) -> None:
            self.ended.append("close")

    monkeypatch.setattr(zookeeper, "KazooClient", Kazoo)
    ensemble = zookeeper.ZooKeeper("zk:1", "/hbase")
    first = ensemble.client
    for state in (KeeperState.CONNECTING, KeeperState.EXPIRED_SESSION, KeeperState.CONNECTED):
        first.client_state = state  # from which it recovers by itself
        assert ensemble.client is first
    first.client_state = KeeperState.CLOSED
    assert ensemble.client is not first
    assert (first.ended, len(made)) == (["stop", "close"], 2)


def test_a_login_that_fails_right_after_the_connection_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo says that it is connected first, and its thread logs in then."""
    told: list[Callable[[WalferryError], None]] = []

    class Kazoo:
        client_state = KeeperState.CLOSED
        connected = False

        def __init__(self, hosts: str, **options: Any) -> None:
            pass

        def start_async(self) -> threading.Event:
            told[0](LoginRefusedError("the keytab is missing", server="zk:1", principal=None, reason=""))
            connected = threading.Event()
            connected.set()
            return connected

        def stop(self) -> None:
            pass

        close = stop

    def sasl_options(_: Kerberos, refused: Callable[[WalferryError], None]) -> dict[str, object]:
        told.append(refused)
        return {}

    monkeypatch.setattr(zookeeper, "KazooClient", Kazoo)
    monkeypatch.setattr(zookeeper, "sasl_options", sasl_options)
    monkeypatch.setattr(zookeeper, "be_patient", lambda *_: None)
    ensemble = zookeeper.ZooKeeper("zk:1", "/hbase", security=Security(Kerberos("ferry@REALM")))
    for _ in range(2):
        with pytest.raises(LoginRefusedError, match="the keytab is missing"):
            _ = ensemble.client

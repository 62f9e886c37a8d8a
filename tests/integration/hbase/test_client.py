"""What the client says about a real cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from walferry.embedded.cluster import MiniCluster
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import thrift
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import (
    ConnectionFailedError,
    RemoteError,
    ServerGoneError,
    TableNotFoundError,
    ZooKeeperError,
)
from walferry.hbase.identity import issued_token
from walferry.hbase.mutate import Cell
from walferry.hbase.rights import Right
from walferry.security import AuthenticationError

pytestmark = pytest.mark.cluster


def test_a_cluster_names_itself_its_master_and_its_servers(client: HBaseClient) -> None:
    assert client.version().startswith("2.6.3")
    assert str(client.cluster_uuid()) == client.cluster_id()
    assert client.master().address not in {server.address for server in client.servers()}
    assert len(client.servers()) == 2
    assert client.peers_may_change() is True
    assert client.lacking_rights([Right("ADMIN"), Right("READ", "any")]) is None, "it checks no permissions"


def test_a_cluster_without_tokens_for_workers_is_told_what_to_add(client: HBaseClient) -> None:
    assert client.who_am_i() is None
    with pytest.raises(AuthenticationError, match="gives no tokens") as raised:
        issued_token(client)
    for name in ("org.apache.hadoop.hbase.security.token.TokenProvider", "hbase.coprocessor.region.classes"):
        assert name in raised.value.message


def test_a_method_that_the_server_does_not_know_is_refused_at_once(client: HBaseClient) -> None:
    request = pb.IsReplicationPeerModificationEnabledRequest()
    with pytest.raises(RemoteError, match="UnsupportedOperationException: OfAnotherVersion"):
        client.master_call("OfAnotherVersion", request, pb.IsReplicationPeerModificationEnabledResponse)


def test_a_created_table_is_described_as_it_was_asked_for(client: HBaseClient, make_table: Callable[..., str]) -> None:
    name = make_table({"f": {"VERSIONS": "5", "TTL": "100"}, "g": {"MIN_VERSIONS": "1"}}, [b"h", b"\xff\x00"])
    table = client.describe(name)
    assert table.name == name
    assert (table.families["f"].max_versions, table.families["f"].ttl_ms) == (5, 100_000)
    assert (table.families["g"].min_versions, table.families["g"].ttl_ms) == (1, None)
    assert client.table_enabled(name)
    assert name in client.tables()
    assert name in client.tables("default")
    assert "hbase:meta" not in client.tables()
    assert "hbase:meta" in client.tables(system=True)


def test_regions_cover_all_rows_in_order_and_name_their_servers(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    name = make_table(split_keys=[b"h", b"p\x00\xff"])
    regions = client.regions(name)
    assert [(region.start, region.end) for region in regions] == [
        (b"", b"h"),
        (b"h", b"p\x00\xff"),
        (b"p\x00\xff", b""),
    ]
    assert {region.server for region in regions} <= set(client.servers())
    assert all(region.name.endswith(f".{region.encoded}.".encode()) for region in regions)
    assert [client.locate(name, row).start for row in (b"a", b"h", b"p", b"p\x00\xff", b"z")] == [
        b"",
        b"h",
        b"h",
        b"p\x00\xff",
        b"p\x00\xff",
    ]


def test_tables_whose_names_begin_alike_keep_their_regions_apart(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    name = make_table()
    longer = f"{name}-2"
    client.create_table(longer, {"f": {}}, [b"m"])
    assert {region.table for region in client.regions(name)} == {name}
    assert len(client.regions(name)) == 1
    assert len(client.regions(longer)) == 2
    client.disable_table(longer)
    client.delete_table(longer)


def test_hbase_meta_is_a_table_too(client: HBaseClient) -> None:
    (region,) = client.regions("hbase:meta")
    assert region.encoded == "1588230740"
    assert region.server in client.servers()


def test_a_missing_table_is_not_found(client: HBaseClient) -> None:
    for ask in (client.describe, client.regions, client.table_enabled, client.disable_table):
        with pytest.raises(TableNotFoundError, match="no_such_table"):
            ask("no_such_table")


def test_a_method_that_the_server_lacks_is_final(client: HBaseClient) -> None:
    with pytest.raises(RemoteError) as raised:
        client.master_call("NoSuchMethod", pb.GetClusterStatusRequest(), pb.GetClusterStatusResponse)
    assert raised.value.exception_class == "org.apache.hadoop.hbase.DoNotRetryIOException"


def test_a_port_of_another_protocol_is_told_apart(client: HBaseClient, source: MiniCluster) -> None:
    webhdfs = str(source.address.webhdfs).removeprefix("http://")
    with pytest.raises(ConnectionFailedError, match="RPC port of an HBase server"):
        client.pool.call(
            webhdfs, "MasterService", "X", pb.GetClusterStatusRequest(), pb.GetClusterStatusResponse, timeout_s=5
        )


def test_a_wrong_zookeeper_is_one_clear_error() -> None:
    with HBaseClient(ClusterAddress("127.0.0.1:1")) as client, pytest.raises(ZooKeeperError, match=r"127\.0\.0\.1:1"):
        client.version()


def test_a_wrong_znode_is_named(source: MiniCluster) -> None:
    address = ClusterAddress(source.address.zookeeper, znode="/elsewhere")
    with HBaseClient(address) as client, pytest.raises(ServerGoneError, match="/elsewhere/meta-region-server"):
        client.locate("t", b"")


def test_threads_share_a_client(client: HBaseClient, make_table: Callable[..., str]) -> None:
    name = make_table()
    found: list[int] = []

    def work(thread: int) -> None:
        for i in range(20):
            client.put(name, [Cell(b"%d-%d" % (thread, i), b"f", b"q", b"v")])
        found.append(sum(len(block) for block in client.scan(name, b"%d-" % thread, b"%d." % thread)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(set(found)) == 1


def test_another_reader_sees_what_the_client_wrote(
    client: HBaseClient, source: MiniCluster, make_table: Callable[..., str]
) -> None:
    name = make_table()
    client.put(name, [Cell(b"r\x00\xff", b"f", b"", b"v", 7)])
    connection = thrift.connect(source.address)
    assert list(connection.table(name).scan(include_timestamp=True)) == [(b"r\x00\xff", {b"f:": (b"v", 7)})]
    connection.close()

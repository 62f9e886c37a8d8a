"""walferry's client at a secured cluster: RPC, ZooKeeper and Thrift, as a principal with a keytab or a ticket cache."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from security.each import EACH
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kdc import Kdc
from walferry.hbase import Cell, ClusterAddress, HBaseClient
from walferry.hbase.thrift import connect
from walferry.migration.planning.identity import identities
from walferry.security import OPEN, AuthenticationError, Kerberos, Security

pytestmark = pytest.mark.cluster

VALUE = b"x" * 3_000_000


def identity(cluster: MiniCluster, **changed: Any) -> ClusterAddress:
    kerberos = cluster.address.security.kerberos
    assert kerberos is not None
    return replace(cluster.address, security=Security(replace(kerberos, **changed)))


@EACH
def test_rows_are_written_by_rpc_and_read_back_by_thrift(secured: MiniCluster) -> None:
    with HBaseClient(secured.address) as client, closing(connect(secured.address)) as thrift:
        client.create_table("kept", {"d": {"VERSIONS": "1"}})
        try:
            assert client.who_am_i() == "ferry"
            client.put("kept", [Cell(b"row", b"d", b"q", VALUE)])
            assert "kept" in client.tables()
            assert thrift.table("kept").row(b"row") == {b"d:q": VALUE}
        finally:
            client.disable_table("kept")
            client.delete_table("kept")


@EACH
def test_the_plan_tells_who_it_is_and_a_login_that_fails_names_its_side(secured: MiniCluster) -> None:
    with HBaseClient(secured.address) as client:
        (found,) = identities({"source": client})
    assert (found.principal, found.hbase_user, found.hdfs_user) == ("ferry@EXAMPLE.COM", "ferry", "ferry")
    assert found.protection == secured.address.security.kerberos.qop  # type: ignore[union-attr]
    assert str(found).startswith("source: ferry@EXAMPLE.COM: the user ferry of HBase and ferry of HDFS; logged in")
    with (
        HBaseClient(identity(secured, service="nobody")) as client,
        pytest.raises(AuthenticationError, match="target: Kerberos does not let ferry@EXAMPLE"),
    ):
        list(identities({"target": client}))


def test_a_ticket_cache_is_enough_and_the_protection_need_not_be_named(secured: MiniCluster, kdc: Kdc) -> None:
    kerberos = Kerberos(ccache=f"FILE:{kdc.ticket('ferry')}", realms=(("localhost", kdc.realm),))
    address = replace(secured.address, security=Security(kerberos))
    with HBaseClient(address) as client, closing(connect(address)) as thrift:
        assert client.tables() == [name.decode() for name in thrift.tables()]


def test_tickets_of_seconds_are_made_again_from_the_keytab(secured: MiniCluster, kdc: Kdc) -> None:
    brief = kdc.principal("brief", max_life=timedelta(seconds=5))
    address = identity(secured, principal=brief, keytab=str(kdc.keytab(["brief"])))
    end = time.monotonic() + 12
    with HBaseClient(address) as client:
        while time.monotonic() < end:
            client.pool.close()
            assert client.version()
            client.zookeeper.close()
            assert client.cluster_id()
            time.sleep(0.2)


def refused(address: ClusterAddress) -> str:
    with HBaseClient(address) as client, pytest.raises(AuthenticationError) as raised:
        client.tables()
    return raised.value.message


@EACH
def test_who_names_no_principal_is_told_what_to_add(secured: MiniCluster) -> None:
    assert "without Kerberos; add `security`" in refused(replace(secured.address, security=OPEN))


@EACH
def test_a_ticket_for_another_service_is_refused_by_the_server(secured: MiniCluster) -> None:
    said = refused(identity(secured, service="zookeeper"))
    assert "does not let ferry@EXAMPLE.COM log in" in said
    assert secured.address.zookeeper not in said


def test_a_protection_that_the_server_does_not_offer_is_named(secured: MiniCluster) -> None:
    assert "it offers the protection auth, not auth-conf; set `qop`" in refused(identity(secured, qop="auth-conf"))


def test_a_zookeeper_login_that_fails_is_told_with_its_reason(secured: MiniCluster) -> None:
    for wrong, said in (("nobody", "the KDC knows no nobody/localhost"), ("HTTP", "ZooKeeper at localhost")):
        with HBaseClient(identity(secured, zookeeper_service=wrong)) as client:
            for _ in range(2):
                with pytest.raises(AuthenticationError) as raised:
                    client.cluster_id()
                assert said in raised.value.message


def test_thrift_tells_why_it_lets_nobody_in(secured: MiniCluster) -> None:
    with pytest.raises(AuthenticationError, match="the KDC knows no nobody/localhost"):
        connect(identity(secured, service="nobody"))
    with pytest.raises(AuthenticationError, match="Thrift"):
        connect(identity(secured, service="zookeeper"))


def test_a_znode_that_only_hbase_may_write_can_be_written_by_a_superuser(secured: MiniCluster) -> None:
    with HBaseClient(secured.address) as client:
        client.zookeeper.create({"replication/walferry-test": b"x"})
        assert client.zookeeper.read("replication/walferry-test") == b"x"
        client.zookeeper.delete("replication/walferry-test")


def test_a_kdc_that_is_away_harms_no_client_with_tickets(secured: MiniCluster, kdc: Kdc, tmp_path: Path) -> None:
    with HBaseClient(secured.address) as client:
        client.tables()
        kdc.stop()
        try:
            client.pool.close()
            client.zookeeper.close()
            client.tables()
        finally:
            kdc.boot()

"""The keys `security` and `tls` of a spec, and a connection's extras for them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from walferry.errors import UsageError
from walferry.hbase.authentication import Simple, login, purpose_of
from walferry.run.given_spec import cluster_from_connection, parse_keys
from walferry.run.spec import Cluster
from walferry.security import OPEN, Kerberos, Security, Tls

CLUSTER = {"webhdfs": "http://nn:9870", "rootdir": "hdfs://nn:8020/hbase"}
PEM_KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg"
KEYTAB_CONTENT = "BQIAAABKAAEACEVYQU1QTEUuQ09NAAVmZXJyeQ=="


@pytest.fixture(autouse=True)
def _no_ticket_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRB5CCNAME", raising=False)


def cluster(**security: Any) -> Cluster:
    return parse_keys(Cluster, {"zookeeper": "zk:2181", **CLUSTER, "security": security}, origin="spec")


def test_a_principal_and_a_keytab_are_enough_and_the_user_is_the_principals() -> None:
    address = cluster(principal="ferry@EXAMPLE.COM", keytab="/etc/ferry.keytab").address()
    assert address.security == Security(Kerberos("ferry@EXAMPLE.COM", "/etc/ferry.keytab"))
    assert address.user == "ferry"


def test_without_keytab_and_cache_the_process_ticket_cache_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", "FILE:/run/ferry")
    security = cluster(principal="ferry@EXAMPLE.COM").security
    assert security is not None
    assert security.model_dump()["ccache"] == "FILE:/run/ferry"
    given = cluster(principal="ferry@EXAMPLE.COM", keytab="/etc/ferry.keytab").security
    assert given is not None
    assert given.ccache is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"principal": "ferry@A", "keytab": KEYTAB_CONTENT}, "security.keytab: give the whole path of a keytab, never"),
        ({"principal": "ferry", "keytab": "/k"}, "security.principal: give name@REALM"),
        ({"principal": "ferry@A"}, "give keytab or ccache, or set KRB5CCNAME"),
        ({"principal": "ferry@A", "keytab": "/k", "ccache": "/c"}, "give keytab or ccache, not both"),
        ({"keytab": "/k"}, "principal: say whose key"),
        ({"ccache": "/c", "service": "none"}, "principal: an HBase that asks for no login is told the name"),
        ({"ccache": "/c", "qop": "none"}, "security.qop: "),
        ({"ccache": "/c", "service": "hbase/a/b"}, "security.service: give hbase, or hbase/_HOST@REALM"),
        ({"ccache": "/c", "realms": "A"}, "security.realms: give a mapping"),
        ({"ccache": "/c", "keytap": "/k"}, "unknown key; did you mean keytab?"),
    ],
)
def test_a_wrong_key_is_named_and_no_value_is_quoted(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        cluster(**wrong)
    assert said in raised.value.message
    assert KEYTAB_CONTENT not in raised.value.message


def test_where_only_hdfs_asks_for_a_login_hbase_is_told_the_principals_first_part() -> None:
    address = cluster(principal="ferry@EXAMPLE.COM", keytab="/k", service="none").address()
    assert (address.user, address.hbase_kerberos, purpose_of(address)) == ("ferry", None, None)
    assert address.security.kerberos == Kerberos("ferry@EXAMPLE.COM", "/k", service=None)
    assert isinstance(login(address), Simple)


def test_a_user_beside_a_principal_is_refused() -> None:
    keys = {"zookeeper": "zk:2181", **CLUSTER, "user": "ann", "security": {"ccache": "/c"}}
    with pytest.raises(UsageError, match="leave `user` out"):
        parse_keys(Cluster, keys, origin="spec")


@pytest.mark.parametrize(
    "extra",
    [
        {"principal": "ferry@A", "keytab": "/k", "realms": '{"b": "B"}', "qop": "privacy", "zookeeper_service": "none"},
        {
            "security": {
                "principal": "ferry@A", "keytab": "/k", "realms": {"b": "B"}, "qop": "auth-conf",
                "zookeeper_service": "none",
            }
        },
    ],
)  # fmt: skip
def test_a_connection_has_the_keys_as_fields_of_its_form_or_as_in_a_spec(extra: dict[str, Any]) -> None:
    found = cluster_from_connection("ours", "zk", None, CLUSTER | extra, login="ann")
    assert found.address().security.kerberos == Kerberos(
        "ferry@A", "/k", qop="auth-conf", zookeeper_service=None, realms=(("b", "B"),)
    )
    assert found.user is None


@pytest.mark.parametrize(
    "extra",
    [
        {"tls_ca": "/ca.pem", "tls_certificate": "/me.pem", "tls_key": "/me.key", "tls_rpc": "true"},
        {"tls": {"ca": "/ca.pem", "certificate": "/me.pem", "key": "/me.key", "rpc": True}},
        {"tls": '{"ca": "/ca.pem", "certificate": "/me.pem", "key": "/me.key", "rpc": true}'},
    ],
)
def test_a_connection_has_the_keys_of_tls_as_fields_or_as_in_a_spec(extra: dict[str, Any]) -> None:
    found = cluster_from_connection("ours", "zk", None, CLUSTER | extra)
    security = Security(tls=Tls("/ca.pem", "/me.pem", "/me.key", rpc=True))
    assert pickle.loads(pickle.dumps(found.address())).security == security
    assert Cluster.model_validate(found.model_dump()) == found
    assert cluster_from_connection("ours", "zk", None, CLUSTER).address().security == OPEN


@pytest.mark.parametrize("name", ["tls", "security"])
@pytest.mark.parametrize("given", [True, "yes", "[1]", ["rpc"]])
def test_what_a_connection_says_of_both_is_never_left_out(name: str, given: Any) -> None:
    with pytest.raises(UsageError, match=f"connection ours: {name} must be a mapping, as in a spec"):
        cluster_from_connection("ours", "zk", None, {**CLUSTER, name: given})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ca": "ca.pem"}, "tls.ca: give the whole path of a PEM file, never its content"),
        ({"certificate": "/me.pem", "key": PEM_KEY}, "tls.key: give the whole path of a PEM file, never its content"),
        ({"certificate": "/me.pem"}, "tls: give certificate and key together"),
        ({"key": "/me.key"}, "tls: give certificate and key together"),
        ({"verify": False}, "tls.verify"),
        ({"ca": "/ca.pem"}, "no service uses it: set its `rpc` or `zookeeper`, or give `webhdfs` a https URL"),
    ],
)
def test_a_wrong_key_of_tls_is_named_and_no_value_is_quoted(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_keys(Cluster, {"zookeeper": "zk:2181", **CLUSTER, "tls": wrong}, origin="spec")
    assert said in raised.value.message
    assert "MIIE" not in raised.value.message

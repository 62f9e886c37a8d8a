"""The keys `security` of a spec, and a connection's extras for them."""

from __future__ import annotations

from typing import Any

import pytest

from walferry.errors import UsageError
from walferry.run.given_spec import cluster_from_connection, parse_keys
from walferry.run.spec import Cluster
from walferry.security import Kerberos

CLUSTER = {"webhdfs": "http://nn:9870", "rootdir": "hdfs://nn:8020/hbase"}
KEYTAB_CONTENT = "BQIAAABKAAEACEVYQU1QTEUuQ09NAAVmZXJyeQ=="


@pytest.fixture(autouse=True)
def _no_ticket_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRB5CCNAME", raising=False)


def cluster(**security: Any) -> Cluster:
    return parse_keys(Cluster, {"zookeeper": "zk:2181", **CLUSTER, "security": security}, origin="spec")


def test_a_principal_and_a_keytab_are_enough_and_the_user_is_the_principals() -> None:
    address = cluster(principal="ferry@EXAMPLE.COM", keytab="/etc/ferry.keytab").address()
    assert address.security == Kerberos("ferry@EXAMPLE.COM", "/etc/ferry.keytab")
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
    assert found.address().security == Kerberos(
        "ferry@A", "/k", qop="auth-conf", zookeeper_service=None, realms=(("b", "B"),)
    )
    assert found.user is None

"""Why a sink takes no changes, as far as its answers tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.hbase.errors import (
    AccessDeniedError,
    RequestTimeoutError,
    ServerGoneError,
    TableNotFoundError,
    ZooKeeperError,
)
from walferry.replication import causes
from walferry.replication import sink as sinks
from walferry.replication.causes import look_at_sink, refusing_tables

ADDRESS = ClusterAddress("zk:2181")
DENIED = AccessDeniedError("this user may not")


def raising(error: WalferryError) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> type[HBaseClient]:
    """A cluster that answers as it is told to."""

    class Sink(HBaseClient):
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(causes, "open_sink", Sink)
    monkeypatch.setattr(Sink, "cluster_id", lambda _: "0e1c")
    monkeypatch.setattr(Sink, "servers", lambda _: [])
    monkeypatch.setattr(Sink, "table_enabled", lambda *_: True)
    monkeypatch.setattr(sinks, "exceeded_quotas", lambda _: {})
    return Sink


@pytest.mark.parametrize(
    ("error", "proved"),
    [(ServerGoneError("no hbaseid"), True), (ZooKeeperError("no answer"), False), (DENIED, False)],
    ids=["no HBase", "ZooKeeper is silent", "access denied"],
)
def test_only_what_stops_everybody_is_proved(
    sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch, error: WalferryError, proved: bool
) -> None:
    monkeypatch.setattr(sink, "cluster_id", raising(error))
    found = look_at_sink(ADDRESS, "source")
    assert (found.proved, "from here" in (found.fault or "")) == (proved, not proved)


@pytest.mark.parametrize("source_id", ["0e1c", "another"], ids=["own cluster id", "no live servers"])
def test_an_own_cluster_id_and_no_live_server_are_proved(sink: type[HBaseClient], source_id: str) -> None:
    found = look_at_sink(ADDRESS, source_id)
    assert found.fault is not None
    assert found.proved


def test_quotas_that_may_not_be_asked_for_do_not_hide_a_missing_table(
    sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "exceeded_quotas", raising(DENIED))
    monkeypatch.setattr(sink, "describe", raising(TableNotFoundError("gone")))
    assert refusing_tables(ADDRESS, {"t": frozenset({"d"})}) == {
        "t": "table t is missing at the sink: create it there, with the family d"
    }


def test_a_table_that_cannot_be_asked_for_does_not_hide_another(
    sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_: HBaseClient, table: str) -> TableDescriptor:
        raise DENIED if table == "denied" else TableNotFoundError("gone")

    monkeypatch.setattr(sink, "describe", describe)
    found = refusing_tables(ADDRESS, {"denied": frozenset({"d"}), "gone": frozenset({"d"})})
    assert found["denied"] == "perhaps the sink refuses table denied: it cannot be asked from here: this user may not"
    assert found["gone"].startswith("table gone is missing")


def test_a_master_that_does_not_answer_is_waited_for_once(
    sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def describe(_: HBaseClient, table: str) -> TableDescriptor:
        asked.append(table)
        raise RequestTimeoutError("no answer")

    monkeypatch.setattr(sink, "describe", describe)
    found = refusing_tables(ADDRESS, dict.fromkeys(("a", "b", "c"), frozenset({"d"})))
    assert (asked, list(found)) == (["a"], ["a", "b", "c"])


def test_a_family_that_is_not_utf_8_is_compared_as_it_is_shown(
    sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table("t", {"d": {}})
    table.schema.column_families.add(name=b"\xff")
    monkeypatch.setattr(sink, "describe", lambda *_: table)
    assert refusing_tables(ADDRESS, {"t": frozenset({"d", r"\xff"})}) == {}
    (why,) = refusing_tables(ADDRESS, {"t": frozenset({r"\xfe"})}).values()
    assert why == r"table t of the sink lacks the family \xfe: add it there"

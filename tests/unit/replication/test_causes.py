"""Why a sink refuses edits of a table, as far as its answers tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.hbase.errors import AccessDeniedError, RequestTimeoutError, TableNotFoundError
from walferry.replication import sink_tables
from walferry.replication.causes import refusing_tables

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

    monkeypatch.setattr(sink_tables, "open_sink", Sink)
    monkeypatch.setattr(Sink, "describe", lambda _, table: new_table(table, {"d": {}}))
    monkeypatch.setattr(Sink, "table_enabled", lambda *_: True)
    monkeypatch.setattr(sink_tables, "exceeded_quotas", lambda _: {})
    return Sink


def test_quotas_that_may_not_be_asked_for_do_not_hide_a_missing_table(
    sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_tables, "exceeded_quotas", raising(DENIED))
    monkeypatch.setattr(sink, "describe", raising(TableNotFoundError("gone")))
    assert refusing_tables(ADDRESS, {"t": frozenset({"d"})}) == {
        "t": ["table t is missing at the sink: create it there, with the family d"]
    }


def test_a_table_that_cannot_be_asked_for_does_not_hide_another(
    sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_: HBaseClient, table: str) -> TableDescriptor:
        raise DENIED if table == "denied" else TableNotFoundError("gone")

    monkeypatch.setattr(sink, "describe", describe)
    found = refusing_tables(ADDRESS, {"denied": frozenset({"d"}), "gone": frozenset({"d"})})
    assert found["denied"] == ["perhaps the sink refuses table denied: it cannot be asked from here: this user may not"]
    assert found["gone"][0].startswith("table gone is missing")


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
    assert why == [r"table t lacks the family \xfe at the sink: add it there"]


def test_all_that_is_wrong_with_a_table_is_told(sink: type[HBaseClient], monkeypatch: pytest.MonkeyPatch) -> None:
    closed = new_table("s:t", {"d": {}}).with_attribute("READONLY", "true")
    monkeypatch.setattr(sink, "describe", lambda *_: closed)
    monkeypatch.setattr(sink, "table_enabled", lambda *_: False)
    monkeypatch.setattr(sink_tables, "exceeded_quotas", lambda _: {"namespace s": "NO_INSERTS"})
    assert refusing_tables(ADDRESS, {"s:t": frozenset({"d", "f", "e"})})["s:t"] == [
        "table s:t is disabled at the sink: enable it",
        "table s:t lacks the families e, f at the sink: add them there",
        "table s:t is READONLY at the sink: alter 's:t', READONLY => 'false'",
        "perhaps table s:t takes no writes at the sink: the namespace s is over its quota of space (NO_INSERTS); "
        "raise it",
    ]

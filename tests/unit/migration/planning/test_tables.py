"""What a plan finds of a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import new_table
from walferry.migration.planning.tables import source_findings
from walferry.run.spec import TablePair


def test_classes_that_a_master_may_not_look_for_are_named() -> None:
    empty = SimpleNamespace(table_enabled=lambda table: True, table_exists=lambda table: False)
    client = cast(HBaseClient, empty)
    table = new_table("t", {"f": {"hbase.hstore.engine.class": "org.example.Engine", "VERSIONS": "1"}})
    table = table.with_attribute("hbase.hstore.defaultengine.compactionpolicy.class", "org.example.Policy")
    (finding,) = source_findings(client, TablePair(source="t", target="t"), table)
    assert (finding.level, finding.subject) == ("warn", "t")
    assert finding.message.startswith("names org.example.Engine, org.example.Policy: without these classes")


@pytest.mark.parametrize(("durability", "what"), [("SKIP_WAL", "are not in the log"), ("ASYNC_WAL", "may be lost")])
def test_a_durability_that_acknowledges_too_early_is_told(durability: str, what: str) -> None:
    empty = SimpleNamespace(table_enabled=lambda table: True, table_exists=lambda table: False)
    client = cast(HBaseClient, empty)
    pair = TablePair(source="t", target="t")
    table = new_table("t", {"f": {}})
    assert list(source_findings(client, pair, table)) == []
    (finding,) = source_findings(client, pair, table.with_attribute("DURABILITY", durability))
    assert (finding.level, finding.subject) == ("warn", "t")
    assert what in finding.message

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.versions import release_of
from walferry.migration.planning.tables import fit_findings
from walferry.migration.schema import Fit, as_cloned, fit
from walferry.run.spec import TablePair


def target(*refused: str, version: str = "2.6.3") -> HBaseClient:
    """A cluster that refuses tables with one of these attributes."""

    def fault(table: TableDescriptor) -> str | None:
        found = [name for name in refused if name in table.attributes]
        return f"no {found[0]}" if found else None

    return cast(HBaseClient, SimpleNamespace(schema_fault=fault, release=release_of(version)))


def table(*attributes: str) -> TableDescriptor:
    made = new_table("t", {"f": {}})
    for name in attributes:
        made = made.with_attribute(name, "x")
    return made


def test_what_the_target_takes_is_left_as_it_is() -> None:
    assert fit(target(), table("SPLIT_POLICY", "coprocessor$1")) == Fit((), "", refused=False)


def test_what_the_user_may_not_ask_stays_unknown() -> None:
    def fault(_: TableDescriptor) -> str | None:
        raise AccessDeniedError("no CREATE on hbase")

    asked = cast(HBaseClient, SimpleNamespace(schema_fault=fault, release=release_of("2.6.3")))
    found = fit(asked, table())
    assert found == Fit((), "", refused=False, asked=False)
    (told,) = fit_findings(TablePair(source="t", target="t"), found)
    assert (told.level, "may not ask" in told.message) == ("warn", True)


def test_only_the_tuning_that_the_target_refuses_is_left_out() -> None:
    source = table("SPLIT_POLICY", "MAX_FILESIZE", "OWNER")
    assert fit(target("MAX_FILESIZE"), source) == Fit(("MAX_FILESIZE",), "no MAX_FILESIZE", refused=False)
    both = fit(target("MAX_FILESIZE", "SPLIT_POLICY"), source)
    assert both == Fit(("SPLIT_POLICY", "MAX_FILESIZE"), "no MAX_FILESIZE", refused=False)
    assert TableDescriptor(as_cloned(source.schema, both.left_out)).attributes == {"OWNER": "x"}
    assert len(source.attributes) == 3


def test_whatever_a_reader_or_writer_would_miss_is_refused() -> None:
    assert fit(target("coprocessor$1"), table("coprocessor$1")) == Fit((), "no coprocessor$1", refused=True)
    assert fit(target("coprocessor$1"), table("SPLIT_POLICY", "coprocessor$1")).refused


@pytest.mark.parametrize(
    ("attribute", "value", "version", "refused"),
    [
        ("DATA_BLOCK_ENCODING", "prefix_tree", "1.7.2", False),
        ("DATA_BLOCK_ENCODING", "prefix_tree", "2.0.0", True),
        ("DATA_BLOCK_ENCODING", "prefix_tree", "2.6.3", True),
        ("INDEX_BLOCK_ENCODING", "PREFIX_TREE", "2.5.10", True),
        ("INDEX_BLOCK_ENCODING", "PREFIX_TREE", "2.6.3", False),
        ("BLOOMFILTER", "ROWPREFIX_FIXED_LENGTH", "1.7.2", True),
        ("BLOOMFILTER", "ROWPREFIX_FIXED_LENGTH", "2.2.3", False),
        ("BLOOMFILTER", "ROW", "1.7.2", False),
    ],
)
def test_what_only_some_versions_can_read_is_refused_though_no_master_looks(
    attribute: str, value: str, version: str, refused: bool
) -> None:
    found = fit(target(version=version), new_table("t", {"f": {attribute: value}}))
    assert found.refused == refused
    assert ("family f has" in found.reason) == refused


def test_versions_are_stated_for_masters_that_cannot_do_without() -> None:
    source = new_table("t", {"f": {"TTL": "9"}, "g": {"VERSIONS": "3"}})
    cloned = TableDescriptor(as_cloned(source.schema))
    assert {name: dict(family.attributes) for name, family in cloned.families.items()} == {
        "f": {"TTL": "9", "VERSIONS": "1"},
        "g": {"VERSIONS": "3"},
    }
    assert cloned.families["f"].effective == source.families["f"].effective

"""Which tables never have exact images."""

from __future__ import annotations

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.streams.image.proof import IN_MEMORY_COMPACTION, in_memory_of, may_be_exact


def table_of(
    family: dict[str, str], configuration: dict[str, str], table: dict[str, str], table_configuration: dict[str, str]
) -> TableDescriptor:
    found = new_table("t", {"f": family})
    for name, value in table.items():
        found = found.with_attribute(name, value)
    schema = found.schema
    for into, given in ((schema.column_families[0], configuration), (schema, table_configuration)):
        into.configuration.extend(pb.NameStringPair(name=name, value=value) for name, value in given.items())
    return TableDescriptor(schema)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("policy", ["EAGER", "adaptive", "BASIC", "NONE"])
def test_a_compaction_in_memory_counts_wherever_it_is_set(place: int, policy: str) -> None:
    given: list[dict[str, str]] = [{}, {}, {}, {}]
    given[place] = {"IN_MEMORY_COMPACTION" if place == 0 else IN_MEMORY_COMPACTION: policy}
    assert may_be_exact(table_of(*given)) is (policy in ("BASIC", "NONE"))
    given[0]["IN_MEMORY_COMPACTION"] = "NONE"
    assert may_be_exact(table_of(*given))


def test_the_default_of_the_site_counts_for_families_without_their_own() -> None:
    site = in_memory_of([{}, {IN_MEMORY_COMPACTION: "BASIC"}, {IN_MEMORY_COMPACTION: "EAGER"}])
    assert site == "EAGER"
    assert in_memory_of([]) == "NONE"
    assert not may_be_exact(table_of({}, {}, {}, {}), site)
    assert may_be_exact(table_of({"IN_MEMORY_COMPACTION": "NONE"}, {}, {}, {}), site)


@pytest.mark.parametrize("attribute", [{"TTL": "100"}, {"NEW_VERSION_BEHAVIOR": "true"}])
def test_tables_whose_cells_vanish_or_hide_by_arrival_are_never_exact(attribute: dict[str, str]) -> None:
    assert not may_be_exact(table_of(attribute, {}, {}, {}))

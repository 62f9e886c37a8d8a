"""Which changes of store files may change what a row with delete markers shows."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import TableDescriptor
from walferry.migration.sides import store_files as module
from walferry.migration.sides.fragile_rows import NONE, RowSpan, RowSpans
from walferry.migration.sides.store_files import Changed, RegionFiles, Stores, stood_still, store_files

LOW = (b"", b"m")
MARKED = RowSpans((RowSpan(b"k", b"k\0", marked=True),))
BY_VERSION = RowSpans((RowSpan(b"k", b"k\0", marked=True, by_version=True),))


def table(*, of_table: dict[str, str] | None = None, of_family: dict[str, str] | None = None) -> TableDescriptor:
    schema = pb.TableSchema(table_name=pb.TableName(namespace=b"default", qualifier=b"t"))
    for name, value in (of_table or {}).items():
        schema.attributes.add(first=name.encode(), second=value.encode())
    family = schema.column_families.add(name=b"f")
    for name, value in (of_family or {}).items():
        family.attributes.add(first=name.encode(), second=value.encode())
    return TableDescriptor(schema)


TABLE = table()


def low(**stores: str) -> RegionFiles:
    """A region whose stores have these files."""
    return RegionFiles(LOW, "low", {family: frozenset(names.split()) for family, names in stores.items()})


UNKNOWN = RegionFiles(LOW, "low", None)


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        (low(f="1 2"), low(f="1 2"), "none"),
        (low(f="1 2"), low(f="1 2 3"), "some"),
        (low(f="1 2 3"), low(f="3 4"), "some"),
        (low(f="1 2"), low(f="3"), "all"),
        (low(f="1"), low(f="2 3"), "all"),
        (low(f="1 2", g="5"), low(f="1 2", g="6"), "all"),
        (low(f="1", g="5"), low(f="1 2", g="5"), "some"),
        (low(f=""), low(f="1"), "all"),
        (low(f="1"), low(f="1", g=""), "all"),
        (low(f="1"), UNKNOWN, "all"),
        (UNKNOWN, low(f="1"), "all"),
        (RegionFiles(LOW, "parent", {"f": frozenset("1")}), low(f="1"), "all"),
    ],
    ids=[
        "nothing", "a flush", "a compaction of some", "of all", "of all, and a flush", "of all of one store",
        "a flush of one store", "a flush, and perhaps a compaction of it", "a new family", "it is being moved",
        "it was being moved", "a split",
    ],
)  # fmt: skip
def test_a_store_was_compacted_as_a_whole_only_if_no_file_of_before_is_left(
    before: RegionFiles, now: RegionFiles, changed: str
) -> None:
    known = Stores.among([before], MARKED)
    assert now.changed_since(known) == changed
    assert now.changed_since(Stores.from_json(known.as_json())) == changed
    between = Changed.between(known, [now])
    assert between.may_show(*MARKED) == (changed == "all")
    assert between.may_show(*BY_VERSION) == (changed != "none")
    assert not between.may_show(RowSpan(b"k", b"k\0", due_ms=1))
    assert not between.may_show(RowSpan(b"n", b"n\0", marked=True, by_version=True)), "it is in another region"


NAMES = st.frozensets(st.sampled_from("abcdef"))


@given(st.lists(st.sampled_from(["flush", "some", "all"]), max_size=8), st.integers(1, 3), st.data())
def test_whatever_happened_a_compaction_of_all_files_is_noticed(
    events: list[str], first: int, data: st.DataObject
) -> None:
    names = iter(range(100))
    store = {next(names) for _ in range(first)}
    before = low(f=" ".join(map(str, store)))
    for event in events:
        taken: set[int] = set()
        if event == "all":
            taken = set(store)
        elif event == "some":
            taken = data.draw(st.sets(st.sampled_from(sorted(store)), max_size=len(store) - 1))
        store = store - taken | ({next(names)} if event == "flush" or taken else set())
    change = low(f=" ".join(map(str, store))).changed_since(Stores.among([before], MARKED))
    assert change == "all" or "all" not in events


@given(st.none() | st.dictionaries(st.sampled_from(["f", "g"]), NAMES))
def test_what_the_ledger_keeps_of_a_region_is_read_back(stores: dict[str, frozenset[str]] | None) -> None:
    region = RegionFiles((b"\0a", b""), "r", stores)
    assert RegionFiles.from_json(region.as_json()) == region


def test_a_compaction_between_what_is_due_and_the_reading_is_no_standstill() -> None:
    """Hole: the files were asked for twice before the rows were read, and only the second answer counted."""
    assert stood_still([[low(f="1")], [low(f="1")]], [low(f="1")], MARKED)
    assert not stood_still([[low(f="0")], [low(f="1")]], [low(f="1")], MARKED)
    assert stood_still([[low(f="1")], [low(f="1 2")]], [low(f="2 1 3")], MARKED)
    assert not stood_still([[low(f="1")], [low(f="1 2")]], [low(f="1 2")], BY_VERSION)
    assert not stood_still([[low(f="1")]], [], MARKED), "the region was split"
    assert not stood_still([[]], [low(f="1")], MARKED)
    assert not stood_still([[low(f="1")]], [UNKNOWN], MARKED)


ENGINE = "hbase.hstore.engine.class"


@pytest.mark.parametrize(
    ("described", "as_one"),
    [
        (TABLE, False),
        (table(of_table={ENGINE: "org.apache.hadoop.hbase.regionserver.DefaultStoreEngine"}), False),
        (table(of_table={ENGINE: "org.apache.hadoop.hbase.regionserver.StripeStoreEngine"}), True),
        (table(of_family={ENGINE: "org.apache.hadoop.hbase.regionserver.DateTieredStoreEngine"}), True),
        (table(of_family={"KEEP_DELETED_CELLS": "TRUE"}), True),
        (table(of_family={"KEEP_DELETED_CELLS": "false"}), False),
        (table(of_table={"coprocessor$1": "|org.apache.phoenix.coprocessor.UngroupedAggregate|1|"}), True),
    ],
    ids=["default", "default, said so", "stripes", "date-tiered", "deletes are kept", "not kept", "Phoenix"],
)
def test_where_a_partial_compaction_may_drop_markers_each_change_counts(
    described: TableDescriptor, as_one: bool
) -> None:
    families = {"f"} if module._each_change_counts(described, "f") else set[str]()
    flushed = (["h/t/r/f/1"], ["h/t/r/f/2", "h/t/r/f/1"])
    found = [module._by_family(paths, ["f"], families)["f"] for paths in flushed]
    assert (not found[0] & found[1]) == as_one
    assert Stores({"r": {"f": found[0]}}).each_change_counts == as_one


def test_a_configured_engine_counts_like_one_among_the_attributes() -> None:
    described = table()
    described.schema.configuration.add(name=ENGINE, value="org.apache.hadoop.hbase.regionserver.StripeStoreEngine")
    assert module._each_change_counts(described, "f")


def test_only_the_regions_that_have_some_of_the_rows_are_asked_for_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: in the write stop, each of thousands of regions was asked twice for each reading."""
    asked: list[bytes] = []
    borders = [b"", *(b"%02d" % number for number in range(1, 50)), b""]
    regions = [SimpleNamespace(start=start, end=end, encoded=start.hex()) for start, end in pairwise(borders)]

    def files(region: Any, *families: bytes) -> list[str]:
        asked.append(region.start)
        return ["hdfs://nn/hbase/data/default/t/r/f/f1"]

    client = SimpleNamespace(describe=lambda name: TABLE, regions=lambda name: regions, store_files=files)
    run: Any = SimpleNamespace(source=client, target=client, pair=lambda table: SimpleNamespace(source="t", target="t"))
    found = store_files(run, "t", RowSpans((RowSpan(b"071", b"072"), RowSpan(b"42", b"431", marked=True))))
    assert sorted(asked) == [b"07", b"07", b"42", b"42", b"43", b"43"]
    assert [one.range for one in found] == [(b"07", b"08"), (b"42", b"43"), (b"43", b"44")] * 2
    asked.clear()
    assert store_files(run, "t", NONE) == []
    assert len(store_files(run, "t")) == len(asked) == 100

"""Names, tables and regions."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Family, Region, new_table, table_name, table_text


@pytest.mark.parametrize("name", ["t", "ns:t", "ns:t.with-signs_1"])
def test_a_tables_name_reads_back_as_it_was_written(name: str) -> None:
    assert table_text(table_name(name)) == name


def test_the_default_namespace_is_not_written() -> None:
    assert table_text(table_name("default:t")) == "t"


def test_a_familys_attributes_are_read_with_hbases_units_and_defaults() -> None:
    table = new_table("ns:t", {"a": {"VERSIONS": "7", "TTL": "10", "IS_MOB": "true"}, "b": {"TTL": "2147483647"}})
    a, b = table.families["a"], table.families["b"]
    assert (a.max_versions, a.ttl_ms, a.is_mob) == (7, 10_000, True)
    assert (b.max_versions, b.ttl_ms, b.is_mob, b.min_versions) == (1, None, False, 0)
    assert not b.new_version_behavior


def test_a_family_that_is_not_utf_8_is_shown_and_never_taken_for_another() -> None:
    table = new_table("t", {"d": {}})
    table.schema.column_families.add(name=b"\xffd")
    assert list(table.shown_families) == ["d", r"\xffd"]
    with pytest.raises(UsageError, match=r"table t has the family \\xffd, whose name is not UTF-8"):
        _ = table.families


def test_an_attribute_is_replaced_and_the_original_is_left_alone() -> None:
    table = new_table("t", {"f": {}})
    closed = table.with_attribute("READONLY", "true")
    opened = closed.with_attribute("READONLY", "false")
    assert [one.read_only for one in (table, closed, opened)] == [False, True, False]
    assert len(opened.schema.attributes) == 1
    assert closed.families == table.families


def test_a_region_holds_its_start_row_and_not_its_end_row() -> None:
    region = Region(b"t,b,1.x.", "x", "t", b"b", b"d", None, 1)
    assert [region.holds(row) for row in (b"a", b"b", b"c\xff", b"d")] == [False, True, True, False]
    last = Region(b"t,d,1.y.", "y", "t", b"d", b"", None, 1)
    assert last.holds(b"\xff" * 9)


def test_an_address_travels_between_processes() -> None:
    address = ClusterAddress("h:2181", rootdir="hdfs://h:8020/data/hbase/")
    assert pickle.loads(pickle.dumps(address)) == address
    assert address.root_path == "/data/hbase"


def test_the_logs_are_below_the_root_folder_or_in_a_folder_of_their_own() -> None:
    assert ClusterAddress("h:2181", rootdir="hdfs://h:8020/data/hbase/").wal_path == "/data/hbase"
    assert ClusterAddress("h:2181", rootdir="hdfs://h:8020/hbase", waldir="hdfs://h:8020/logs/").wal_path == "/logs"


def test_the_log_may_be_on_another_file_system_than_the_root_folder() -> None:
    address = ClusterAddress("h:2181", webhdfs="http://h:9870", rootdir="hdfs://h:8020/hbase", waldir="hdfs://h:8020/l")
    assert address.of_log is address, "so that both have one client"
    apart = replace(address, waldir="hdfs://logs:8020/hbase", wal_webhdfs="http://logs:9870")
    assert (apart.of_log.webhdfs, apart.of_log.name_node) == ("http://logs:9870", "hdfs://logs:8020")
    assert (apart.webhdfs, apart.name_node, apart.root_path) == ("http://h:9870", "hdfs://h:8020", "/hbase")
    assert apart.of_log.wal_path == apart.wal_path == "/hbase"


def test_an_address_without_rootdir_says_so() -> None:
    with pytest.raises(UsageError, match="rootdir"):
        _ = ClusterAddress("h:2181").root_path


def test_families_of_two_versions_are_equal_if_one_only_writes_down_the_defaults() -> None:
    old = Family("f", {"VERSIONS": "50", "BLOOMFILTER": "ROW", "KEEP_DELETED_CELLS": "false", "TTL": "2147483647"})
    new = Family("f", {"VERSIONS": "50", "INDEX_BLOCK_ENCODING": "NONE", "KEEP_DELETED_CELLS": "FALSE"})
    assert old.effective == new.effective == {"VERSIONS": "50"}


@pytest.mark.parametrize(
    "attributes", [{"VERSIONS": "2"}, {"TTL": "60"}, {"COMPRESSION": "gz"}, {"KEEP_DELETED_CELLS": "TTL"}, {"own": "v"}]
)
def test_what_is_no_default_distinguishes_families(attributes: dict[str, str]) -> None:
    assert Family("f", attributes).effective
    assert Family("f", attributes).effective != Family("f", {}).effective

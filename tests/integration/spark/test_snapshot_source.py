"""The data source `hbase_snapshot` on snapshots of a real cluster, against what another client reads there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.migration.moves import fill, unique, visible
from walferry.embedded.cluster import MiniCluster
from walferry.hbase import mutate
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.snapshots.reading import SnapshotQuery
from walferry.snapshots.stat import stat
from walferry.spark.snapshot_source import read_snapshot

pytestmark = pytest.mark.cluster

Frame = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def here(source: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(source.address) as client:
        yield client


def by_the_source(spark: SparkSession, path: str, **options: object) -> DataFrame:
    reader = spark.read.format("hbase_snapshot")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(path)


def read(
    spark: SparkSession, cluster: MiniCluster, snapshot: str, frame: Frame = by_the_source, **options: object
) -> list[Any]:
    """As `visible` gives a table."""
    address = cluster.address
    asked = {"snapshot": snapshot, "webhdfs": address.webhdfs, "versions": "all", **options}
    found: dict[tuple[bytes, bytes], list[tuple[bytes, int]]] = {}
    for cell in frame(spark, str(urlsplit(address.rootdir).path), **asked).collect():
        column = bytes(cell.row), bytes(cell.family) + b":" + bytes(cell.qualifier)
        found.setdefault(column, []).append((bytes(cell.value), cell.timestamp))
    return [(row, column, cells) for (row, column), cells in sorted(found.items())]


def test_versions_markers_ties_and_families_of_several_files_are_as_a_scan_shows_them(
    source: MiniCluster, here: HBaseClient, spark: SparkSession
) -> None:
    table = unique()
    f = {"VERSIONS": "3", "COMPRESSION": "GZ", "DATA_BLOCK_ENCODING": "FAST_DIFF"}
    here.create_table(table, {"f": f, "g": {"VERSIONS": "1", "DATA_BLOCK_ENCODING": "DIFF"}}, [b"r10"])
    here.modify_table(here.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    for turn in range(4):
        for family in (b"f", b"g"):
            rows = range(turn, 20)
            here.put(table, [Cell(b"r%02d" % n, family, b"q", b"v%d-%d" % (turn, n), 10 + turn) for n in rows])
        here.put(table, [Cell(b"r05", b"f", b"tie", b"t%d" % turn, 7)])
        here.flush_table(table)
    for ttl_ms in (None, 1):  # the later one has expired, so that the one below it is shown
        cell = Cell(b"r08", b"f", b"own", b"with a TTL of %r" % ttl_ms, 7)
        here.mutate(table, [mutate.put(b"r08", [cell], ttl_ms=ttl_ms)])
        here.flush_table(table)
    here.mutate(table, [mutate.delete_column(b"r06", b"f", b"q", 12)])
    here.mutate(table, [mutate.delete_family(b"r07", b"f", 11), mutate.delete_version(b"r15", b"g", b"q", 13)])
    here.snapshot(f"s{table}", table)
    try:
        seen = visible(source, table)
        assert len(seen) > 40
        assert (b"r08", b"f:own", [(b"with a TTL of None", 7)]) in seen
        assert read(spark, source, f"s{table}") == seen
        assert read(spark, source, f"s{table}", partition_bytes=1) == seen
        assert read(spark, source, f"s{table}", columns="f:tie") == [x for x in seen if x[1] == b"f:tie"]
        by_row = read_snapshot(spark, str(urlsplit(source.address.rootdir).path), snapshot=f"s{table}", view="rows",
                             versions="all", webhdfs=source.address.webhdfs)  # fmt: skip
        counted = {bytes(row.row): (row.cells, row.oldest, row.newest) for row in by_row.collect()}
        times = {row: [at for one, _, cells in seen for _, at in cells if one == row] for row, _, _ in seen}
        assert counted == {row: (len(at), min(at), max(at)) for row, at in times.items()}
        query = SnapshotQuery(str(urlsplit(source.address.rootdir).path), f"s{table}", versions=None,
                              webhdfs=source.address.webhdfs)  # fmt: skip
        found = stat(query)
        assert (found.total.rows, found.total.cells) == (len(times), sum(map(len, times.values())))
        assert [region.rows for region in found.regions] == [10, 10]
        some = read(spark, source, f"s{table}", start_row=b"r03".hex(), stop_row=b"r12".hex())
        assert some == [x for x in seen if b"r03" <= x[0] < b"r12"]
        assert read(spark, source, f"s{table}", read_snapshot, partition_bytes=1, user=None) == seen
        assert read(spark, source, f"s{table}", read_snapshot, start_row=b"r09".hex(), stop_row=b"r09".hex()) == []
    finally:
        here.delete_snapshot(f"s{table}")


def test_references_of_a_split_and_links_of_a_clone_are_followed(
    source: MiniCluster, here: HBaseClient, spark: SparkSession
) -> None:
    table, clone = unique(), unique("clone")
    here.create_table(table, {"f": {}})
    here.modify_table(here.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    fill(here, table)
    here.flush_table(table)
    here.split_region(here.regions(table)[0], b"r10")
    here.snapshot(f"s{table}", table)
    here.clone_snapshot(f"s{table}", clone)
    here.snapshot(f"s{clone}", clone)
    try:
        seen = visible(source, table)
        assert len(seen) == 20
        assert read(spark, source, f"s{table}") == seen
        assert read(spark, source, f"s{clone}") == seen
    finally:
        here.delete_snapshot(f"s{clone}")
        here.delete_snapshot(f"s{table}")

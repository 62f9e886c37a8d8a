"""A worker's memory is bounded (R9): by the largest entry or row, however many there are, and by no number of regions.

What is measured is the most memory that Spark's Python workers ever had (VmHWM), beyond what they have for small rows:
modules, compiled kernels and buffers of a fixed size. The bounds are those of docs/performance.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import as_if_copied, begin, copy_tables, make_spec, run_of
from walferry.apply import by_group, by_row
from walferry.embedded.cluster import MiniCluster, Ports, boot, shut_down
from walferry.embedded.environment import Environment
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.migration.comparing.compare import TableComparison, compare
from walferry.migration.copying import copy_files
from walferry.migration.sides import digest
from walferry.replay.rounds.follower import replay
from walferry.spark.fan_out import fan_out

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell how much memory a process ever had"),
]

COLUMNS, SMALL, CELLS, LARGE = 100_000, 540, 6, 10_000_000
"""columns of a wide row and bytes in each, cells of a large row and bytes in each: either row is an entry of the log"""
ENTRY, CELL = 58, 10
"""MiB of the largest entry, which is also the largest row, and of the largest cell"""
BOUNDS = {
    "copy": 32,  # chunks of 2 MiB that are read, written and held by the client of HDFS
    "replay of small rows": 160,
    "comparison of small rows": 96,
    "replay by group": 4 * ENTRY + 64 + 3 * CELL,  # in one lane, since it is one region
    "replay by row": 4 * ENTRY + 3 * CELL + 16,
    "comparison": 3 * ENTRY + 8 * CELL + 30,
}
"""MiB that a worker may have beyond an idle one, or for large rows beyond one that did the same for small ones"""
REGION_SERVER = "org.apache.hadoop.hbase.regionserver"
BORDERS = tuple(b"%03d" % number for number in range(1, 500))


@pytest.fixture
def pair(servers: Environment, tmp_path: Path) -> Iterator[tuple[MiniCluster, MiniCluster]]:
    """A source and a target with room for such entries, which the servers of the other tests lack."""
    site = {
        **servers.source.hbase_site,
        "hbase.hregion.memstore.mslab.enabled": "false",  # else 2 MB for each region
        "hbase.regionserver.executor.openregion.threads": "16",
        "hbase.regionserver.region.split.policy": f"{REGION_SERVER}.ConstantSizeRegionSplitPolicy",
    }
    source, target = (
        MiniCluster(tmp_path / name, Ports.free(), with_thrift=False, hbase_site=site, hbase_heap="3g")
        for name in ("source", "target")
    )
    boot(source, target)
    yield source, target
    shut_down(source, target)


def peak(spark: SparkSession, work: Callable[[], object]) -> int:
    """The most memory, in MiB, that one of the workers ever had that Spark forks for this work."""
    # Spark has a daemon for each environment. The workers that it has forked wait for another task for a minute.
    environment = spark.sparkContext.environment
    mark = environment["WALFERRY_MEASURED"] = uuid4().hex
    try:
        work()
    finally:
        del environment["WALFERRY_MEASURED"]
    marked = list(statuses(mark.encode()))
    daemons = {status["Pid"] for status in marked}
    return max(status["VmHWM"] for status in marked if status["PPid"] in daemons) >> 10


def statuses(mark: bytes) -> Iterator[dict[str, int]]:
    """What the system tells of the processes that have the mark in their environment; memory in KiB."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes():
                lines = environ.with_name("status").read_text().splitlines()
                facts = dict(line.split(":", 1) for line in lines)
                yield {name: int(facts[name].split()[0]) for name in ("Pid", "PPid", "VmHWM")}
        except (OSError, KeyError):
            continue  # it has ended


def put_small(client: HBaseClient, timestamp: int) -> None:
    client.put("many", [Cell(b"%03d" % number, b"f", b"q", b"v", timestamp) for number in range(500)])


def put_wide(client: HBaseClient, row: bytes) -> None:
    client.put("large", [Cell(row, b"f", b"q%06d" % column, bytes(SMALL), 7) for column in range(COLUMNS)])


def put_large(client: HBaseClient, row: bytes) -> None:
    client.put("large", [Cell(row, b"f", b"q%d" % column, bytes(LARGE), 7) for column in range(CELLS)])


def test_what_a_worker_holds_is_bounded_by_the_largest_entry_or_row_whatever_their_number(
    pair: tuple[MiniCluster, MiniCluster], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def idle(*modules: ModuleType) -> int:
        """What a worker has that has imported these."""
        return peak(spark, lambda: fan_out(spark, lambda _: [m.__name__ for m in modules], range(2), what="do nothing"))

    def write() -> None:
        """Five entries of one region."""
        for number in range(4):
            put_large(run.source, b"0%d" % number)
        put_wide(run.source, b"04")

    # All files in one task: otherwise the size of a piece would bound what a leak can take.
    monkeypatch.setenv("WALFERRY_PIECE_BYTES", str(1 << 30))
    monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")  # Spark's workers do it all
    nothing = idle(copy_files, by_group, by_row, digest)
    more: dict[str, int] = {}
    compared: list[TableComparison] = []
    with run_of(make_spec(*pair, ["large", "many"], apply="rpc"), tmp_path) as run:
        run.source.create_table("large", {"f": {}})
        run.source.create_table("many", {"f": {}}, BORDERS)
        put_large(run.source, b"00")
        begin(run)
        as_if_copied(run, "many", whole=True)
        more["copy"] = peak(spark, lambda: copy_tables(run)) - nothing
        put_small(run.source, 6)
        replayed = peak(spark, lambda: replay(run, spark, until=lambda: True))
        more["replay of small rows"] = replayed - nothing
        put_small(run.source, 7)
        write()
        more["replay by group"] = peak(spark, lambda: replay(run, spark, until=lambda: True)) - replayed
        # The rows of a region that has been split are sorted.
        run.source.split_region(run.source.locate("large", b"0"), b"1")
        write()
        more["replay by row"] = peak(spark, lambda: replay(run, spark, until=lambda: True)) - replayed

        scanned = peak(spark, lambda: compared.append(compare(run, lambda: spark, "many")))
        more["comparison of small rows"] = scanned - nothing
        more["comparison"] = peak(spark, lambda: compared.append(compare(run, lambda: spark, "large"))) - scanned
        rounds = run.ledger.rounds.all()
    assert [made.cells for made in rounds] == [500, 500 + 4 * CELLS + COLUMNS, 4 * CELLS + COLUMNS]
    assert [result.shuts_the_gate for result in compared] == [False, False]
    assert sum(side.source_cells for result in compared for side in result.ranges) == rounds[1].cells
    assert {name: mib for name, mib in more.items() if mib > BOUNDS[name]} == {}, more

"""The data source `hbase_wal` in a real local Spark, on real WALs."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from walferry.errors import UsageError
from walferry.formats.entries import WAL_CELL_SCHEMA, entry_cells
from walferry.formats.wal import WalReader
from walferry.spark.handing_over import from_driver
from walferry.spark.wal_query import WalQuery
from walferry.spark.wal_source import HBaseWalReader, WalPartition

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
CLOSED = FIXTURES / "closed.wal"
KILLED = FIXTURES / "killed.wal"
COMPRESSED = FIXTURES / "values-gz.wal"
NAME = "127.0.0.1%2C16020%2C1700000000000.1700000000001"


def load(spark: SparkSession, path: Path | str, **options: object) -> DataFrame:
    reader = spark.read.format("hbase_wal")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(path))


def cells_of(path: Path) -> list[dict[str, Any]]:
    reader = WalReader([path.read_bytes()], str(path))
    return [row for batch in reader for row in entry_cells(batch, str(path)).to_pylist()]


@pytest.mark.parametrize(("path", "count"), [(CLOSED, 177), (COMPRESSED, 835)])
def test_every_cell_of_a_file_arrives_with_the_declared_columns(path: Path, count: int, spark: SparkSession) -> None:
    frame = load(spark, path)
    assert frame.columns == WAL_CELL_SCHEMA.names
    rows = [row.asDict() for row in frame.collect()]
    expected = cells_of(path)
    assert len(expected) == count
    assert [{k: bytes(v) if isinstance(v, bytearray) else v for k, v in row.items()} for row in rows] == expected


@pytest.mark.parametrize(("path", "count"), [(CLOSED, 177), (COMPRESSED, 835)])
def test_the_entries_view_counts_the_cells_it_does_not_decode(path: Path, count: int, spark: SparkSession) -> None:
    entries = load(spark, path, view="entries").collect()
    assert sum(entry.cell_count for entry in entries) == count
    assert {None, "REGION_OPEN", "FLUSH"} <= {entry.marker for entry in entries}
    for before, after in pairwise(entries):
        assert before.offset + before.length == after.offset


def test_tables_and_times_narrow_what_is_read(spark: SparkSession) -> None:
    everything = cells_of(CLOSED)
    times = sorted({cell["write_time"] for cell in everything})
    start, stop = times[len(times) // 4], times[len(times) // 2]
    read = load(spark, CLOSED, tables="shop:orders,default:plain", **{"from": start, "to": stop}).collect()
    expected = [
        cell for cell in everything if cell["table"] in ("shop:orders", "plain") and start <= cell["write_time"] < stop
    ]
    assert 0 < len(expected) < len(everything)
    assert [(row["sequence_number"], row["offset"], row["index"]) for row in read] == [
        (cell["sequence_number"], cell["offset"], cell["index"]) for cell in expected
    ]


def test_a_folder_is_read_with_those_in_it_but_without_logs_of_meta_and_master(
    spark: SparkSession, tmp_path: Path
) -> None:
    server = tmp_path / "oldWALs" / "127.0.0.1,16020,1700000000000"
    server.mkdir(parents=True)
    shutil.copy(CLOSED, tmp_path / "oldWALs" / NAME)
    shutil.copy(KILLED, server / NAME)
    for skipped in (f"{NAME}.meta", f"{NAME}$masterlocalwal$", "pv2-00000000000000000001.log", f".{NAME}.crc"):
        (tmp_path / "oldWALs" / skipped).write_bytes(b"no WAL")
    per_file: dict[str, int] = dict(load(spark, tmp_path / "oldWALs").groupBy("file").count().collect())
    assert per_file == {str(tmp_path / "oldWALs" / NAME): 177, str(server / NAME): len(cells_of(KILLED))}
    # The comma in a server's name does not begin another path; that before a slash does.
    both = load(spark, f"{server},{tmp_path}/oldWALs/{NAME}")
    assert both.count() == sum(per_file.values())


def test_a_log_that_was_archived_after_it_was_listed_is_followed(tmp_path: Path) -> None:
    live = tmp_path / "WALs" / "127.0.0.1,16020,1700000000000"
    live.mkdir(parents=True)
    (tmp_path / "oldWALs").mkdir()
    shutil.copy(CLOSED, tmp_path / "oldWALs" / NAME)
    reader = HBaseWalReader(WalQuery.parse({"path": str(live)}))
    assert (
        sum(batch.num_rows for batch in reader.read(WalPartition(str(live / NAME), from_driver(tokens=False)))) == 177
    )


def test_an_unfinished_file_is_read_as_far_as_it_goes_unless_told_to_fail(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty.wal").write_bytes(b"")
    (tmp_path / "torn.wal").write_bytes(CLOSED.read_bytes()[:20000])
    assert 0 < load(spark, tmp_path).count() < 177
    for name in ("empty.wal", "torn.wal"):
        with pytest.raises(Exception, match=name):
            load(spark, tmp_path / name, on_unfinished="fail").count()


def test_a_damaged_file_fails_the_query_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    data = bytearray(CLOSED.read_bytes())
    data[cells_of(CLOSED)[100]["offset"]] = 0
    (tmp_path / "bad.wal").write_bytes(data)
    with pytest.raises(Exception, match=r"bad\.wal is damaged at byte \d+"):
        load(spark, tmp_path).count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the path"),
        ({"path": "/x", "view": "rows"}, "view is 'rows'"),
        ({"path": "/x", "from": "yesterday"}, "from is 'yesterday'"),
        ({"path": "/x", "table": "t"}, "no option table"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WalQuery.parse(options)


def test_an_empty_folder_has_no_cells_and_a_missing_one_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    assert load(spark, tmp_path).count() == 0
    with pytest.raises(Exception, match="does not exist"):
        load(spark, tmp_path / "nowhere").count()

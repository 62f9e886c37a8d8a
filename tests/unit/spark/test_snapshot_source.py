"""The source's reader, without Spark, on a snapshot of one file that HBase wrote."""

from __future__ import annotations

import base64
import gzip
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from walferry.errors import UsageError
from walferry.formats.cells import CELL_SCHEMA
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import new_table
from walferry.snapshots import region_name
from walferry.spark.snapshot_source import HBaseSnapshotReader, SnapshotQuery

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hfile"


def stored() -> list[tuple[Any, ...]]:
    """The file's cells, as HBase's own reader found them, one of each key."""
    found = []
    for line in gzip.decompress((FIXTURES / "cells.tsv.gz").read_bytes()).decode().splitlines():
        row, family, qualifier, timestamp, kind, value, tags, _ = line.split("\t")
        plain = base64.b64decode
        found.append(
            (plain(row), plain(family), plain(qualifier), int(timestamp), int(kind), plain(value), plain(tags))
        )
    return [next(equal) for _, equal in groupby(found, key=lambda cell: cell[:5])]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root folder with the snapshot `s` of a table of one region, whose file an exported snapshot has in archive/."""
    families = {cell[1].decode() for cell in stored()}
    (family,) = families
    table = new_table("t", {family: {"VERSIONS": "3"}}).schema
    info = pb.RegionInfo(region_id=1, table_name=table.table_name)
    file = pb.SnapshotRegionManifest.StoreFile(name="abc", file_size=(FIXTURES / "fast-diff.hfile").stat().st_size)
    of_family = pb.SnapshotRegionManifest.FamilyFiles(family_name=family.encode(), store_files=[file])
    region = pb.SnapshotRegionManifest(region_info=info, family_files=[of_family])
    folder = tmp_path / ".hbase-snapshot" / "s"
    folder.mkdir(parents=True)
    manifest = pb.SnapshotDataManifest(table_schema=table, region_manifests=[region])
    (folder / "data.manifest").write_bytes(manifest.SerializeToString())
    info_of = pb.SnapshotDescription(name="s", table="t", creation_time=2**60)
    (folder / ".snapshotinfo").write_bytes(info_of.SerializeToString())
    place = tmp_path / "archive" / "data" / "default" / "t" / region_name(info) / family
    place.mkdir(parents=True)
    shutil.copy(FIXTURES / "fast-diff.hfile", place / "abc")
    return tmp_path


def read(root: Path, **options: str) -> list[tuple[Any, ...]]:
    reader = HBaseSnapshotReader(SnapshotQuery.parse({"path": str(root), "snapshot": "s", **options}))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [tuple(cell.values()) for batch in batches for cell in batch.to_pylist()]


def test_raw_cells_are_those_that_the_file_has(root: Path) -> None:
    assert read(root, raw="true") == stored()
    assert len(HBaseSnapshotReader(SnapshotQuery.parse({"path": str(root), "snapshot": "s"})).partitions()) == 1


def test_a_region_is_cut_and_nothing_is_lost_or_doubled(root: Path) -> None:
    query = SnapshotQuery.parse({"path": str(root), "snapshot": "s", "partition_bytes": "3000"})
    assert len(HBaseSnapshotReader(query).partitions()) > 1
    assert read(root, raw="true", partition_bytes="3000") == stored()


def test_options_choose_rows_columns_times_and_fields(root: Path) -> None:
    everything = stored()
    row, family, qualifier, timestamp = everything[len(everything) // 2][:4]
    assert read(root, raw="true", start_row=row.hex()) == [cell for cell in everything if cell[0] >= row]
    assert read(root, raw="true", stop_row=row.hex()) == [cell for cell in everything if cell[0] < row]
    later = [cell for cell in everything if cell[3] >= timestamp]
    assert len(later) > 0
    assert read(root, raw="true", **{"from": str(timestamp)}) == later
    assert read(root, raw="true", to=str(timestamp)) == [cell for cell in everything if cell[3] < timestamp]
    column = f"{family.decode()}:{qualifier.decode()}"
    assert read(root, raw="true", columns=column) == [cell for cell in everything if cell[2] == qualifier]
    assert read(root, raw="true", fields="type,row") == [(cell[4], cell[0]) for cell in everything]


def test_a_view_of_rows_tells_of_each_what_its_cells_are(root: Path) -> None:
    times: dict[bytes, list[int]] = {}
    for cell in stored():
        times.setdefault(cell[0], []).append(cell[3])
    rows = [(row, len(found), min(found), max(found)) for row, found in times.items()]
    assert max(count for _, count, _, _ in rows) > 1
    assert read(root, view="rows", raw="true") == rows
    assert read(root, view="rows", raw="true", partition_bytes="3000") == rows
    assert read(root, view="rows", raw="true", fields="newest,row") == [(newest, row) for row, _, _, newest in rows]
    shown = [cell[0] for cell in read(root)]
    assert read(root, view="rows", fields="row,cells") == [(row, len(list(of))) for row, of in groupby(shown)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonsense": "1"},
        {"view": "x"},
        {"versions": "0"},
        {"start_row": "xy"},
        {"fields": "x"},
        {"raw": "yes"},
        {"columns": "z"},
    ],
)
def test_a_wrong_option_is_refused_by_its_name(root: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="z" if "columns" in wrong else next(iter(wrong))):
        read(root, **wrong)


def test_columns_of_the_frame_are_those_of_cells() -> None:
    assert SnapshotQuery.parse({"path": "/hbase", "snapshot": "s"}).fields == tuple(CELL_SCHEMA.names)

"""The source's reader, without Spark, on a snapshot of one file that HBase wrote."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from unit.hfile_snapshot import laid_out, stored
from walferry.errors import UsageError
from walferry.formats.cells import CELL_SCHEMA
from walferry.spark.snapshot_source import HBaseSnapshotReader, query_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return laid_out(tmp_path)


def read(root: Path, **options: str) -> list[tuple[Any, ...]]:
    reader = HBaseSnapshotReader(query_of({"path": str(root), "snapshot": "s", **options}))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [tuple(cell.values()) for batch in batches for cell in batch.to_pylist()]


def test_raw_cells_are_those_that_the_file_has(root: Path) -> None:
    assert read(root, raw="true") == stored()
    assert len(HBaseSnapshotReader(query_of({"path": str(root), "snapshot": "s"})).partitions()) == 1


def test_a_region_is_cut_and_nothing_is_lost_or_doubled(root: Path) -> None:
    query = query_of({"path": str(root), "snapshot": "s", "partition_bytes": "3000"})
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
        {"tls_ca": "/ca.pem"},
    ],
)
def test_a_wrong_option_is_refused_by_its_name(root: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="z" if "columns" in wrong else next(iter(wrong))):
        read(root, **wrong)


def test_columns_of_the_frame_are_those_of_cells() -> None:
    assert query_of({"path": "/hbase", "snapshot": "s"}).fields == tuple(CELL_SCHEMA.names)

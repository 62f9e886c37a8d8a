"""`walferry snapshot stat` on a snapshot of one file that HBase wrote, against what HBase's own reader found in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unit.hfile_snapshot import laid_out, stored
from walferry.cli import app
from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.snapshots.manifest import region_name
from walferry.snapshots.reading import SnapshotQuery
from walferry.snapshots.stat import RegionCount, stat


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return laid_out(tmp_path)


def expected() -> tuple[int, int, int, int]:
    """Rows, cells, the oldest and the newest timestamp."""
    cells = stored()
    times = [cell[3] for cell in cells]
    return len({cell[0] for cell in cells}), len(cells), min(times), max(times)


@pytest.mark.parametrize("part_bytes", [1 << 20, 3000])
def test_what_is_stored_is_counted_once_however_it_is_cut(root: Path, part_bytes: int) -> None:
    found = stat(SnapshotQuery(str(root), "s", raw=True, partition_bytes=part_bytes))
    (region,) = found.regions
    assert (region.rows, region.cells, region.oldest, region.newest) == expected()
    size = next(root.glob("archive/**/abc")).stat().st_size
    assert (region.files, region.bytes, region.start_row) == (1, size, "")
    assert found.total == RegionCount("", "", 1, size, *expected())
    assert (found.snapshot, found.table) == ("s", "t")


def test_a_region_without_store_files_has_a_line_too(root: Path) -> None:
    path = root / ".hbase-snapshot" / "s" / "data.manifest"
    manifest = pb.SnapshotDataManifest.FromString(path.read_bytes())
    info = pb.RegionInfo(region_id=2, table_name=manifest.table_schema.table_name, start_key=b"\xff" * 99)
    manifest.region_manifests.append(pb.SnapshotRegionManifest(region_info=info))
    path.write_bytes(manifest.SerializeToString())
    found = stat(SnapshotQuery(str(root), "s", raw=True))
    assert found.regions[1] == RegionCount(region_name(info), "ff" * 99, 0, 0, 0, 0, None, None)
    assert (found.total.rows, found.total.cells) == expected()[:2]


def test_the_command_prints_the_same_for_people_and_for_programs(root: Path) -> None:
    rows, cells, oldest, newest = expected()
    run = CliRunner().invoke(app, ["snapshot", "stat", str(root), "s", "--raw"])
    assert (run.exit_code, f"{rows} rows, {cells} cells stored" in run.output) == (0, True)
    run = CliRunner().invoke(app, ["snapshot", "stat", f"{root}/", "s", "--raw", "--json"])
    told = json.loads(run.output)
    assert told["total"] | {"bytes": 0} == {
        "region": "", "start_row": "", "files": 1, "bytes": 0, "rows": rows, "cells": cells, "oldest": oldest,
        "newest": newest,
    }  # fmt: skip
    assert [region["rows"] for region in told["regions"]] == [rows]
    shown = CliRunner().invoke(app, ["snapshot", "stat", str(root), "s", "--regions"])
    assert (shown.exit_code, "that a scan shows" in shown.output) == (0, True)


def test_a_snapshot_that_is_not_there_is_one_line(root: Path) -> None:
    with pytest.raises(WalferryError, match="nothing/data"):
        stat(SnapshotQuery(str(root), "nothing"))


@pytest.mark.parametrize("part_bytes", [1 << 20, 3000])
def test_a_store_file_that_is_gone_is_named(root: Path, part_bytes: int) -> None:
    shutil.rmtree(root / "archive")
    with pytest.raises(WalferryError, match=r"store file .*/abc no longer exists") as caught:
        stat(SnapshotQuery(str(root), "s", partition_bytes=part_bytes))
    assert str(caught.value.facts["file"]).endswith("/abc")

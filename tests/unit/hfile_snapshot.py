"""A snapshot of one file that HBase wrote."""

from __future__ import annotations

import base64
import gzip
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import new_table
from walferry.snapshots.manifest import region_name

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hfile"


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


def laid_out(tmp_path: Path) -> Path:
    """A root folder with the snapshot `s` of a table of one region, whose file is in archive/, as one that was exported
    has it."""
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

"""A source on this machine whose WALs and store files are real files, and whose snapshots have real manifests."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unit.formats.wal_builder import TRAILER, header
from unit.replay.keeping.test_by_copies import GROUP
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.zookeeper import znode
from walferry.moments.keeping.keep_run import KeepRun
from walferry.security import Security
from walferry.snapshots.manifest import region_name
from walferry.storage import Local
from written import write_anew

OPEN, CLOSED = header(), header() + TRAILER


class Source:
    """Tables of one region each, with the family `f`."""

    address = SimpleNamespace(user="me", security=Security())

    def __init__(self, root: Path) -> None:
        self.root = root
        self.attributes: dict[str, str] = {}
        self.region_ids: dict[str, int] = {}
        self.taken: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """what happens while a snapshot is taken"""

    def servers(self) -> list[object]:
        return []

    def close(self) -> None:
        """Nothing is open."""

    def add(self, table: str, *files: str, region_id: int = 1) -> None:
        """Write store files; those of another region id are moved away, as a truncation does."""
        if self.region_ids.get(table, region_id) != region_id:
            shutil.rmtree(self.root / "data" / "default" / table)
        self.region_ids[table] = region_id
        for file in files:
            write_anew(Local(), str(self.folder(table) / file), [f"cells of {file}".encode()])

    def folder(self, table: str) -> Path:
        return self.root / "data" / "default" / table / region_name(self._region(table)) / "f"

    def describe(self, table: str) -> TableDescriptor:
        if table not in self.region_ids:
            raise TableNotFoundError(f"there is no table {table}", table=table)
        return new_table(table, {"f": self.attributes})

    def regions(self, table: str) -> list[Any]:
        return [SimpleNamespace(region_id=self.region_ids[table])]

    def snapshots(self) -> list[Any]:
        folder = self.root / ".hbase-snapshot"
        return [SimpleNamespace(name=path.name) for path in folder.iterdir()] if folder.exists() else []

    def snapshot(self, name: str, table: str) -> None:
        self.meanwhile()
        files = [
            pb.SnapshotRegionManifest.StoreFile(name=path.name, file_size=path.stat().st_size)
            for path in sorted(self.folder(table).iterdir())
        ]
        of_family = pb.SnapshotRegionManifest.FamilyFiles(family_name=b"f", store_files=files)
        region = pb.SnapshotRegionManifest(region_info=self._region(table), family_files=[of_family])
        manifest = pb.SnapshotDataManifest(table_schema=self.describe(table).schema, region_manifests=[region])
        folder = self.root / ".hbase-snapshot" / name
        folder.mkdir(parents=True)
        (folder / "data.manifest").write_bytes(manifest.SerializeToString())
        (folder / ".snapshotinfo").write_bytes(pb.SnapshotDescription(name=name, table=table).SerializeToString())
        self.taken.append(name)

    def delete_snapshot(self, name: str) -> bool:
        there = name in {one.name for one in self.snapshots()}
        shutil.rmtree(self.root / ".hbase-snapshot" / name, ignore_errors=True)
        return there

    def _region(self, table: str) -> pb.RegionInfo:
        return pb.RegionInfo(region_id=self.region_ids[table], table_name=new_table(table, {"f": {}}).schema.table_name)


def source_of(run: KeepRun) -> Source:
    source: Any = run.source
    assert isinstance(source, Source)
    return source


def set_up_again(run: KeepRun) -> None:
    """Another cluster is where the source was."""
    content = znode(pb.ClusterId(cluster_id="another id"))
    write_anew(Local(), f"{run.source_root}/hbase.id", [content])


def write(run: KeepRun, folder: str, number: int, content: bytes, *, group: str = GROUP, age: float = 0) -> Path:
    """Write a WAL."""
    path = Path(f"{run.wal_root}/{folder}/{group}.{number}")
    write_anew(Local(), str(path), [content])
    os.utime(path, (time.time() - age,) * 2)
    return path


def folder(run: KeepRun) -> Path:
    """The run's folder."""
    return Path(str(run.staged_folder).removeprefix("file://"))

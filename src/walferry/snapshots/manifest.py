"""Snapshots as files: their manifest, and which store files have the cells of each region.

A store file in a manifest is one of: an HFile; a link to an HFile of another table or region, as clones have
(`[ns=]table=region-hfile`); a reference to part of one of these, left by a split or merge (`file.region`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import md5
from typing import NamedTuple

import numpy as np

from walferry.errors import UnreadableInputError, WalferryError
from walferry.formats.cells import CellIndex
from walferry.formats.hfile import HFile, StoredCells
from walferry.formats.merge import alive, merged
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import table_text
from walferry.storage import FileSystem

SNAPSHOTS = ".hbase-snapshot"
"""the folder of snapshots below HBase's root folder (HConstants.SNAPSHOT_DIR_NAME)"""
_HFILE = re.compile(r"^[0-9a-f]+(_SeqId_(?P<sequence>\d+)_|_del)?$")
_LINK = re.compile(
    r"^(?:(?P<namespace>[^=]+)=)?(?P<table>[^=]+)=(?P<region>[0-9a-f]+)-(?P<file>[0-9a-f]+(?:_SeqId_\d+_)?)$"
)


class StoreFileGoneError(UnreadableInputError):
    """A store file is at none of the places where it may be: facts `file`, `offset`, `reason`."""


@dataclass(frozen=True)
class StoreFile:
    """A store file of a snapshot, or the rows of it that a reference has: from `start` to before `stop` (b"": all)."""

    family: bytes
    name: str
    """as in the manifest"""
    paths: tuple[str, ...]
    """where it may be"""
    size: int
    """as the manifest says; 0 if it does not"""
    start: bytes = b""
    stop: bytes = b""

    def sequence(self, file: HFile) -> int:
        """The greatest sequence number of its cells: newer files have greater ones."""
        if (bulk := self.bulk_sequence) is not None:
            return bulk
        return int.from_bytes(file.info.get(b"MAX_SEQ_ID_KEY", b""), "big")

    @property
    def bulk_sequence(self) -> int | None:
        """The sequence number of all its cells, if it was bulk-loaded."""
        match = _HFILE.match(self.paths[0].rpartition("/")[2])
        return int(match["sequence"]) if match and match["sequence"] else None

    def highest_number(self, file: HFile) -> int | None:
        """The greatest sequence number of which its store had flushed all cells when the file was written: its
        MAX_SEQ_ID_KEY; None if it has none, or was bulk-loaded."""
        found = file.info.get(b"MAX_SEQ_ID_KEY")
        loaded = self.bulk_sequence is not None or b"BULKLOAD_TIMESTAMP" in file.info
        return None if found is None or loaded else int.from_bytes(found, "big")

    def open(self, files: FileSystem, count: Callable[[int], None] = lambda size: None) -> HFile:
        """Open the file wherever it is now; `count` is called with the number of bytes read.

        Raises StoreFileGoneError if the file is gone, also later during reading.
        """

        def read(offset: int, length: int) -> Iterator[bytes]:
            end = offset + length
            for path in self.paths:
                try:
                    for piece in files.read(path, offset, end - offset):
                        offset += len(piece)
                        count(len(piece))
                        yield piece
                    return
                except FileNotFoundError:
                    continue  # files move from data/ to archive/ at any time
            raise self._gone()

        for path in self.paths:
            status = files.status(path)
            if status is not None:
                return HFile(read, status.length, path)
        raise self._gone()

    def _gone(self) -> StoreFileGoneError:
        path, reason = self.paths[0], "it is not in archive/ either: was the snapshot deleted?"
        return StoreFileGoneError(f"store file {path} no longer exists: {reason}", file=path, offset=0, reason=reason)


@dataclass(frozen=True)
class SnapshotRegion:
    """A region of a snapshot: rows from `start` to before `end` (b"": no border), and its store files."""

    name: str
    start: bytes
    end: bytes
    files: tuple[StoreFile, ...]
    region_id: int = 0
    """RegionInfo.region_id"""


def has_manifest(files: FileSystem, root: str, name: str) -> bool:
    """Whether there is a snapshot of this name below HBase's root folder, and it is complete."""
    return files.status(_manifest_path(root, name)) is not None


def _manifest_path(root: str, name: str) -> str:
    return f"{root}/{SNAPSHOTS}/{name}/data.manifest"


def read_manifest(files: FileSystem, root: str, name: str) -> pb.SnapshotDataManifest:
    """The manifest of a snapshot below HBase's root folder. Raises WalferryError (fact `file`) if it has none."""
    path = _manifest_path(root, name)
    if files.status(path) is None:
        raise WalferryError(f"the snapshot has no manifest {path}: was it deleted?", file=path)
    manifest: pb.SnapshotDataManifest = pb.SnapshotDataManifest.FromString(b"".join(files.read(path)))
    return manifest


def read_info(files: FileSystem, root: str, name: str) -> pb.SnapshotDescription:
    """The snapshot's own description."""
    content = b"".join(files.read(f"{root}/{SNAPSHOTS}/{name}/.snapshotinfo"))
    info: pb.SnapshotDescription = pb.SnapshotDescription.FromString(content)
    return info


def size_of(manifest: pb.SnapshotDataManifest) -> int:
    """Bytes of a snapshot's store files, as its manifest says."""
    return sum(
        file.file_size
        for region in manifest.region_manifests
        for family in region.family_files
        for file in family.store_files
    )


def snapshot_regions(root: str, manifest: pb.SnapshotDataManifest) -> list[SnapshotRegion]:
    """A snapshot's regions by their first row. Raises UnreadableInputError for a store file of an unknown kind.

    Parents of a split, whose daughters are in the snapshot too, are left out.
    """
    table = table_text(manifest.table_schema.table_name)
    regions = [
        SnapshotRegion(
            region_name(region.region_info),
            region.region_info.start_key,
            region.region_info.end_key,
            tuple(
                _store_file(root, table, region_name(region.region_info), family.family_name, file)
                for family in region.family_files
                for file in family.store_files
            ),
            region.region_info.region_id,
        )
        for region in manifest.region_manifests
        if not (region.region_info.offline and region.region_info.split)
    ]
    return sorted(regions, key=lambda region: region.start)


def region_name(info: pb.RegionInfo) -> str:
    """Encoded name of a region: MD5 over `table,start key,region id` (RegionInfo.encodeRegionName)."""
    table = info.table_name.qualifier
    if info.table_name.namespace != b"default":
        table = info.table_name.namespace + b":" + table
    name = b",".join((table, info.start_key, str(info.region_id).encode()))
    return md5(name, usedforsecurity=False).hexdigest()


class Stored(NamedTuple):
    """Where the content of a store file is, apart from its family."""

    table: str
    region: str
    """encoded name"""
    file: str


def stored(table: str, region: str, name: str) -> Stored | None:
    """Where the content of a region's store file is: in the region, or where the link points. None for a reference."""
    if _HFILE.match(name):
        return Stored(table, region, name)
    link = _LINK.match(name)
    if link is None:
        return None
    other = link["table"] if link["namespace"] in (None, "default") else f"{link['namespace']}:{link['table']}"
    return Stored(other, link["region"], link["file"])


def places_of(root: str, family: str, place: Stored) -> tuple[str, str]:
    """Where a store file is below HBase's root folder: in its region or, once that has no use for it, archived."""
    namespace, _, plain = place.table.rpartition(":")
    inside = f"data/{namespace or 'default'}/{plain}/{place.region}/{family}/{place.file}"
    return f"{root}/{inside}", f"{root}/archive/{inside}"


def cells_of(
    files: FileSystem,
    region: SnapshotRegion,
    alive_ms: int | None,
    *,
    wanted: Callable[[HFile], bool] = lambda file: True,
    count: Callable[[int], None] = lambda size: None,
    newest: Iterable[StoredCells] = (),
) -> Iterator[CellIndex]:
    """The cells of a region's store files together, as `merge.merged` yields them: one cell of each key, markers too.

    Leaves out cells whose own TTL has expired at the moment `alive_ms`; with None, leaves out no cell. `wanted` chooses
    the files to read. `count` is called with the number of bytes read. `newest`: more cells of these rows, in order, as
    if they were in another file, the newest one. Raises the errors of `StoreFile.open`.
    """
    opened = [(file, hfile) for file in region.files if wanted(hfile := file.open(files, count))]
    opened.sort(key=lambda pair: pair[0].sequence(pair[1]))
    stored: list[Iterable[StoredCells]] = [_stored_cells(file, hfile, region) for file, hfile in opened]
    stored.append(newest)
    yield from merged(stored if alive_ms is None else [alive(batches, alive_ms) for batches in stored])


def _stored_cells(file: StoreFile, hfile: HFile, region: SnapshotRegion) -> Iterator[StoredCells]:
    """The cells of an opened store file that belong to the region's rows."""
    start, stop = common_rows(file.start, file.stop, region.start, region.end)
    if stop and start >= stop:
        return
    number = file.bulk_sequence
    for found in hfile.batches(start, stop):
        yield found if number is None else replace(found, sequence=np.full(len(found), number, np.int64))


def common_rows(start: bytes, stop: bytes, other_start: bytes, other_stop: bytes) -> tuple[bytes, bytes]:
    """The rows that two ranges have in common; b"" as a stop is no border."""
    return max(start, other_start), min(stop, other_stop) if stop and other_stop else stop or other_stop


def rows_inside(files: FileSystem, region: SnapshotRegion, part_bytes: int) -> list[bytes]:
    """Rows that cut a region into parts with about `part_bytes` of store files each, by the index of its biggest file;
    none if the region has no more bytes than that."""
    parts = -(-sum(file.size for file in region.files) // part_bytes)
    if parts < 2:
        return []
    biggest = max(region.files, key=lambda file: file.size).open(files)
    return [row for row in biggest.rows_between(parts) if row > region.start and (not region.end or row < region.end)]


def _store_file(
    root: str, table: str, region: str, family: bytes, file: pb.SnapshotRegionManifest.StoreFile
) -> StoreFile:
    name = file.name
    start = stop = b""
    if file.HasField("reference"):
        name, _, region = name.rpartition(".")
        row = _split_row(file.reference.splitkey)
        start, stop = (row, b"") if file.reference.range == pb.Reference.TOP else (b"", row)
    place = stored(table, region, name)
    if place is None:
        raise UnreadableInputError(
            f"store file {file.name} of {table} is of a kind that walferry does not know",
            file=file.name, offset=0, reason="its name is none of a store file's",
        )  # fmt: skip
    return StoreFile(family, file.name, places_of(root, family.decode(), place), file.file_size, start, stop)


def _split_row(key: bytes) -> bytes:
    return key[2 : 2 + int.from_bytes(key[:2], "big")]

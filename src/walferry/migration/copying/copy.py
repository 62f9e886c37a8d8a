"""Copy: take a FLUSH snapshot of each source table, copy its files to the target, and clone the table from it there.

The manifest is copied first: from then on, the target's cleaner treats the files as a snapshot's and keeps them
(SnapshotHFileCleaner). HFiles go to `archive/`, where the clone's links look for them, under the source table's name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from pyspark.sql import SparkSession

from walferry.apply.region_events import store_file
from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import Region, TableDescriptor
from walferry.migration.copying.copy_files import FileCopied, FileCopy, copy_files
from walferry.migration.copying.hand_over import HandOver
from walferry.migration.copying.history import load_history
from walferry.migration.schema import make_namespace, schema_text, target_schema
from walferry.replay.keeping.objects import made, plan_own, take_snapshot
from walferry.replay.log.lineage import know_snapshot
from walferry.replay.rights import lease
from walferry.run.run import Run, archive_folder, data_folder
from walferry.snapshots.manifest import SNAPSHOTS, read_manifest, region_name, size_of, stored
from walferry.spark.clients import workers
from walferry.spark.session import session_for
from walferry.storage import FileSystem, temporary

log = logging.getLogger(__name__)

_WAVE = 64
_OPEN_SECONDS = 120.0
"""how long the regions of a clone may take to open"""
_LOOK_SECONDS = 0.5
_ASKING = 8
"""how many checksums are requested at a time"""


def snapshot(run: Run, table: str) -> dict[str, Any]:
    """Take the FLUSH snapshot of a source table. Facts: its name."""

    def work() -> dict[str, Any]:
        name = run.snapshot(table)
        take_snapshot(run, name, table)
        regions = store_files(manifest_of(run, table))
        know_snapshot(run.ledger, table, regions)
        return {"snapshot": name, "regions": len(regions)}

    return run.once("snapshot", work, table)


def manifest_of(run: Run, table: str) -> pb.SnapshotDataManifest:
    """The manifest of the run's snapshot of a table, from the source's file system."""
    return read_manifest(run.source_files, run.source_root, run.snapshot(table))


def copy(run: Run, spark: Callable[[], SparkSession], table: str) -> dict[str, Any]:
    """Copy manifest and HFiles of a table's snapshot. Facts: files, bytes, and one row per file for the check.

    With `history: bulk`, load the snapshot's cells instead (`migration.copying.history`).

    Calls `spark` only if the files are large.
    """

    def work() -> dict[str, Any]:
        manifest = manifest_of(run, table)
        if run.spec.history == "bulk":
            return load_history(run, spark, table, manifest)
        session = session_for(spark, size_of(manifest), run.writing.here_bytes)
        files = files_of(run, table, manifest)
        name = run.snapshot(table)
        there = run.target_files.status(f"{run.target_root}/{SNAPSHOTS}/{name}") is not None
        plan_own(run, "target", "snapshot", name, there=there)
        _copy_manifest(run, table, name)
        made(run, "target", "snapshot", name)
        copied: list[FileCopied] = []
        started = time.monotonic()
        for begin in range(0, len(files), _WAVE):
            copied += copy_files(
                session,
                run.source_address(workers(session)),
                run.target_address(),
                files[begin : begin + _WAVE],
                tasks=workers(session) * 2,
            )
            _progress(table, len(copied), len(files), sum(c.target_bytes for c in copied), started)
        return {
            "files": len(copied),
            "bytes": sum(c.target_bytes for c in copied),
            "copied": [asdict(c) for c in copied],
        }

    return run.once("copy", work, table)


def _progress(table: str, done: int, total: int, size: int, started: float) -> None:
    elapsed = time.monotonic() - started
    eta = elapsed / done * (total - done)
    log.info(
        "Copy %s: %d/%d %.1f%%; %.1f MB; Time: %.0fs; ETA: %.0fs",
        table, done, total, 100 * done / total, size / 1e6, elapsed, eta,
    )  # fmt: skip


def _copy_manifest(run: Run, table: str, name: str) -> None:
    """Copy the snapshot's two files. The copied manifest has the schema of the clone.

    They appear among the target's snapshots at once, and as HBase's own: it lists none as long as it cannot read one.
    """
    snapshots, files = f"{run.target_root}/{SNAPSHOTS}", run.target_files
    final = f"{snapshots}/{name}"
    contents = {file: _of_snapshot(run, table, name, file) for file in ("data.manifest", ".snapshotinfo")}
    if all(_read(files, f"{final}/{file}") == content for file, content in contents.items()):
        return
    hand_over = HandOver(files, run.target_root, required=run.spec.target.security is not None)

    def give(path: str) -> None:
        status = files.status(path)
        hand_over.give(path, None if status is None else status.owner)

    def write(file: str) -> None:
        with temporary(files, folder) as begun:
            files.write(begun, [contents[file]])
            give(begun)
            files.replace(begun, f"{folder}/{file}")

    # Another manifest that is there, of a broken attempt, is not deleted: the deletion might come late.
    there = files.status(final) is not None
    folder = final if there else f"{snapshots}/.tmp/{name}"
    with suppress(FileNotFoundError, FileExistsError):  # a rename of a process that was killed came late
        files.mkdirs(folder)
        give(folder)
        with ThreadPoolExecutor(len(contents)) as threads:  # to close a small file is mostly to wait for the NameNode
            list(threads.map(write, contents))
        if not there:
            files.rename(folder, final)
    if any(_read(files, f"{final}/{file}") != content for file, content in contents.items()):
        # A master that starts empties the folder of unfinished snapshots.
        raise TransientError(f"the snapshot {name} did not arrive whole at {final}", snapshot=name, path=final)


def _of_snapshot(run: Run, table: str, name: str, file: str) -> bytes:
    """A file of the source's snapshot; the manifest with the schema of the clone."""
    content = b"".join(run.source_files.read(f"{run.source_root}/{SNAPSHOTS}/{name}/{file}"))
    if file != "data.manifest":
        return content
    manifest = pb.SnapshotDataManifest.FromString(content)
    schema = target_schema(run, table, manifest.table_schema)
    if schema == manifest.table_schema:
        return content
    manifest.table_schema.CopyFrom(schema)
    changed: bytes = manifest.SerializeToString()
    return changed


def _read(files: FileSystem, path: str) -> bytes | None:
    """The content of a small file; None if it does not exist."""
    try:
        return b"".join(files.read(path))
    except FileNotFoundError:
        return None


def files_of(run: Run, table: str, manifest: pb.SnapshotDataManifest) -> list[FileCopy]:
    """The manifest's files that must be copied, each once: a region may have the file that another region links to.

    References need no copy: their content is in the manifest.

    Raises WalferryError that names the store file if one is of a kind that cannot be copied.
    """
    listed = {
        (region_name(region.region_info), family.family_name.decode(), file.name)
        for region in manifest.region_manifests
        for family in region.family_files
        for file in family.store_files
    }
    copies: dict[str, FileCopy] = {}
    for region, family, name in sorted(listed):
        place = stored(table, region, name)
        if place is None:
            referenced, _, parent = name.rpartition(".")
            if (parent, family, referenced) in listed:  # otherwise the parent has left the manifest
                continue
            place = stored(table, parent, referenced)
        if place is None:
            raise _unknown_kind(table, name)
        file = _copy_of(run, place.table, place.region, family, place.file)
        copies.setdefault(file.target, file)
    return list(copies.values())


def _unknown_kind(table: str, name: str) -> WalferryError:
    return WalferryError(
        f"store file {name} of {table} is of a kind that walferry does not know: abort this run, run a major "
        "compaction of the table, which rewrites the file, and start over",
        table=table, file=name,
    )  # fmt: skip


def _copy_of(run: Run, table: str, region: str, family: str, file: str) -> FileCopy:
    inside = f"{region}/{family}/{file}"
    return FileCopy(
        (
            f"{data_folder(run.source_root, table)}/{inside}",
            f"{archive_folder(run.source_root, table)}/{inside}",
        ),
        f"{archive_folder(run.target_root, table)}/{inside}",
        region,
    )


def clone(run: Run, table: str) -> dict[str, Any]:
    """Create the target table from the copied snapshot, under its mapped name. Facts: regions and their borders."""

    def work() -> dict[str, Any]:
        pair = run.pair(table)
        if run.spec.history == "bulk":  # the table is there, with its cells
            return {"regions": len(run.target.regions(pair.target))}
        make_namespace(run, pair.target)
        with lease.held_leases(
            run.target.zk, [pair.target], holder=f"run {run.run_id}", request_seconds=60, wait_seconds=60,
            closed=run.target_address().zookeeper_login,
        ):  # fmt: skip
            there = run.target.table_exists(pair.target)
            plan_own(run, "target", "table", pair.target, there=there)
            if not there:
                run.target.clone_snapshot(run.snapshot(table), pair.target)
            made(run, "target", "table", pair.target)
            await_open(run, pair.target, _OPEN_SECONDS)
        return {"regions": len(run.target.regions(pair.target))}

    return run.once("clone", work, table)


def await_open(run: Run, table: str, seconds: float) -> None:
    """Wait until all regions of a target table are open. Raises TransientError after `seconds`."""
    deadline = steady_s() + seconds
    while not all(region.server for region in run.target.regions(table)):
        if steady_s() > deadline:
            raise TransientError(
                f"regions of {table} do not open at the target; check its master's log for a missing codec or "
                "coprocessor",
                table=table,
            )
        time.sleep(_LOOK_SECONDS)


def check_rows(run: Run, table: str) -> list[dict[str, Any]]:
    """The rows for the gate after the copy: one per file, one per region and one for the schema, each with both
    sides."""
    pair = run.pair(table)
    manifest = manifest_of(run, table)
    rows: list[dict[str, Any]] = []
    copied = run.done("copy", table)["copied"]
    with ThreadPoolExecutor(_ASKING) as threads:
        now = list(threads.map(lambda file: _length_and_checksum(run.target_files, file["target"]), copied))
    for file, (length, checksum) in zip(copied, now, strict=True):
        rows.append(
            {"table": table, "kind": "file", "name": file["target"].rpartition("/")[2], "region": file["region"]}
            | {"source_bytes": file["source_bytes"], "source_checksum": file["source_checksum"]}
            | {"target_bytes": length, "target_checksum": checksum}
        )
    there = sorted(run.target.regions(pair.target), key=lambda region: region.start)
    for name, start, end in borders(manifest):
        first, last = covered(there, start, end)
        rows.append(
            {
                "table": table, "kind": "region", "region": name, "name": "borders",
                "source_start": f"[{start.hex()}", "source_end": f"{end.hex()})",
                "target_start": None if first is None else f"[{first.hex()}",
                "target_end": None if last is None else f"{last.hex()})",
            }
        )  # fmt: skip
    rows.append(
        {
            "table": table, "kind": "schema", "region": "all", "name": "families",
            "source_schema": schema_text(TableDescriptor(manifest.table_schema)),
            "target_schema": schema_text(run.target.describe(pair.target)),
        }
    )  # fmt: skip
    return rows


def covered(regions: Sequence[Region], start: bytes, end: bytes) -> tuple[bytes | None, bytes | None]:
    """The start and end of the part of a row range that these regions (in order) cover, from its first row to the first
    hole. Both are None if the regions cover no part of the range; the end is None if they cover some of the range
    twice.

    The clone's regions may have been split or merged since.
    """
    inside = [one for one in regions if (not end or one.start < end) and (not one.end or start < one.end)]
    if not inside:
        return None, None
    first = max(start, inside[0].start)
    for before, after in pairwise(inside):
        if not before.end or after.start < before.end:
            return first, None
        if before.end < after.start:
            return first, before.end
    last = inside[-1].end
    return first, last if last and (not end or last < end) else end


def _length_and_checksum(files: FileSystem, path: str) -> tuple[int | None, str | None]:
    """Length and checksum of a file now; None for both if the file no longer exists."""
    try:
        status = files.status(path)
        return (None, None) if status is None else (status.length, files.checksum(path))
    except FileNotFoundError:
        return None, None


def store_files(manifest: pb.SnapshotDataManifest) -> dict[str, set[str]]:
    """The store files of the snapshot's live regions, by encoded region name."""
    return {
        region_name(region.region_info): {
            store_file(family.family_name, file.name) for family in region.family_files for file in family.store_files
        }
        for region in manifest.region_manifests
        if not region.region_info.split and not region.region_info.offline
    }


def borders(manifest: pb.SnapshotDataManifest) -> list[tuple[str, bytes, bytes]]:
    """Encoded name, start key and end key of the snapshot's live regions, in the order of start keys."""
    regions: Iterable[pb.RegionInfo] = (region.region_info for region in manifest.region_manifests)
    live = [region for region in regions if not region.split and not region.offline]
    return sorted(((region_name(r), r.start_key, r.end_key) for r in live), key=lambda border: border[1])

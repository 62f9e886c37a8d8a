"""The files of bases in the run's folder, in the layout of an HBase root.

`.hbase-snapshot/NAME/` has the manifest, which is copied last, and `archive/data/` the store files. Store files never
change, so one that is there already is skipped; several bases share it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from posixpath import dirname
from uuid import uuid4

from walferry.amounts import amount
from walferry.clock import duration, now_ms, steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.ledger.rows import Base
from walferry.moments.keeping.keep_run import KeepRun
from walferry.replay.keeping.by_copies import LEFT_MS, Stage
from walferry.replay.keeping.folder import UNFINISHED
from walferry.snapshots.manifest import SNAPSHOTS, StoreFile, read_manifest, snapshot_regions
from walferry.storage import FileSystem

log = logging.getLogger(__name__)

AT_ONCE = 4
PROGRESS_SECONDS = 30.0
_BEGUN = "begun.manifest"
"""the manifest of a base whose files may be there, for their deletion"""
_OF_SNAPSHOT = (".snapshotinfo", "data.manifest")


@dataclass(frozen=True)
class _Progress:
    """Bytes and files that are copied, of all that are to be."""

    table: str
    files: int
    bytes: int
    began_s: float

    def say(self, files: int, size: int) -> None:
        left_s = (steady_s() - self.began_s) / max(1, size) * (self.bytes - size)
        log.info(
            "base of %s: %d of %d files, %.0f of %.0f MB are in the folder, about %s left", self.table, files,
            self.files, size / 1e6, self.bytes / 1e6, duration(left_s),
        )  # fmt: skip


def store_files(root: str, manifest: pb.SnapshotDataManifest) -> dict[str, StoreFile]:
    """The store files of a snapshot below HBase's root folder, by their place in the run's folder."""
    found = {}
    for region in snapshot_regions(root, manifest):
        for file in region.files:
            found[file.paths[1].removeprefix(f"{root}/")] = file
    return found


def copy(run: KeepRun, stage: Stage, base: Base, require_turn: Callable[[], None]) -> None:
    """Copy the files of a base to the run's folder, the manifest last. `require_turn` is called before each file.

    Raises WalferryError if a file no longer exists, and the errors of either file system.
    """
    source, root = run.source_files, run.source_root
    folder = f"{SNAPSHOTS}/{base.snapshot}"
    todo = store_files(root, read_manifest(source, root, base.snapshot))
    _copy_small(source, f"{root}/{folder}/data.manifest", stage.files, f"{stage.path}/{folder}/{_BEGUN}")
    there = _there(stage, todo)
    left = {place: file for place, file in todo.items() if place not in there or there[place] != file.size}
    progress = _Progress(base.table, len(left), sum(file.size for file in left.values()), steady_s())
    done, size, said = 0, 0, steady_s()

    def one(place: str) -> int:
        require_turn()
        return _copy_file(source, stage.files, left[place], f"{stage.path}/{place}")

    with ThreadPoolExecutor(AT_ONCE, "base files") as threads:
        for copied in threads.map(one, left):
            done, size = done + 1, size + copied
            if steady_s() - said > PROGRESS_SECONDS:
                said = steady_s()
                progress.say(done, size)
    for name in _OF_SNAPSHOT:
        _copy_small(source, f"{root}/{folder}/{name}", stage.files, f"{stage.path}/{folder}/{name}")
    log.info("base %s is in the folder: %s copied, %.1f MB; %d were there", base.snapshot, amount(done, "file"),
             size / 1e6, len(todo) - done)  # fmt: skip


def _there(stage: Stage, places: Collection[str]) -> dict[str, int]:
    """The bytes of those files that the folder has. What killed processes left behind is deleted."""
    found = {}
    for folder in {dirname(place) for place in places}:
        try:
            listed = stage.files.list(f"{stage.path}/{folder}")
        except FileNotFoundError:
            continue
        for status in listed:
            found[f"{folder}/{status.name}"] = status.length
            if status.name.endswith(UNFINISHED) and now_ms() - status.modified_ms > LEFT_MS:
                stage.files.delete(status.path)
    return found


def _copy_file(source: FileSystem, target: FileSystem, file: StoreFile, path: str) -> int:
    """Copy a store file from wherever it is. Returns its bytes."""
    for there in file.paths * 2:  # it moves to the archive at any time
        status = source.status(there)
        if status is None:
            continue
        unfinished = f"{path}.{uuid4().hex}{UNFINISHED}"
        try:
            target.write(unfinished, source.read(there))
            written = target.status(unfinished)
            if written is None or written.length != status.length:
                raise TransientError(f"{there} was not copied whole; trying again", file=there)
            _put(target, unfinished, path, status.length)
            return status.length
        except FileNotFoundError:
            with suppress(Exception):
                target.delete(unfinished)
        except BaseException:
            with suppress(Exception):  # the first error says more
                target.delete(unfinished)
            raise
    raise WalferryError(f"{file.paths[0]} no longer exists, nor in archive/: was the snapshot deleted?",
                        file=file.paths[0])  # fmt: skip


def _put(files: FileSystem, unfinished: str, path: str, length: int) -> None:
    """Give a whole file its name, unless another process did."""
    there = files.status(path)
    if there is not None and there.length != length:
        files.delete(path)
    try:
        files.rename(unfinished, path)
    except FileExistsError:
        files.delete(unfinished)


def _copy_small(source: FileSystem, path: str, files: FileSystem, target: str) -> None:
    content = b"".join(source.read(path))
    unfinished = f"{target}.{uuid4().hex}{UNFINISHED}"
    files.write(unfinished, [content])
    _put(files, unfinished, target, len(content))


class BasesInFolder:
    """Which store files the copied bases have in the folder; a manifest is read once."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._known: dict[str, Mapping[str, int]] = {}

    def files_of(self, base: Base) -> Mapping[str, int]:
        """The store files of a base that was copied, by their place, with their bytes; {} if it was not. Raises
        WalferryError if somebody has deleted its manifest."""
        if base.copied_ms is None:
            return {}
        if base.snapshot not in self._known:
            manifest = read_manifest(self._stage.files, self._stage.path, base.snapshot)
            found = store_files(self._stage.path, manifest)
            self._known[base.snapshot] = {place: file.size for place, file in found.items()}
        return self._known[base.snapshot]

    def alone(self, bases: Collection[Base]) -> dict[str, int]:
        """Bytes of the files that only one of these bases has, by its snapshot; shared ones count for the newest."""
        newest = {}
        for base in sorted(bases, key=lambda one: one.complete_ms):
            newest.update(dict.fromkeys(self.files_of(base), base.snapshot))
        sizes: dict[str, int] = defaultdict(int)
        for base in bases:
            for place, size in self.files_of(base).items():
                if newest[place] == base.snapshot:
                    sizes[base.snapshot] += size
        return dict(sizes)

    def sweep(self, remaining: Collection[Base]) -> None:
        """Delete the files of bases that are not among the remaining ones, except those that these have, too."""
        files, root = self._stage.files, f"{self._stage.path}/{SNAPSHOTS}"
        names = {base.snapshot for base in remaining}
        try:
            over = [status.name for status in files.list(root) if status.name not in names]
        except FileNotFoundError:
            return  # no base was ever copied
        needed = {place for base in remaining for place in self.files_of(base)} if over else set()
        for name in over:
            for place in self._begun(name):
                if place not in needed:
                    files.delete(f"{self._stage.path}/{place}")
            files.delete(f"{root}/{name}", recursive=True)
            self._known.pop(name, None)

    def _begun(self, name: str) -> Collection[str]:
        """The store files of a base of which at least the copying has begun."""
        path = f"{self._stage.path}/{SNAPSHOTS}/{name}/{_BEGUN}"
        if self._stage.files.status(path) is None:
            return ()
        manifest = pb.SnapshotDataManifest.FromString(b"".join(self._stage.files.read(path)))
        return store_files(self._stage.path, manifest)

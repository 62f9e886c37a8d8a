"""Copy files from one cluster's file system to another's, in the executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import SparkSession

from walferry.errors import TransientError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.migration.copying.hand_over import HandOver
from walferry.spark.clients import shared_files
from walferry.spark.fan_out import fan_out, shares
from walferry.storage import FileStatus, FileSystem, temporary

log = logging.getLogger(__name__)

ATTEMPTS = 3
TEMPORARY = ".tmp"
"""HBase's folder for what is being made, below its root folder (HConstants.HBASE_TEMP_DIRECTORY): only a master that
starts empties it. The cleaner of the archive would delete what no snapshot names, and that of the snapshots what has no
.snapshotinfo in .hbase-snapshot/.tmp (HBASE-16464)."""
_AT_ONCE = 4
"""how many files a process copies at a time: to open or close a file is mostly to wait for the NameNodes"""


@dataclass(frozen=True)
class FileCopy:
    """One file to copy: from the first of `sources` that exists, to `target`."""

    sources: tuple[str, ...]
    target: str
    region: str


@dataclass(frozen=True)
class FileCopied:
    """One copied file, as both file systems report it. Checksums are HDFS's own, over the whole file."""

    target: str
    region: str
    source_bytes: int
    target_bytes: int
    source_checksum: str | None
    target_checksum: str | None
    skipped: bool
    """the target already had the whole file"""


def copy_files(
    spark: SparkSession | None, source: ClusterAddress, target: ClusterAddress, files: Sequence[FileCopy], tasks: int
) -> list[FileCopied]:
    """Copy files in parallel, except those that the target already has whole; they belong to the owner of the target's
    rootdir then. `spark`: as in `fan_out`."""

    def work(some: Sequence[FileCopy]) -> Iterator[FileCopied]:
        here, there = shared_files(source), shared_files(target)
        hand_over = HandOver(there, target.root_path, required=target.security.kerberos is not None)
        beside = f"{target.root_path.rstrip('/')}/{TEMPORARY}"
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            yield from threads.map(lambda file: copy_file(here, there, file, hand_over, beside), some)

    return fan_out(spark, work, shares(files, tasks if spark is not None else 1), what="copy files")


def copy_file(source: FileSystem, target: FileSystem, file: FileCopy, hand_over: HandOver, beside: str) -> FileCopied:
    """Copy one file, hand it over, and ask both sides for its length and checksum. Streams the file; memory: one chunk.

    `beside`: the folder for a file that takes the place of another one at the target, such as a broken attempt's.

    Raises WalferryError when the file does not exist at the source, TransientError when the copy is not whole.
    """
    for _ in range(ATTEMPTS):
        status = _find(source, file)
        checksum = source.checksum(status.path)
        there = target.status(file.target)
        skipped = there is not None and there.length == status.length
        if skipped and checksum is not None and target.checksum(file.target) != checksum:
            skipped = False
        if not skipped:
            try:
                # The same block size makes HDFS's checksums comparable. One of a local disk would be too small.
                block_size = None if checksum is None else status.block_size
                if there is None:
                    target.write(file.target, source.read(status.path), block_size=block_size)
                else:
                    with temporary(target, beside) as begun:
                        target.write(begun, source.read(status.path), block_size=block_size)
                        target.replace(begun, file.target)
            except FileNotFoundError:
                continue  # a compaction moved the source file meanwhile, or a master emptied its temporary folder
            except FileExistsError:
                continue  # an earlier attempt created it late
        there = target.status(file.target)
        if there is None or there.length != status.length:
            continue
        hand_over.give(file.target, there.owner)
        return FileCopied(
            file.target, file.region, status.length, there.length, checksum, target.checksum(file.target), skipped
        )
    raise TransientError(
        f"{file.target} could not be copied whole in {ATTEMPTS} attempts; the source is {file.sources[0]}",
        file=file.target,
    )


def _find(source: FileSystem, file: FileCopy) -> FileStatus:
    for path in file.sources:
        status = source.status(path)
        if status is not None:
            return status
    raise WalferryError(
        f"a file of the snapshot no longer exists at the source: {file.sources[0]} (nor in the archive); "
        "abort this run and start over with a new snapshot",
        file=file.sources[0],
    )

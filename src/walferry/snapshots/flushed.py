"""What a FLUSH snapshot has of the log: the cells up to a sequence number, by region and family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from walferry.snapshots.manifest import SnapshotRegion
from walferry.storage import FileSystem


@dataclass(frozen=True)
class Flushed:
    """What the store files of a snapshot's region say.

    A FLUSH snapshot flushes each region before it lists the region's files. So it has each cell of a family whose log
    sequence number is at or below the greatest MAX_SEQ_ID_KEY of the family's files, and of a family without such a
    file it lacks no older cell. (HBase itself relies on that number to skip recovered edits.)
    """

    numbers: Mapping[bytes, int]
    """by family, that greatest number; families without a flushed file are left out"""
    loaded: frozenset[str]
    """the names of files that were bulk-loaded"""


def flushed(files: FileSystem, region: SnapshotRegion) -> Flushed:
    """Read it from the region's store files. Raises the errors of `StoreFile.open`."""
    numbers: dict[bytes, int] = {}
    loaded = set[str]()
    for file in region.files:
        number = file.highest_number(file.open(files))
        if number is None:
            loaded.add(file.paths[0].rpartition("/")[2])
        else:
            numbers[file.family] = max(numbers.get(file.family, 0), number)
    return Flushed(numbers, frozenset(loaded))

"""The base from which a table is restored: which one, and what it has of each region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from walferry.clock import iso
from walferry.errors import UsageError
from walferry.hbase.descriptors import TableDescriptor
from walferry.ledger import KnownRegion, StagedFile
from walferry.ledger.rows import Base
from walferry.migration.copying.copy import store_files
from walferry.moments.restoring.log_part import BaseRegion, TableBase
from walferry.replay.log.lineage import Known
from walferry.snapshots.flushed import flushed
from walferry.snapshots.manifest import SnapshotRegion, read_manifest, snapshot_regions
from walferry.storage import FileSystem
from walferry.wal.fences import CLOCKS_APART_MS
from walferry.wal.files import Place, WalFile, parse_wal_name

OPEN_AT_ONCE = 8


@dataclass(frozen=True)
class Kept:
    """A base that was chosen, and where it and the log are read."""

    keeper: str
    """id of the run that keeps it"""
    base: Base
    alone: bool = False
    """in the keeper's folder alone: the source is lost"""
    latest: bool = False
    """all of the log in the folder is applied, also what may lack edits of other logs"""


class NoBaseError(UsageError):
    """No base of the table is old enough; facts `table`, `at_ms`."""


def choose(kept: Sequence[Kept], table: str, at_ms: int, wanted: str | None = None) -> Kept:
    """The newest base that was complete at a moment, or the `wanted` one by its snapshot's name.

    `kept`: all bases of the table, oldest first. Raises NoBaseError, and UsageError for a base that does not exist.
    """
    if not kept:
        raise NoBaseError(
            f"no run keeps bases of {table}: `walferry keep SPEC`, or the DAG hbase_keep_log, must have taken one "
            "before the moment to restore",
            table=table, at_ms=at_ms,
        )  # fmt: skip
    named = [one for one in kept if wanted in (None, one.base.snapshot)]
    if not named:
        known = ", ".join(one.base.snapshot for one in kept)
        raise UsageError(f"{table} has no base {wanted}, only {known}", table=table, base=wanted)
    before = [one for one in named if one.base.complete_ms <= at_ms]
    if not before:
        raise NoBaseError(
            f"the {'oldest ' if wanted is None else ''}base of {table}, {named[0].base.snapshot}, was complete at "
            f"{iso(named[0].base.complete_ms)}, which is after {iso(at_ms)}: choose a moment after that",
            table=table, at_ms=at_ms,
        )  # fmt: skip
    return before[-1]


@dataclass(frozen=True)
class StoredBase:
    """A base as its files show it."""

    table: TableBase
    regions: tuple[SnapshotRegion, ...]
    """by first row"""
    schema: TableDescriptor
    known: Known
    """the regions with their store files, as `lineage.trace` takes them"""


def read_base(files: FileSystem, root: str, base: Base) -> StoredBase:
    """Read a base below HBase's root folder. Raises WalferryError if its snapshot was deleted."""
    manifest = read_manifest(files, root, base.snapshot)
    schema = TableDescriptor(manifest.table_schema)
    none = dict.fromkeys((family.encode() for family in schema.families), 0)
    regions = snapshot_regions(root, manifest)
    with ThreadPoolExecutor(OPEN_AT_ONCE, thread_name_prefix="store files") as opening:
        stored = list(opening.map(lambda region: flushed(files, region), regions))
    found = {
        region.name: BaseRegion(region.start, region.region_id, none | dict(mine.numbers))
        for region, mine in zip(regions, stored, strict=True)
    }
    loaded = frozenset(name for mine in stored for name in mine.loaded)
    known = {
        (base.table, name): KnownRegion(base.table, name, frozenset(names))
        for name, names in store_files(manifest).items()
    }
    table = TableBase(base.snapshot, base.begun_ms, base.complete_ms, found, loaded)
    return StoredBase(table, tuple(regions), schema, known)


def files_after(base: Base, files: Sequence[WalFile], at_ms: int, skew_ms: int) -> list[WalFile]:
    """The files of the log that may have entries between a base and a moment.

    A WAL group that the base's fence does not name was not written to when the base was taken: its older files hold
    nothing that the base lacks.
    """
    return [file for file in files if _follows(base, file) and file.number - skew_ms <= at_ms]


def _follows(base: Base, file: WalFile) -> bool:
    first = base.fence.get(file.group)
    return file.number >= (base.begun_ms - CLOCKS_APART_MS if first is None else first)


def known_files(base: Base, staged: Iterable[StagedFile]) -> list[WalFile]:
    """The files that must be there, unless HBase has deleted one that never held a byte: those of a base's fence, and
    those that have been copied."""
    files = {f"{group}.{number}": 0 for group, number in base.fence.items()}
    return files_named(files | {file.name: file.bytes for file in staged})


def files_named(files: Mapping[str, int]) -> list[WalFile]:
    """WALs, given their names and their lengths in bytes; other names are left out."""
    named = [(name, parsed, size) for name, size in files.items() if (parsed := parse_wal_name(name)) is not None]
    return [
        WalFile(name, parsed.group, parsed.server, parsed.number, name, Place.ARCHIVED, size)
        for name, parsed, size in named
    ]

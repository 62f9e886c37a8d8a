"""`walferry wal stat`: what WAL files hold, by table and region, counted in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from walferry.errors import UsageError, WalferryError
from walferry.formats import _tally_kernels as kernels
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.security import OPEN, Security
from walferry.storage import open_file_system
from walferry.wal.files import parse_wal_name
from walferry.wal.open import open_wal_at

OLD_MS = 60_000
"""A cell counts as old if its timestamp is more than this before its write time: a client set the timestamp."""
_REMEMBERED = 1 << 22
"""puts that are remembered to notice ties: 32 MiB"""

T = TypeVar("T")


@dataclass(frozen=True)
class RegionStat:
    """What was written to one region, or to one table (`region` is empty then). Times in ms, counts of cells."""

    table: str
    region: str
    entries: int
    """markers included"""
    cells: int
    """of users; markers not included"""
    bytes: int
    puts: int
    deletes: int
    """of one version of a column"""
    delete_family_versions: int
    delete_columns: int
    delete_families: int
    ties: int
    """puts with the row, column and timestamp of an earlier one, which they replace: at least so many, since an
    earlier one may be forgotten when millions of others were seen in between"""
    old: int
    """cells with a timestamp more than a minute before their write time"""
    first_write_ms: int
    last_write_ms: int
    first_sequence: int
    last_sequence: int
    markers: dict[str, int]
    """by kind: flush, compaction, region_open, region_close, bulk_load, replication, unknown"""


_COUNTED = [field.name for field in fields(RegionStat)][2:-1]
"""in the order of the kernel's counts"""


@dataclass(frozen=True)
class FileStat:
    """One file as it was read."""

    path: str
    bytes: int
    """up to the end of the last whole entry, or to the end of a whole file"""
    problem: str
    """why it was not read to a proper end; empty for a whole file"""
    exit_code: int
    """0 whole, 3 unfinished, 4 damaged or of a kind that cannot be read, 1 cannot be opened, 2 its key is missing or
    wrong"""


@dataclass(frozen=True)
class WalStat:
    """What some files hold."""

    files: tuple[FileStat, ...]
    tables: tuple[RegionStat, ...]
    regions: tuple[RegionStat, ...]

    @property
    def exit_code(self) -> int:
        """The worst of the files'."""
        return max((file.exit_code for file in self.files), default=0)

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def stat(
    paths: Sequence[str],
    progress: Callable[[Sequence[str]], Iterable[str]] = lambda files: files,
    security: Security = OPEN,
) -> WalStat:
    """Read every file once and count what it holds.

    A path is local, or a webhdfs:// or swebhdfs:// URL, of a file or of a folder. In a folder, and in the region
    servers' folders in it, the files with names of user tables' WALs count. Everything before the end or the damage of
    a file is counted. `progress` is called with the files and returns them one by one; `security`: who to be to a
    secured HDFS, and how the servers of swebhdfs:// URLs are checked. Raises UsageError for a URL of an unknown kind
    and for a folder without WALs, FileNotFoundError for a path that does not exist.
    """
    counts = _Counts()
    found = [file for path in paths for file in _files(path, security)]
    files = tuple(_read(path, counts, security) for path in progress(found))
    regions = counts.regions()
    names = dict.fromkeys(region.table for region in regions)
    tables = tuple(_sum([region for region in regions if region.table == name]) for name in names)
    return WalStat(files, tables, tuple(regions))


def _files(path: str, security: Security) -> list[str]:
    """The path itself; for a folder, the paths of the WAL files in it."""
    file_system, place = open_file_system(path, security=security)
    status = file_system.status(place)
    if status is None:
        raise FileNotFoundError(2, "no such file or folder", path)
    if not status.is_dir:
        return [path]
    found = []
    for item in file_system.list(place):
        here = f"{path.rstrip('/')}/{item.name}"
        if item.is_dir:
            inside = file_system.list(f"{place.rstrip('/')}/{item.name}")
            found += [f"{here}/{file.name}" for file in inside if not file.is_dir and parse_wal_name(file.name)]
        elif parse_wal_name(item.name):
            found.append(here)
    if not found:
        raise UsageError(f"{path}: no WAL of user tables in this folder, nor in the folders in it", path=path)
    return found


def _read(path: str, counts: _Counts, security: Security) -> FileStat:
    file_system, place = open_file_system(path, security=security)
    wal = open_wal_at(file_system, place, path)
    reached = 0
    try:
        for batch in wal:
            counts.add(batch)
            reached = int(batch.offset_end[-1]) if len(batch) else reached
            del batch  # free its bytes before the next ones are read
    except WalferryError as error:
        return FileStat(path, reached, str(error), error.exit_code)
    except OSError as error:
        return FileStat(path, reached, error.strerror or str(error), 1)
    if wal.unfinished is not None:
        return FileStat(path, reached, str(wal.unfinished), wal.unfinished.exit_code)
    return FileStat(path, wal.length, "", 0)


class _Counts:
    """Counts by table and region, over all files."""

    def __init__(self) -> None:
        self._groups: dict[tuple[bytes, bytes], int] = {}
        self._counts = np.zeros((64, kernels.COUNTS), np.int64)
        self._markers = np.zeros((64, kernels.MARKERS), np.int64)
        self._seen = np.zeros(_REMEMBERED, np.uint64)

    def add(self, batch: EntryBatch) -> None:
        """Count the entries of a batch."""
        if not len(batch):
            return
        pairs, which = np.unique(batch.table.astype(np.int64) << 32 | batch.region, return_inverse=True)
        names = [(batch.tables[pair >> 32], batch.regions[pair & 0xFFFFFFFF]) for pair in pairs.tolist()]
        groups = np.array([self._groups.setdefault(name, len(self._groups)) for name in names], np.int64)
        while len(self._groups) > len(self._counts):
            self._counts, self._markers = (np.concatenate([a, np.zeros_like(a)]) for a in (self._counts, self._markers))
        tables = np.array([crc32(name) for name in batch.tables], np.uint64)
        kernels.tally(
            batch.buffer, batch.start, batch.cells_start, batch.end, batch.cell_count, batch.marker, batch.write_time,
            batch.sequence_number, groups[which], tables[batch.table], self._counts, self._markers, self._seen, OLD_MS,
        )  # fmt: skip

    def regions(self) -> list[RegionStat]:
        """What was counted, by table and region."""
        return [
            _row(table.decode(), region.decode(), self._counts[number], self._markers[number])
            for (table, region), number in sorted(self._groups.items())
        ]


def _row(table: str, region: str, counts: npt.NDArray[np.int64], markers: npt.NDArray[np.int64]) -> RegionStat:
    kinds = {kind.name.lower(): int(markers[kind]) for kind in Marker if kind is not Marker.NONE and markers[kind]}
    counted = dict(zip(_COUNTED, counts.tolist(), strict=True))
    return RegionStat(table=table, region=region, markers=kinds, **counted)


def _sum(regions: Sequence[RegionStat]) -> RegionStat:
    """The row of a table from those of its regions."""

    def of(name: str) -> Any:
        values = [getattr(region, name) for region in regions]
        if name == "markers":
            return {
                kind: sum(value.get(kind, 0) for value in values) for kind in sorted({k for v in values for k in v})
            }
        if name.startswith("first_"):
            return min(values)
        return max(values) if name.startswith("last_") else sum(values)

    return RegionStat(regions[0].table, "", **{name: of(name) for name in (*_COUNTED, "markers")})

"""What a snapshot shows: its cells, chosen by rows, columns and times, without region servers and without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walferry.background import made_once
from walferry.errors import UnreadableInputError, UsageError
from walferry.formats.cells import CELL_SCHEMA, CellIndex, binary_column, number_column
from walferry.formats.hfile import HFile
from walferry.formats.resolve import ROW_SCHEMA, FamilyRules, Fate, resolve, rows_to_arrow
from walferry.hbase.descriptors import TableDescriptor
from walferry.security import OPEN, Security
from walferry.snapshots.manifest import (
    SnapshotRegion,
    cells_of,
    common_rows,
    read_info,
    read_manifest,
    rows_inside,
    snapshot_regions,
)
from walferry.storage import FileSystem, open_file_system

VIEWS = {"cells": CELL_SCHEMA, "rows": ROW_SCHEMA}


@dataclass(frozen=True)
class SnapshotQuery:
    """What is asked of a snapshot. `root`: HBase's root folder, as a URL that `open_file_system` takes."""

    root: str
    snapshot: str
    view: str = "cells"
    raw: bool = False
    """all that is stored, markers too"""
    versions: int | None = 1
    """None: all"""
    at_ms: int | None = None
    """the moment at which TTLs are judged; None: when the snapshot was taken"""
    columns: Mapping[bytes, frozenset[bytes] | None] | None = None
    """by family: qualifiers, None for all"""
    start_row: bytes = b""
    stop_row: bytes = b""
    start_ms: int | None = None
    stop_ms: int | None = None
    fields: tuple[str, ...] = tuple(CELL_SCHEMA.names)
    """columns of the view"""
    partition_bytes: int = 256 << 20
    webhdfs: str | None = None
    user: str | None = None
    security: Security = OPEN
    """who to be to a secured HDFS, instead of `user`, and how the servers of https URLs are checked"""

    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([VIEWS[self.view].field(name) for name in self.fields])

    def open(self) -> tuple[FileSystem, str]:
        """The file system of the root folder, one in each process, and its path there."""
        return _opened(self.root, self.user, self.webhdfs, self.security)

    def wants_family(self, family: bytes) -> bool:
        """Whether cells of a family are asked for."""
        return self.columns is None or family in self.columns

    def wants_file(self, file: HFile) -> bool:
        """Whether a file of a family that is asked for can change the result.

        Times rule out files only in raw reads. In other reads, a marker or a newer version from outside these times may
        hide a cell.
        """
        if not self.raw or file.time_range is None:
            return True
        least, greatest = file.time_range
        return (self.stop_ms is None or least < self.stop_ms) and (self.start_ms is None or greatest >= self.start_ms)

    def select(self, cells: CellIndex, rules: Mapping[bytes, FamilyRules], at_ms: int) -> npt.NDArray[np.bool_]:
        """Which cells of whole rows are asked for."""
        if self.raw:
            chosen = np.ones(len(cells), np.bool_)
        else:
            chosen = resolve(cells, rules, at_ms) == Fate.VISIBLE
        if self.start_ms is not None:
            chosen &= cells.timestamp >= self.start_ms
        if self.stop_ms is not None:
            chosen &= cells.timestamp < self.stop_ms
        if self.columns is not None and any(wanted is not None for wanted in self.columns.values()):
            families = binary_column(cells.buffer, cells.family_start, cells.family_length)
            qualifiers = binary_column(cells.buffer, cells.qualifier_start, cells.qualifier_length)
            for family, wanted in self.columns.items():
                if wanted is not None:
                    held = pc.is_in(qualifiers, pa.array(sorted(wanted), pa.binary()))
                    other = pc.not_equal(families, pa.scalar(family, pa.binary()))
                    chosen &= pc.or_(held, other).to_numpy(zero_copy_only=False)
        return chosen


@dataclass(frozen=True)
class SnapshotPart:
    """Rows of a region of a snapshot, resolved at `at_ms`."""

    region: SnapshotRegion
    rules: Mapping[bytes, FamilyRules]
    at_ms: int


@made_once
def _opened(root: str, user: str | None, webhdfs: str | None, security: Security) -> tuple[FileSystem, str]:
    return open_file_system(root, user=user, webhdfs=webhdfs, security=security)


def regions_asked(query: SnapshotQuery) -> tuple[str, list[SnapshotPart]]:
    """The table, and its regions that are asked for, by their first row, also those without store files.

    Raises WalferryError if the snapshot does not exist, UsageError for a family that it lacks, and
    UnreadableInputError for a family that cannot be read.
    """
    files, root = query.open()
    manifest = read_manifest(files, root, query.snapshot)
    table = TableDescriptor(manifest.table_schema)
    rules = _rules(query, table)
    at_ms = query.at_ms
    if at_ms is None:
        at_ms = read_info(files, root, query.snapshot).creation_time
    found = []
    for region in snapshot_regions(root, manifest):
        start, end = common_rows(region.start, region.end, query.start_row, query.stop_row)
        if end and start >= end:
            continue
        asked = tuple(file for file in region.files if query.wants_family(file.family))
        found.append(SnapshotPart(replace(region, start=start, end=end, files=asked), rules, at_ms))
    return table.name, found


def cut(query: SnapshotQuery, whole: SnapshotPart) -> list[SnapshotPart]:
    """Cut a region for reading: into several parts if it has more than `partition_bytes`, into none if it has no store
    files."""
    files, _ = query.open()
    region = whole.region
    if not region.files:
        return []
    borders = [region.start, *rows_inside(files, region, query.partition_bytes), region.end]
    return [replace(whole, region=replace(region, start=a, end=b)) for a, b in pairwise(borders)]


def parts_of(query: SnapshotQuery) -> list[SnapshotPart]:
    """All parts that are asked for, by their first row. Raises what `regions_asked` raises."""
    _, regions = regions_asked(query)
    return [part for region in regions for part in cut(query, region)]


def read_part(query: SnapshotQuery, part: SnapshotPart) -> Iterator[pa.RecordBatch]:
    """A part as the view shows it, in the order of HBase."""
    for cells, chosen in chosen_cells(query, part):
        if query.view == "rows":
            yield rows_to_arrow(cells, chosen, query.fields)
        else:
            yield _to_arrow(cells, np.flatnonzero(chosen), query.fields)


def chosen_cells(query: SnapshotQuery, part: SnapshotPart) -> Iterator[tuple[CellIndex, npt.NDArray[np.bool_]]]:
    """Yield groups of whole rows' cells, and which of the cells are asked for: at least one in each group."""
    files, _ = query.open()
    for cells in cells_of(files, part.region, None if query.raw else part.at_ms, wanted=query.wants_file):
        chosen = query.select(cells, part.rules, part.at_ms)
        if chosen.any():
            yield cells, chosen


def _rules(query: SnapshotQuery, table: TableDescriptor) -> dict[bytes, FamilyRules]:
    """The retention rules of the families that are asked for, limited to the number of versions that is asked for."""
    unknown = sorted((query.columns or {}).keys() - {name.encode() for name in table.families})
    if unknown:
        raise UsageError(
            f"snapshot {query.snapshot}: {table.name} has no family {unknown[0].decode('utf-8', 'replace')}"
        )
    rules = {}
    for name, family in table.families.items():
        if not query.wants_family(name.encode()):
            continue
        if family.is_mob or (family.new_version_behavior and not query.raw):
            what = "IS_MOB" if family.is_mob else "NEW_VERSION_BEHAVIOR"
            raise UnreadableInputError(
                f"snapshot {query.snapshot}: family {name} of {table.name} has {what}, which is not supported",
                file=query.snapshot, offset=0, reason=what,
            )  # fmt: skip
        kept = family.max_versions if query.versions is None else min(query.versions, family.max_versions)
        rules[name.encode()] = FamilyRules(kept, min(kept, family.min_versions), family.ttl_ms)
    return rules


def _to_arrow(cells: CellIndex, chosen: npt.NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
    columns = []
    for name in names:
        if name == "timestamp":
            columns.append(number_column(cells.timestamp[chosen]))
        elif name == "type":
            columns.append(number_column(cells.type[chosen].astype(np.int16)))
        else:
            starts, lengths = getattr(cells, f"{name}_start"), getattr(cells, f"{name}_length")
            columns.append(binary_column(cells.buffer, starts[chosen], lengths[chosen]))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([CELL_SCHEMA.field(name) for name in names]))

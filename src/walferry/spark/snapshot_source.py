"""The batch data source `hbase_snapshot`: a table's snapshot as a DataFrame, read without its region servers.

    spark.read.format("hbase_snapshot").option("snapshot", "orders-1").load("webhdfs://namenode:9870/hbase")

The path is HBase's root folder, or one that a snapshot was exported to: local, webhdfs://host:port/path, or, with the
option `webhdfs`, a plain path, or hdfs://host:port/path, whose files come directly from the data nodes, which costs
them much less. A row of the frame is a cell, CELL_SCHEMA; or, with the option `view`, a row of the table, ROW_SCHEMA.

    read_snapshot(spark, "webhdfs://namenode:9870/hbase", snapshot="orders-1")

is the same frame some seconds sooner: Spark starts a Python process for each step in which it plans a source; this is
planned by the process that asks. Options of both:

    snapshot          its name
    view              cells (default), or rows: of each row how many cells it has, and their oldest and newest timestamp
    raw               false (default): what a scan would show. true: all cells that are stored, markers too
    versions          of each column, without `raw`: a number (default 1), or all that the family keeps
    at                without `raw`: the moment, in milliseconds since the epoch, at which TTLs are judged; default:
                      when the snapshot was taken
    columns           only these, "family" or "family:qualifier", separated by commas
    start_row, stop_row  only start_row <= row < stop_row, in hexadecimal digits
    from, to          only cells with from <= timestamp < to, in milliseconds; without `raw`: of what is visible
    fields            which of the columns to make, separated by commas: what is left out costs nothing
    partition_bytes   a region with more bytes of store files is read in several partitions; default: 256 MiB
    webhdfs, user     as of the source `hbase_wal`

Rows are whole within a partition. MOB families, encrypted files, and families with NEW_VERSION_BEHAVIOR without `raw`,
are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from walferry.errors import UnreadableInputError, UsageError
from walferry.formats.cells import CELL_SCHEMA, CellIndex, binary_column, number_column
from walferry.formats.hfile import HFile
from walferry.formats.merge import alive, merged
from walferry.formats.resolve import ROW_SCHEMA, FamilyRules, Fate, resolve, rows_to_arrow
from walferry.hbase.descriptors import TableDescriptor
from walferry.snapshots import (
    SnapshotRegion,
    common_rows,
    read_info,
    read_manifest,
    regions_of,
    rows_inside,
    stored_cells,
)
from walferry.storage import FileSystem, open_file_system

OPTIONS = {
    "path", "snapshot", "view", "raw", "versions", "at", "columns", "start_row", "stop_row", "from", "to", "fields",
    "partition_bytes", "webhdfs", "user",
}  # fmt: skip
_VIEWS = {"cells": CELL_SCHEMA, "rows": ROW_SCHEMA}


@dataclass(frozen=True)
class SnapshotQuery:
    """The validated options of one read."""

    root: str
    snapshot: str
    view: str = "cells"
    raw: bool = False
    versions: int | None = 1
    """None: all"""
    at_ms: int | None = None
    columns: Mapping[bytes, frozenset[bytes] | None] | None = None
    """by family: qualifiers, None for all"""
    start_row: bytes = b""
    stop_row: bytes = b""
    start_ms: int | None = None
    stop_ms: int | None = None
    fields: tuple[str, ...] = tuple(CELL_SCHEMA.names)
    partition_bytes: int = 256 << 20
    webhdfs: str | None = None
    user: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SnapshotQuery:
        """From Spark's options, whose names are case-insensitive. Raises UsageError that names the option."""
        given = {name.lower(): value.strip() for name, value in options.items()}
        unknown = sorted(given.keys() - OPTIONS)
        if unknown:
            raise UsageError(f"hbase_snapshot has no option {unknown[0]}; it has {', '.join(sorted(OPTIONS))}")
        root = given.get("path", "").rstrip("/")
        if not root or not given.get("snapshot"):
            raise UsageError("hbase_snapshot needs HBase's root folder, load(path), and the option snapshot")
        view = given.get("view", "cells").lower()
        if view not in _VIEWS:
            raise UsageError(f"hbase_snapshot: view is {given['view']!r}; it can be {' or '.join(_VIEWS)}")
        known = _VIEWS[view].names
        fields = tuple(_names(given["fields"])) if "fields" in given else tuple(known)
        strange = [name for name in fields if name not in known]
        if strange or not fields:
            raise UsageError(f"hbase_snapshot: fields of view {view} can be {', '.join(known)}; not {strange}")
        if given.get("raw", "false").lower() not in ("true", "false"):
            raise UsageError(f"hbase_snapshot: raw is {given['raw']!r}; it can be true or false")
        return cls(
            root=root,
            snapshot=given["snapshot"],
            view=view,
            raw=given.get("raw", "false").lower() == "true",
            versions=None if given.get("versions") == "all" else _number(given, "versions", 1),
            at_ms=_number(given, "at"),
            columns=_columns(given["columns"]) if "columns" in given else None,
            start_row=_row(given, "start_row"),
            stop_row=_row(given, "stop_row"),
            start_ms=_number(given, "from"),
            stop_ms=_number(given, "to"),
            fields=fields,
            partition_bytes=_number(given, "partition_bytes") or 256 << 20,
            webhdfs=given.get("webhdfs"),
            user=given.get("user"),
        )

    def schema(self) -> StructType:
        """The columns of the frame."""
        return from_arrow_schema(pa.schema([_VIEWS[self.view].field(name) for name in self.fields]))

    def open(self) -> tuple[FileSystem, str]:
        """The file system of the root folder, and its path there."""
        return open_file_system(self.root, user=self.user, webhdfs=self.webhdfs)

    def wants_family(self, family: bytes) -> bool:
        """Whether cells of a family are asked for."""
        return self.columns is None or family in self.columns

    def wants_file(self, file: HFile) -> bool:
        """Whether a file of a family that is asked for can matter.

        By times only in raw reads: a marker, or a newer version, of another time hides what is asked for.
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


def read_snapshot(spark: SparkSession, path: str, **options: object) -> DataFrame:
    """The frame of a snapshot: see the module's docstring. An option that is None is left out.

    The manifest is read now, and not again. The session must be a classic one, not of Spark Connect.

    Raises UsageError for a wrong option, WalferryError if there is no such snapshot.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    query = SnapshotQuery.parse({"path": path, **given})
    reader = HBaseSnapshotReader(query)
    partitions = reader.partitions()
    shared = spark.sparkContext.broadcast(partitions)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(shared.value[number])

    count = len(partitions)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(read, query.schema())


class HBaseSnapshotDataSource(DataSource):
    """`spark.read.format("hbase_snapshot")`: see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "hbase_snapshot"

    def schema(self) -> StructType:
        return SnapshotQuery.parse(self.options).schema()

    def reader(self, schema: StructType) -> HBaseSnapshotReader:
        return HBaseSnapshotReader(SnapshotQuery.parse(self.options))


@dataclass
class SnapshotPartition(InputPartition):
    """Rows of a region of a snapshot, resolved at `at_ms`."""

    region: SnapshotRegion
    rules: Mapping[bytes, FamilyRules]
    at_ms: int


class HBaseSnapshotReader(DataSourceReader):
    """Reads the manifest on the driver, and each region in a task of its own."""

    def __init__(self, query: SnapshotQuery) -> None:
        self.query = query

    def partitions(self) -> Sequence[SnapshotPartition]:
        query = self.query
        files, root = query.open()
        manifest = read_manifest(files, root, query.snapshot)
        rules = self._rules(TableDescriptor(manifest.table_schema))
        at_ms = query.at_ms
        if at_ms is None:
            at_ms = read_info(files, root, query.snapshot).creation_time
        found = []
        for region in regions_of(root, manifest):
            start, end = common_rows(region.start, region.end, query.start_row, query.stop_row)
            if end and start >= end:
                continue
            asked = tuple(file for file in region.files if query.wants_family(file.family))
            if not asked:
                continue
            cut = replace(region, start=start, end=end, files=asked)
            borders = [start, *rows_inside(files, cut, query.partition_bytes), end]
            found += [SnapshotPartition(replace(cut, start=a, end=b), rules, at_ms) for a, b in pairwise(borders)]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SnapshotPartition):
            return  # Spark adds one partition of its own when `partitions` is empty
        files, _ = self.query.open()
        region = partition.region
        opened = [(file, file.open(files)) for file in region.files]
        wanted = [(file, hfile) for file, hfile in opened if self.query.wants_file(hfile)]
        wanted.sort(key=lambda pair: pair[0].sequence(pair[1]))
        stored = [stored_cells(file, hfile, region) for file, hfile in wanted]
        for cells in merged(stored if self.query.raw else [alive(batches, partition.at_ms) for batches in stored]):
            chosen = self.query.select(cells, partition.rules, partition.at_ms)
            if not chosen.any():
                continue
            if self.query.view == "rows":
                yield rows_to_arrow(cells, chosen, self.query.fields)
            else:
                yield _to_arrow(cells, np.flatnonzero(chosen), self.query.fields)

    def _rules(self, table: TableDescriptor) -> dict[bytes, FamilyRules]:
        """The retention rules of the families that are asked for, for as many versions as are."""
        asked = self.query.columns or {}
        unknown = sorted(asked.keys() - {name.encode() for name in table.families})
        if unknown:
            raise UsageError(f"hbase_snapshot: {table.name} has no family {unknown[0].decode('utf-8', 'replace')}")
        most = self.query.versions
        rules = {}
        for name, family in table.families.items():
            if not self.query.wants_family(name.encode()):
                continue
            if family.is_mob or (family.new_version_behavior and not self.query.raw):
                what = "IS_MOB" if family.is_mob else "NEW_VERSION_BEHAVIOR"
                raise UnreadableInputError(
                    f"hbase_snapshot: family {name} of {table.name} has {what}, which is not supported",
                    file=self.query.snapshot, offset=0, reason=what,
                )  # fmt: skip
            kept = family.max_versions if most is None else min(most, family.max_versions)
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


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _columns(text: str) -> dict[bytes, frozenset[bytes] | None]:
    found: dict[bytes, frozenset[bytes] | None] = {}
    for name in _names(text):
        family, separator, qualifier = name.encode().partition(b":")
        before = found.get(family, frozenset())
        found[family] = before | {qualifier} if separator and before is not None else None
    return found


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    try:
        number = int(given[name]) if name in given else default
    except ValueError:
        number = -1
    if number is not None and number < (name in ("versions", "partition_bytes")):
        raise UsageError(f"hbase_snapshot: {name} is {given[name]!r}, which is no such number")
    return number


def _row(given: Mapping[str, str], name: str) -> bytes:
    try:
        return bytes.fromhex(given.get(name, ""))
    except ValueError:
        raise UsageError(f"hbase_snapshot: {name} is {given[name]!r}, but must be hexadecimal digits") from None

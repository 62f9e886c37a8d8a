"""The batch data source `hbase_snapshot`: a table's snapshot as a DataFrame, read without its region servers.

    spark.read.format("hbase_snapshot").option("snapshot", "orders-1").load("webhdfs://namenode:9870/hbase")

The path is HBase's root folder, or the folder that a snapshot was exported to. It is a local path, or
webhdfs://host:port/path (HTTPS: swebhdfs://). With the option `webhdfs` it may also be a plain path, or
hdfs://host:port/path: those files come directly from the data nodes, which costs the data nodes much less. A row of the
frame is a cell, CELL_SCHEMA, or, with the option `view`, a row of the table, ROW_SCHEMA.

    read_snapshot(spark, "webhdfs://namenode:9870/hbase", snapshot="orders-1")

returns the same frame some seconds sooner: for a data source, Spark starts a Python process in each planning step;
`read_snapshot` plans in the calling process. Options of both:

    snapshot          the snapshot's name
    view              cells (default), or rows: for each row the number of its cells, and their oldest and newest
                      timestamp
    raw               false (default): the cells that a scan would show. true: all stored cells, markers too
    versions          without `raw`: the number of versions of each column (default 1), or all that the family keeps
    at                without `raw`: the moment, in milliseconds since the epoch, at which TTLs apply; default: the time
                      of the snapshot
    columns           only these columns, "family" or "family:qualifier", separated by commas
    start_row, stop_row  only start_row <= row < stop_row, in hexadecimal digits
    from, to          only cells with from <= timestamp < to, in milliseconds; without `raw`, only visible ones
    fields            the frame's columns to produce, separated by commas; omitted columns cost nothing
    partition_bytes   a region with more bytes of store files is read in several partitions; default: 256 MiB
    webhdfs, user, principal, keytab, ccache, tls_ca, tls_certificate, tls_key  as for the source `hbase_wal`

A row never spans two partitions. MOB families, encrypted files, and (without `raw`) families with NEW_VERSION_BEHAVIOR
are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from walferry.errors import UsageError
from walferry.security.spec import SECURITY_OPTIONS, security_of
from walferry.snapshots.reading import VIEWS, SnapshotPart, SnapshotQuery, parts_of, read_part
from walferry.spark.handing_over import HandedOver, from_driver

OPTIONS = {
    "path", "snapshot", "view", "raw", "versions", "at", "columns", "start_row", "stop_row", "from", "to", "fields",
    "partition_bytes", "webhdfs", "user", *SECURITY_OPTIONS,
}  # fmt: skip


def query_of(options: Mapping[str, str]) -> SnapshotQuery:
    """Parse Spark's options; their names are case-insensitive. Raises UsageError that names the option."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    unknown = sorted(given.keys() - OPTIONS)
    if unknown:
        raise UsageError(f"hbase_snapshot has no option {unknown[0]}; it has {', '.join(sorted(OPTIONS))}")
    root = given.get("path", "").rstrip("/")
    if not root or not given.get("snapshot"):
        raise UsageError("hbase_snapshot needs HBase's root folder, load(path), and the option snapshot")
    view = given.get("view", "cells").lower()
    if view not in VIEWS:
        raise UsageError(f"hbase_snapshot: view is {given['view']!r}; it can be {' or '.join(VIEWS)}")
    known = VIEWS[view].names
    fields = tuple(_names(given["fields"])) if "fields" in given else tuple(known)
    strange = [name for name in fields if name not in known]
    if strange or not fields:
        raise UsageError(f"hbase_snapshot: fields of view {view} can be {', '.join(known)}; not {strange}")
    if given.get("raw", "false").lower() not in ("true", "false"):
        raise UsageError(f"hbase_snapshot: raw is {given['raw']!r}; it can be true or false")
    return SnapshotQuery(
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
        security=security_of("hbase_snapshot: ", given, [root, given.get("webhdfs")]),
    )


def read_snapshot(spark: SparkSession, path: str, **options: object) -> DataFrame:
    """The frame of a snapshot: see the module's docstring. Options that are None are ignored.

    Reads the manifest now and never again. The session must be a classic one, not a Spark Connect session.

    Raises UsageError for a wrong option, and WalferryError if there is no such snapshot.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    query = query_of({"path": path, **given})
    parts = parts_of(query)
    shared, handed = spark.sparkContext.broadcast(parts), _handed(query)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handed.take()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_part(query, shared.value[number])

    count = len(parts)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(read, from_arrow_schema(query.schema()))


@dataclass
class PartPartition(InputPartition):
    """One part of the snapshot, and what its task logs in with."""

    part: SnapshotPart
    handed: HandedOver


class HBaseSnapshotDataSource(DataSource):
    """`spark.read.format("hbase_snapshot")`: see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "hbase_snapshot"

    def schema(self) -> StructType:
        return from_arrow_schema(query_of(self.options).schema())

    def reader(self, schema: StructType) -> HBaseSnapshotReader:
        return HBaseSnapshotReader(query_of(self.options))


class HBaseSnapshotReader(DataSourceReader):
    """Reads the manifest on the driver, and each part in a task of its own."""

    def __init__(self, query: SnapshotQuery) -> None:
        self.query = query

    def partitions(self) -> Sequence[InputPartition]:
        parts = parts_of(self.query)
        handed = _handed(self.query)
        return [PartPartition(part, handed) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PartPartition):  # if `partitions` is empty, Spark adds a partition of its own
            partition.handed.take()
            yield from read_part(self.query, partition.part)


def _handed(query: SnapshotQuery) -> HandedOver:
    """What tasks log in with, once this process has read the manifest."""
    return from_driver(tokens=query.security.kerberos is not None)


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
    least = int(name in ("versions", "partition_bytes"))
    if number is not None and number < least:
        raise UsageError(f"hbase_snapshot: {name} is {given[name]!r}, but must be a whole number from {least}")
    return number


def _row(given: Mapping[str, str], name: str) -> bytes:
    try:
        return bytes.fromhex(given.get(name, ""))
    except ValueError:
        raise UsageError(f"hbase_snapshot: {name} is {given[name]!r}, but must be hexadecimal digits") from None

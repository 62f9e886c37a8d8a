"""The batch data source `hbase_wal`: HBase's write-ahead logs as DataFrames.

    spark.read.format("hbase_wal").option("webhdfs", "http://namenode:9870").load("/hbase/oldWALs")

The path is a WAL file, a folder (read recursively), or several absolute paths separated by commas: local, or on HDFS
with the option `webhdfs` or as webhdfs://host:port/path. In folders, the logs of hbase:meta, of the master and of
procedures are left out. Options:

    view           cells (default): one row per cell, WAL_CELL_SCHEMA; markers are the cells of family METAFAMILY.
                   entries: one row per entry, ENTRY_SCHEMA; decodes no cells, so it is cheaper.
    tables         only these, "namespace:table" or "table", separated by commas
    from, to       only entries with from <= write_time < to, in milliseconds since the epoch
    on_unfinished  keep (default): read a file without a trailer as far as it goes. fail: refuse it.
    webhdfs        the name node's HTTP address, for paths without a scheme
    user           the HDFS user; default: the operating system's user

A damaged or unreadable file fails the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from walferry.errors import UsageError
from walferry.formats.entries import WAL_CELL_SCHEMA, entry_cells, names_column
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.storage import FileStatus, FileSystem, open_file_system
from walferry.wal.open import open_wal_at

BATCH_BYTES = 4 << 20  # of log per batch, which keeps batches small for Spark too

ENTRY_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("region", pa.string()),
        ("sequence_number", pa.int64()),
        ("write_time", pa.int64()),  # milliseconds, the region server's clock
        ("cell_count", pa.int32()),
        ("marker", pa.string()),  # FLUSH, COMPACTION, REGION_OPEN, …; null for the edits of users
        ("file", pa.string()),
        ("offset", pa.int64()),  # of the entry in the file
        ("length", pa.int64()),  # of the entry in bytes
    ]
)
SCHEMAS = {"cells": WAL_CELL_SCHEMA, "entries": ENTRY_SCHEMA}
OPTIONS = {"path", "view", "tables", "from", "to", "on_unfinished", "webhdfs", "user"}


@dataclass(frozen=True)
class WalQuery:
    """The validated options of one read. Times are milliseconds since the epoch."""

    paths: tuple[str, ...]
    view: str = "cells"
    tables: frozenset[bytes] | None = None
    start_ms: int | None = None
    stop_ms: int | None = None
    fail_on_unfinished: bool = False
    webhdfs: str | None = None
    user: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WalQuery:
        """From Spark's options, whose names are case-insensitive. Raises UsageError that names the option."""
        given = {name.lower(): value.strip() for name, value in options.items()}
        unknown = sorted(given.keys() - OPTIONS)
        if unknown:
            raise UsageError(f"hbase_wal has no option {unknown[0]}; it has {', '.join(sorted(OPTIONS))}")
        # Names of servers' folders contain commas: a path begins only at a slash or a scheme.
        paths = [part.strip() for part in re.split(r",(?=\s*(?:/|\w+://))", given.get("path", "")) if part.strip()]
        if not paths:
            raise UsageError("hbase_wal needs the path of a WAL file, or of a folder of WAL files: load(path)")
        names = (name.strip() for name in given.get("tables", "").split(","))
        tables = frozenset(name.removeprefix("default:").encode() for name in names if name)
        return cls(
            paths=tuple(paths),
            view=_choice(given, "view", ("cells", "entries")),
            tables=tables if "tables" in given else None,
            start_ms=_milliseconds(given, "from"),
            stop_ms=_milliseconds(given, "to"),
            fail_on_unfinished=_choice(given, "on_unfinished", ("keep", "fail")) == "fail",
            webhdfs=given.get("webhdfs"),
            user=given.get("user"),
        )

    def open(self, path: str) -> tuple[FileSystem, str]:
        """The file system of one of the query's paths, and the path on it."""
        if self.webhdfs and "://" not in path:
            scheme, _, address = self.webhdfs.rpartition("://")
            kind = "swebhdfs" if scheme == "https" else "webhdfs"
            path = f"{kind}://{address.rstrip('/')}/{path.lstrip('/')}"
        return open_file_system(path, user=self.user)

    def select(self, batch: EntryBatch) -> npt.NDArray[np.bool_]:
        """Which entries of a batch are wanted: by table and by their own write times."""
        chosen = np.ones(len(batch), np.bool_)
        if self.tables is not None:
            chosen &= np.array([name in self.tables for name in batch.tables], np.bool_)[batch.table]
        if self.start_ms is not None:
            chosen &= batch.write_time >= self.start_ms
        if self.stop_ms is not None:
            chosen &= batch.write_time < self.stop_ms
        return chosen


class HBaseWalDataSource(DataSource):
    """`spark.read.format("hbase_wal")`: see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "hbase_wal"

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMAS[WalQuery.parse(self.options).view])

    def reader(self, schema: StructType) -> HBaseWalReader:
        return HBaseWalReader(WalQuery.parse(self.options))


@dataclass
class WalPartition(InputPartition):
    """One WAL file, by a path that the query can open. A file cannot be split: entries have no sync markers."""

    path: str


class HBaseWalReader(DataSourceReader):
    """Lists the files on the driver, reads each in a task of its own."""

    def __init__(self, query: WalQuery) -> None:
        self.query = query

    def partitions(self) -> Sequence[WalPartition]:
        found: dict[str, None] = {}
        for path in self.query.paths:
            files, place = self.query.open(path)
            status = files.status(place)
            if status is None:
                raise UsageError(f"hbase_wal: there is no {path}", path=path)
            listed = _wals_below(files, place) if status.is_dir else [place]
            # Listed files are named like the given path: with the URL's host, but without one on a local disk.
            host = "" if path.startswith("file:") else path.removesuffix(place)
            found |= {host + name: None for name in listed}
        return [WalPartition(path) for path in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, WalPartition):
            return  # Spark adds one partition of its own when `partitions` is empty
        path = partition.path
        files, place = self.query.open(path)
        wal = open_wal_at(files, place, path, batch_bytes=BATCH_BYTES)
        for batch in wal:
            chosen = self.query.select(batch)
            if not chosen.any():
                continue
            if self.query.view == "cells":
                yield entry_cells(batch, path, chosen)
            else:
                yield entries_to_arrow(batch.take(np.flatnonzero(chosen)), path)
        if self.query.fail_on_unfinished and wal.unfinished is not None:
            raise wal.unfinished


def entries_to_arrow(batch: EntryBatch, file: str) -> pa.RecordBatch:
    """The entries of a batch as ENTRY_SCHEMA."""
    kinds = pa.array([None if kind is Marker.NONE else kind.name for kind in Marker], pa.string())
    columns = [
        names_column(batch.tables, batch.table),
        names_column(batch.regions, batch.region),
        pa.array(batch.sequence_number),
        pa.array(batch.write_time),
        pa.array(batch.cell_count),
        kinds.take(pa.array(np.searchsorted(np.array(Marker), batch.marker))),
        pa.repeat(pa.scalar(file), len(batch)),
        pa.array(batch.offset),
        pa.array(batch.offset_end - batch.offset),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)


def _wals_below(files: FileSystem, folder: str) -> list[str]:
    found: list[str] = []
    for status in files.list(folder):
        if status.is_dir:
            try:
                found += _wals_below(files, status.path)
            except FileNotFoundError:
                continue  # a server's folder was renamed or deleted between the two listings
        elif _is_users(status):
            found.append(status.path)
    return found


def _is_users(status: FileStatus) -> bool:
    name = status.name
    return not (name.startswith((".", "pv2-")) or name.endswith((".meta", "$masterlocalwal$")))


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = given.get(name, choices[0]).lower()
    if value not in choices:
        raise UsageError(f"hbase_wal: {name} is {value!r}; it can be {' or '.join(choices)}")
    return value


def _milliseconds(given: Mapping[str, str], name: str) -> int | None:
    try:
        return int(given[name]) if name in given else None
    except ValueError:
        message = f"hbase_wal: {name} is {given[name]!r}, but must be whole milliseconds since the epoch"
        raise UsageError(message) from None

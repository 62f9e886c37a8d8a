"""Shared by the batch and stream sources of `hbase_wal`: options, schemas, entries as Arrow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.errors import UsageError
from walferry.formats.entries import WAL_CELL_SCHEMA, entry_cells, names_column
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.storage import FileSystem, open_file_system

BATCH_BYTES = 4 << 20  # of log per batch, which keeps batches small for Spark too

ENTRY_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("region", pa.string()),
        ("sequence_number", pa.int64()),
        ("write_time", pa.int64()),  # milliseconds, the region server's clock
        ("cell_count", pa.int32()),
        ("marker", pa.string()),  # FLUSH, COMPACTION, REGION_OPEN, …; null for users' edits
        ("file", pa.string()),
        ("offset", pa.int64()),  # of the entry in the file
        ("length", pa.int64()),  # of the entry in bytes
    ]
)
SCHEMAS = {"cells": WAL_CELL_SCHEMA, "entries": ENTRY_SCHEMA}
BATCH_OPTIONS = {"from", "to", "on_unfinished"}
STREAM_OPTIONS = {"starting", "max_bytes_per_trigger", "max_files_per_trigger"}
OPTIONS = {"path", "view", "tables", "webhdfs", "user"} | BATCH_OPTIONS | STREAM_OPTIONS


@dataclass(frozen=True)
class WalQuery:
    """The validated options of one read, or of one stream. Times are milliseconds since the epoch."""

    paths: tuple[str, ...]
    view: str = "cells"
    tables: frozenset[str] | None = None
    start_ms: int | None = None
    stop_ms: int | None = None
    fail_on_unfinished: bool = False
    from_latest: bool = False
    max_bytes: int | None = None
    max_files: int | None = None
    webhdfs: str | None = None
    user: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool | None = None) -> WalQuery:
        """Parse Spark's options; their names are case-insensitive. Raises UsageError that names the option.

        `stream`: True refuses the options of batches, False those of streams, None neither (Spark only asks for the
        schema).
        """
        given = {name.lower(): value.strip() for name, value in options.items()}
        unknown = sorted(given.keys() - OPTIONS)
        if unknown:
            raise UsageError(f"hbase_wal has no option {unknown[0]}; it has {', '.join(sorted(OPTIONS))}")
        if stream is not None:
            _refuse(given, BATCH_OPTIONS if stream else STREAM_OPTIONS, stream)
        # Servers' folder names contain commas, so a path begins only at a slash or a scheme.
        paths = [part.strip() for part in re.split(r",(?=\s*(?:/|\w+://))", given.get("path", "")) if part.strip()]
        if not paths:
            raise UsageError("hbase_wal needs the path of a WAL file, or of a folder of WAL files: load(path)")
        if stream and len(paths) > 1:
            raise UsageError("hbase_wal: the path of a stream is one folder, HBase's root folder", path=given["path"])
        names = (name.strip() for name in given.get("tables", "").split(","))
        tables = frozenset(name.removeprefix("default:") for name in names if name)
        return cls(
            paths=tuple(paths),
            view=_choice(given, "view", ("cells", "entries")),
            tables=tables if "tables" in given else None,
            start_ms=_milliseconds(given, "from"),
            stop_ms=_milliseconds(given, "to"),
            fail_on_unfinished=_choice(given, "on_unfinished", ("keep", "fail")) == "fail",
            from_latest=_choice(given, "starting", ("earliest", "latest")) == "latest",
            max_bytes=_limit(given, "max_bytes_per_trigger"),
            max_files=_limit(given, "max_files_per_trigger"),
            webhdfs=given.get("webhdfs"),
            user=given.get("user"),
        )

    def open(self, path: str) -> tuple[FileSystem, str]:
        """The file system of one of the query's paths, and the path on it."""
        return open_file_system(path, user=self.user, webhdfs=self.webhdfs)

    def select(self, batch: EntryBatch) -> npt.NDArray[np.bool_]:
        """Which entries of a batch match the query's tables and write times."""
        chosen = np.ones(len(batch), np.bool_)
        if self.tables is not None:
            chosen &= batch.of_tables(self.tables)
        if self.start_ms is not None:
            chosen &= batch.write_time >= self.start_ms
        if self.stop_ms is not None:
            chosen &= batch.write_time < self.stop_ms
        return chosen

    def to_arrow(self, batch: EntryBatch, file: str) -> pa.RecordBatch | None:
        """A batch's entries that match the query, in the query's view; None if there are none."""
        chosen = self.select(batch)
        if not chosen.any():
            return None
        if self.view == "cells":
            return entry_cells(batch, file, chosen)
        return entries_to_arrow(batch.take(np.flatnonzero(chosen)), file)


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


def _limit(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    if not (given[name].isascii() and given[name].isdecimal() and int(given[name]) > 0):
        raise UsageError(f"hbase_wal: {name} is {given[name]!r}, but must be a whole number above 0")
    return int(given[name])


def _refuse(given: Mapping[str, str], options: set[str], stream: bool) -> None:
    for name in sorted(options & given.keys()):
        if stream:
            raise UsageError(
                f"hbase_wal: {name} is an option of spark.read only; a stream begins at its option `starting`, and "
                "reads open files as far as they go"
            )
        raise UsageError(f"hbase_wal: {name} is an option of spark.readStream only")

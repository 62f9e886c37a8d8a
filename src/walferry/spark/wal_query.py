"""Shared by the batch and stream sources of `hbase_wal` and `hbase_changes`: options, schemas, entries as Arrow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.errors import UsageError, WalferryError
from walferry.formats.changes import CHANGE_SCHEMA, entry_changes
from walferry.formats.entries import WAL_CELL_SCHEMA, entry_cells, names_column
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.security import OPEN, Security
from walferry.security.spec import SECURITY_OPTIONS, security_of
from walferry.spark.handing_over import HandedOver, from_driver
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
VIEWS = {"hbase_wal": ("cells", "entries"), "hbase_changes": ("changes",)}
SCHEMAS = {"cells": WAL_CELL_SCHEMA, "entries": ENTRY_SCHEMA}
BATCH_OPTIONS = {"from", "to", "on_unfinished"}
STREAM_OPTIONS = {"starting", "max_bytes_per_trigger", "max_files_per_trigger"}
_COMMON = {"path", "tables", "webhdfs", "user", *SECURITY_OPTIONS} | BATCH_OPTIONS | STREAM_OPTIONS
OPTIONS = {"hbase_wal": _COMMON | {"view"}, "hbase_changes": _COMMON | {"fields"}}


@dataclass(frozen=True)
class WalQuery:
    """The validated options of one read, or of one stream. Times are milliseconds since the epoch."""

    paths: tuple[str, ...]
    source: str = "hbase_wal"
    view: str = "cells"
    fields: tuple[str, ...] = tuple(CHANGE_SCHEMA.names)  # of the view of changes
    tables: frozenset[str] | None = None
    start_ms: int | None = None
    stop_ms: int | None = None
    fail_on_unfinished: bool = False
    from_latest: bool = False
    max_bytes: int | None = None
    max_files: int | None = None
    webhdfs: str | None = None
    user: str | None = None
    security: Security = OPEN

    @classmethod
    def parse(cls, options: Mapping[str, str], source: str = "hbase_wal", *, stream: bool | None = None) -> WalQuery:
        """Parse Spark's options of a data source; their names are case-insensitive. Raises UsageError that names the
        option.

        `stream`: True refuses the options of batches, False those of streams, None neither (Spark only asks for the
        schema).
        """
        given = {name.lower(): value.strip() for name, value in options.items()}
        unknown = sorted(given.keys() - OPTIONS[source])
        if unknown:
            raise UsageError(f"{source} has no option {unknown[0]}; it has {', '.join(sorted(OPTIONS[source]))}")
        if stream is not None:
            _refuse(source, given, BATCH_OPTIONS if stream else STREAM_OPTIONS, stream)
        # Servers' folder names contain commas, so a path begins only at a slash or a scheme.
        paths = [part.strip() for part in re.split(r",(?=\s*(?:/|\w+://))", given.get("path", "")) if part.strip()]
        if not paths:
            raise UsageError(f"{source} needs the path of a WAL file, or of a folder of WAL files: load(path)")
        if stream and len(paths) > 1:
            raise UsageError(f"{source}: the path of a stream is one folder, HBase's root folder", path=given["path"])
        tables = frozenset(name.removeprefix("default:") for name in _names(given, "tables"))
        return cls(
            paths=tuple(paths),
            source=source,
            view=_choice(source, given, "view", VIEWS[source]),
            fields=_fields(source, given),
            tables=tables if "tables" in given else None,
            start_ms=_milliseconds(source, given, "from"),
            stop_ms=_milliseconds(source, given, "to"),
            fail_on_unfinished=_choice(source, given, "on_unfinished", ("keep", "fail")) == "fail",
            from_latest=_choice(source, given, "starting", ("earliest", "latest")) == "latest",
            max_bytes=_limit(source, given, "max_bytes_per_trigger"),
            max_files=_limit(source, given, "max_files_per_trigger"),
            webhdfs=given.get("webhdfs"),
            user=given.get("user"),
            security=security_of(f"{source}: ", given, [*paths, given.get("webhdfs")]),
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the query's view."""
        if self.view == "changes":
            return pa.schema([CHANGE_SCHEMA.field(name) for name in self.fields])
        return SCHEMAS[self.view]

    def open(self, path: str) -> tuple[FileSystem, str]:
        """The file system of one of the query's paths, and the path on it."""
        return open_file_system(path, user=self.user, webhdfs=self.webhdfs, security=self.security)

    def handed(self) -> HandedOver:
        """What the tasks of the query need: tokens of its paths' name nodes, and where these are."""
        for path in self.paths:
            self.open(path)  # the process that plans a stream's batch need not have read anything
        return from_driver(tokens=self.security.kerberos is not None)

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
        """A batch's entries that match the query, in the query's view; None if there are none.

        The view of changes has only edits, and raises WalferryError for markers of unknown kinds, and what
        `entry_changes` raises.
        """
        chosen = self.select(batch)
        if self.view == "changes":
            _refuse_unknown(batch, chosen, file)
        if not chosen.any():
            return None
        if self.view == "changes":
            return entry_changes(batch, file, chosen, self.fields)
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


def _refuse_unknown(batch: EntryBatch, chosen: npt.NDArray[np.bool_], file: str) -> None:
    found = np.flatnonzero(chosen & batch.of_kinds({Marker.UNKNOWN}))
    if len(found):
        table, region = batch.table_and_region(found[0])
        offset = int(batch.offset[found[0]])
        raise WalferryError(
            f"{file}: the entry at byte {offset}, of region {region} of table {table}, is a marker of a kind that this "
            "version of walferry does not know: it may stand for changes. hbase_wal shows it; the option tables of "
            "hbase_changes leaves out the table",
            file=file,
            offset=offset,
            table=table,
        )


def _names(given: Mapping[str, str], option: str) -> list[str]:
    return [name.strip() for name in given.get(option, "").split(",") if name.strip()]


def _fields(source: str, given: Mapping[str, str]) -> tuple[str, ...]:
    known = CHANGE_SCHEMA.names
    fields = tuple(dict.fromkeys(_names(given, "fields"))) if "fields" in given else tuple(known)
    strange = [name for name in fields if name not in known]
    if strange or not fields:
        raise UsageError(f"{source}: fields can be {', '.join(known)}; not {strange}")
    return fields


def _choice(source: str, given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = given.get(name, choices[0]).lower()
    if value not in choices:
        raise UsageError(f"{source}: {name} is {value!r}; it can be {' or '.join(choices)}")
    return value


def _milliseconds(source: str, given: Mapping[str, str], name: str) -> int | None:
    try:
        return int(given[name]) if name in given else None
    except ValueError:
        message = f"{source}: {name} is {given[name]!r}, but must be whole milliseconds since the epoch"
        raise UsageError(message) from None


def _limit(source: str, given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    if not (given[name].isascii() and given[name].isdecimal() and int(given[name]) > 0):
        raise UsageError(f"{source}: {name} is {given[name]!r}, but must be a whole number above 0")
    return int(given[name])


def _refuse(source: str, given: Mapping[str, str], options: set[str], stream: bool) -> None:
    for name in sorted(options & given.keys()):
        if stream:
            raise UsageError(
                f"{source}: {name} is an option of spark.read only; a stream begins at its option `starting`, and "
                "reads open files as far as they go"
            )
        raise UsageError(f"{source}: {name} is an option of spark.readStream only")

"""The files of a history: rows are gathered by table and hour, and written in Parquet, under hidden names at first.

Paths are relative to the history's folder.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from walferry.storage import FileSystem
from walferry.streams.history.rows import CHANGES, events_table

BEGUN = "_begun"
"""the folder of files that no commit names yet, with the number of their commit first in their names"""
EVENTS_FOLDER = "_events"
TABLE_FOLDERS = "table="
"""what the folders of changes begin with"""
_HOUR_MS = 3_600_000
_REPEATED = [field.name for field in CHANGES if pa.types.is_dictionary(field.type)] + ["row", "qualifier", "kind"]
"""columns of few values"""
_LAST_MS = 253_402_300_799_999
_NAME = re.compile(r"(\d{20})-\d{4,}\.parquet")


@dataclass(frozen=True)
class DataFile:
    """A file of a commit."""

    path: str
    """where readers find it"""
    begun: str
    """where it is until the commit is recorded"""
    bytes: int
    rows: int


class Gathered:
    """Rows in memory, and files that some of them were written to. Not thread-safe."""

    def __init__(self) -> None:
        self._changes: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        """by the folder that they belong into"""
        self._events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.files: list[DataFile] = []
        self.bytes = 0
        """of the rows in memory"""

    def __bool__(self) -> bool:
        return bool(self.files or self._changes or self._events)

    def add(self, cells: pa.RecordBatch) -> None:
        """Add changes, as CHANGES."""
        for folder, some in _by_folder(cells):
            self._changes[folder].append(some)
        self.bytes += cells.nbytes

    def add_event(self, row: dict[str, Any], now_ms: int) -> None:
        """Add an event. Where the log does not tell its time, it is filed under the present."""
        time_ms = now_ms if row["write_time"] is None else row["write_time"] // 1000
        self._events[f"{EVENTS_FOLDER}/date={_utc(time_ms):%Y-%m-%d}"].append(row)
        self.bytes += len(row["json"])

    def add_no_event(self, now_ms: int) -> None:
        """Add a file without an event, so that who looks for such files finds one."""
        self._events[f"{EVENTS_FOLDER}/date={_utc(now_ms):%Y-%m-%d}"] += []

    def take(self, other: Gathered) -> None:
        """Add all that another one has, which has nothing then."""
        for folder, some in other._changes.items():
            self._changes[folder] += some
        for folder, rows in other._events.items():
            self._events[folder] += rows
        self.files += other.files
        self.bytes += other.bytes
        other._clear()
        other.files = []

    def write(self, files: FileSystem, root: str, commit: int, first: int, sink: str, facts: Mapping[str, str]) -> int:
        """Write the rows in memory to files of a commit; none of them has its final name. `first`: the number of the
        first file. `sink`: its id. `facts`: what each file has in its metadata. Returns the next number."""
        tables = {folder: _changes_table(some) for folder, some in self._changes.items()}
        tables |= {folder: events_table(rows) for folder, rows in self._events.items()}
        for number, (folder, table) in enumerate(tables.items(), first):
            content = _parquet(table, facts)
            one = DataFile(
                f"{folder}/{commit:020}-{number:04}.parquet", f"{begun_by(sink, commit)}-{number:04}", len(content),
                len(table),
            )  # fmt: skip
            files.write(f"{root}/{one.begun}", [content])
            self.files.append(one)
        self._clear()
        return first + len(tables)

    def _clear(self) -> None:
        self._changes.clear()
        self._events.clear()
        self.bytes = 0


def begun_by(sink: str, commit: int) -> str:
    """Where a sink begins the files of a commit: what their paths begin with."""
    return f"{BEGUN}/{commit:020}-{sink}"


def files_between(files: FileSystem, folder: str, after: int, until: int) -> Iterator[tuple[int, str]]:
    """The files below a folder of commits after one number and up to another: the commit's number, and the path.

    Files have such names only once their commit is recorded.
    """
    for status in files.list(folder):
        if status.is_dir:
            yield from files_between(files, status.path, after, until)
        elif (found := _NAME.fullmatch(status.name)) and after < int(found[1]) <= until:
            yield int(found[1]), status.path


def _by_folder(cells: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by table and hour, in their order."""
    if not len(cells):
        return
    codes = cells["table"].indices.to_numpy()
    hours = cells["_commit_timestamp"].cast(pa.int64()).to_numpy() // (1000 * _HOUR_MS)
    names = cells["table"].dictionary.to_pylist()
    for code, hour in np.unique(np.stack([codes.astype(np.int64), hours]), axis=1).T.tolist():
        mine = (codes == code) & (hours == hour)
        some = cells if mine.all() else cells.filter(pa.array(mine))
        folder = f"{TABLE_FOLDERS}{quote(names[code], safe='')}/{_utc(hour * _HOUR_MS):date=%Y-%m-%d/hour=%H}"
        yield folder, some


def _utc(time_ms: int) -> datetime:
    """A time; one before 1970 or after 9999, as a broken clock may have it, is the first or the last of these."""
    return datetime.fromtimestamp(min(max(time_ms, 0), _LAST_MS) // 1000, UTC)


def _changes_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, CHANGES).unify_dictionaries()


def _parquet(table: pa.Table, facts: Mapping[str, str]) -> pa.Buffer:
    """A file of these rows: zstd, without Arrow's schema, so that each reader has the names as strings."""
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out, table.schema, compression="zstd", use_dictionary=_REPEATED, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({f"walferry.{name}": value for name, value in facts.items()})
    return out.getvalue()

"""Look up the edits of differing rows in the WALs, in one pass: in the executors, or in this process if the files are
small.

This reads only files past the start fence that can hold such edits: the ledger has counted cells of the table in the
file, or has not counted the file yet. A file's write times and regions do not rule it out: applications may set any
timestamp, and a row's region may have been on any server.

Each file is read once for all rows. The edits found go to the partitions of their rows, which keep a bounded amount per
row, and the driver gets one result per row. So no process holds more than its rows' share. If the driver reads the
files itself, it holds the edits found in all of these files.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from walferry.errors import DamagedInputError, GapError, WalferryError
from walferry.formats.cells import binary_column, cells_to_arrow
from walferry.formats.entries import index_entry_cells
from walferry.hbase.address import ClusterAddress
from walferry.migration.explaining.difference_classes import RowLog
from walferry.migration.sides.row_sides import Bounds, Cell, Compressed, Question, Room, cells_of
from walferry.replay.log.cut import as_listed
from walferry.run.facts import fence_facts
from walferry.run.run import Run
from walferry.spark.clients import shared_log_files, workers
from walferry.spark.fan_out import fan_out, job
from walferry.spark.handing_over import handed_back, handing_over
from walferry.spark.session import session_for
from walferry.wal.files import Place, WalFile, list_wals
from walferry.wal.open import Until, edits_of, open_wal

_EDITS_PER_PARTITION = 100_000
_QUESTIONS_AT_ONCE = 1_000
_CELLS_AT_ONCE = 1_000
_OPEN_BYTES = 128 << 20
"""the assumed size of an open file: the NameNode lists it with length 0, and HBase usually rolls it at this size"""
_UNREAD, _GONE, _FAILED = -1, -2, -3
"""in place of a row's number: why a file could not be read, an applied file that no longer exists, an error to raise"""
_FOUND = pa.schema([("row", pa.int32()), ("found", pa.binary())])
_FOUND_DDL = "row int, found binary"


@dataclass(frozen=True)
class _Lookup:
    """What to look for, and where."""

    source: ClusterAddress
    table: str
    files: tuple[WalFile, ...]
    applied: frozenset[str]
    """names of the files whose edits are at the target"""
    rows: tuple[bytes, ...]
    questions: tuple[Compressed[Question], ...]
    """one for each row"""
    left_out: frozenset[tuple[str, int]]
    """(file, offset) of entries that an operator left out"""
    nothing: RowLog
    """for a row that no file holds"""
    bounds: Bounds


@dataclass(frozen=True)
class RowLogs:
    """The log's edits of each row that was looked up."""

    nothing: RowLog
    found: Mapping[bytes, Compressed[RowLog]]

    def of(self, row: bytes) -> RowLog:
        """The log's edits of a row."""
        if row not in self.found:
            return self.nothing
        return replace(self.found[row].value(), unread=self.nothing.unread, let_go=self.nothing.let_go)


def look_up(
    run: Run,
    spark: Callable[[], SparkSession],
    table: str,
    questions: Mapping[bytes, Compressed[Question]],
    applied: set[str],
    until_ms: int,
    bounds: Bounds,
) -> RowLogs:
    """Look up the edits of these rows in the WAL files past the start fence; `applied` names the files whose edits are
    at the target.

    `until_ms`: the latest timestamp that the source's clock can have given to a cell that differs. `bounds`: how many
    edits are kept of a row; a row with more has `too_many`. Calls `spark` if the files are large, which raises
    NoSparkError if there is no Spark.
    """
    loaded = table in run.ledger.late.rejected_loads()
    nothing = RowLog(fence_facts(run, "start").at_ms, until_ms, late_load=loaded)
    files = _files(run, table, applied) if questions else []
    if not files:
        return RowLogs(nothing, {})
    released = run.ledger.quarantine.items("released")
    left_out = {(item.file, item.start) for item in released if item.resolution == "accept" and item.table == table}
    left_out |= {edit.place for edit in run.ledger.late.all() if edit.decision == "reject" and edit.table == table}
    rows = tuple(sorted(questions))
    session = session_for(spark, _bytes_of(files), run.writing.here_bytes)
    lookup = _Lookup(
        run.source_address(workers(session)), table, tuple(files), frozenset(applied), rows,
        tuple(questions[row] for row in rows), frozenset(left_out), nothing, bounds,
    )  # fmt: skip
    found = {}
    unread = []
    let_go = False
    for number, data in _finds(session, lookup):
        result = pickle.loads(data)
        if number == _FAILED:
            handed_back(result)
        if number == _UNREAD:
            unread.append(result)
        elif number == _GONE:
            let_go = True
        else:
            found[rows[number]] = result
    return RowLogs(replace(nothing, unread=sorted(unread), let_go=let_go), found)


def log_bytes(run: Run, table: str) -> int:
    """How many bytes of log `look_up` reads for rows of a table. By this number `look_up` also decides where to
    read."""
    return _bytes_of(_files(run, table, run.ledger.log.applied_for(table)))


def _bytes_of(files: Iterable[WalFile]) -> int:
    return sum(max(file.length, _OPEN_BYTES if file.place is Place.LIVE else 0) for file in files)


def _files(run: Run, table: str, applied: set[str]) -> list[WalFile]:
    """The files that can hold rows of the table: those in the ledger, and newer ones."""
    files = {known.name: as_listed(known) for known in run.ledger.log.files()}
    fences = run.fences()
    for file in list_wals(run.wal_files, run.wal_root):
        if fences.starts_by(file):
            files.setdefault(file.name, file)
    empty = run.ledger.log.without_cells(table) & applied
    return [file for file in files.values() if file.name not in empty]


def _finds(spark: SparkSession | None, lookup: _Lookup) -> list[tuple[int, bytes]]:
    """Numbers of rows, each with its pickled Compressed[RowLog], and the reasons and errors that `_merge` passes on."""
    if spark is None:
        return _finds_here(lookup)
    shared = spark.sparkContext.broadcast(lookup)  # once per worker process, not once per task
    count = len(lookup.files)
    most = len(lookup.rows) * lookup.bounds.cells
    partitions = max(spark.sparkContext.defaultParallelism, most // _EDITS_PER_PARTITION)
    try:
        found = (
            spark.range(0, count, 1, count)
            .mapInArrow(handing_over(spark, lambda numbers: _read(shared.value, numbers)), _FOUND_DDL)
            .repartition(partitions, "row")
            .mapInArrow(lambda batches: _merge(shared.value, batches), _FOUND_DDL)
        )
        with job(spark, "look rows up in the WALs"):
            return [(item["row"], item["found"]) for item in found.collect()]
    finally:
        shared.destroy()


def _finds_here(lookup: _Lookup) -> list[tuple[int, bytes]]:
    def read(number: int) -> Iterator[pa.RecordBatch]:
        return _read(lookup, [pa.record_batch([pa.array([number])], ["id"])])

    found = fan_out(None, read, range(len(lookup.files)), what="look rows up in the WALs")
    merged = pa.Table.from_batches(_merge(lookup, found), _FOUND)
    return list(zip(merged["row"].to_pylist(), merged["found"].to_pylist(), strict=True))


# ------------------------------------------------------------------ in the executors, or here


class _Place(IntEnum):
    """Where an edit is now."""

    APPLIED = 1
    PENDING = 2
    LEFT_OUT = 3


_Edits = dict[tuple[_Place, Cell], int]
"""a row's edits in the log, each with the sequence number of its newest one"""


class _Finds:
    """Edits by the number of their row; None for a row with more edits than are kept."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._rooms: dict[int, Room] = {}
        self.edits: dict[int, _Edits | None] = {}

    def has_room(self, row: int) -> bool:
        """Whether more edits of the row may be kept."""
        return row not in self._rooms or not self._rooms[row].exhausted

    def add(self, row: int, edits: _Edits | None) -> None:
        """Keep edits of a row as long as there is room."""
        if not self.has_room(row):
            return
        kept = self.edits.get(row) or {}
        self.edits[row] = kept
        room = self._rooms.setdefault(row, self._bounds.room())
        if edits is None:
            room.cells = -1
        for edit, number in (edits or {}).items():
            if edit in kept or room.takes(edit[1]):
                kept[edit] = max(number, kept.get(edit, -1))
        if room.exhausted:
            self.edits[row] = None


def _read(lookup: _Lookup, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the numbered files and yield the rows' edits, pickled as _Edits while they are read, with reasons and
    errors."""
    try:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                file = lookup.files[number]
                try:
                    yield from _read_file(lookup, file)
                except GapError:
                    if file.name in lookup.applied:
                        yield _frame({_GONE: file.name})
                    else:
                        yield _frame({_UNREAD: f"WAL file {file.name} no longer exists at the source"})
                except DamagedInputError as error:
                    yield _frame({_UNREAD: str(error)})
    except WalferryError as error:  # passed on as a row, since Spark would turn it into a traceback
        yield _frame({_FAILED: error})


def _read_file(lookup: _Lookup, file: WalFile) -> Iterator[pa.RecordBatch]:
    rows = pa.array(lookup.rows, pa.binary())
    finds = _Finds(lookup.bounds)
    question = lru_cache(_QUESTIONS_AT_ONCE)(lambda row: lookup.questions[row].value())
    until = Until.SEALED if file.name in lookup.applied else Until.NOW
    wal = open_wal(shared_log_files(lookup.source), lookup.source.wal_path, file, until)
    for batch in wal:
        entries = edits_of(batch, lookup.table)
        cells, entry, _ = index_entry_cells(entries)
        # For nearly all cells, only the row is extracted.
        numbers = pc.index_in(binary_column(cells.buffer, cells.row_start, cells.row_length), rows)
        found = pc.is_valid(numbers).to_numpy(zero_copy_only=False).nonzero()[0]
        for start in range(0, len(found), _CELLS_AT_ONCE):
            mine = found[start : start + _CELLS_AT_ONCE]
            origins = zip(
                numbers.take(pa.array(mine)).to_pylist(),
                entries.sequence_number[entry[mine]].tolist(),
                entries.offset[entry[mine]].tolist(),
                strict=True,
            )
            for (row, sequence_number, offset), cell in zip(
                origins, cells_of(cells_to_arrow(cells.pick(mine))), strict=True
            ):
                if finds.has_room(row) and question(row).concerns(cell):
                    finds.add(row, {(_place(lookup, file, offset), cell): sequence_number})
        yield _frame(finds.edits)
        finds.edits = {}  # an edit that comes again later in the file counts twice: the bound is approximate


def _place(lookup: _Lookup, file: WalFile, offset: int) -> _Place:
    if (file.name, offset) in lookup.left_out:
        return _Place.LEFT_OUT
    return _Place.APPLIED if file.name in lookup.applied else _Place.PENDING


def _merge(lookup: _Lookup, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One pickled Compressed[RowLog] for each row of a partition; reasons and errors unchanged."""
    finds = _Finds(lookup.bounds)
    for batch in batches:
        for row, found in zip(batch["row"].to_pylist(), batch["found"].to_pylist(), strict=True):
            if row >= 0:
                finds.add(row, pickle.loads(found))
            else:
                yield _frame({row: pickle.loads(found)})
    for row, edits in finds.edits.items():
        yield _frame({row: Compressed(_row_log(lookup.nothing, edits))})


def _row_log(nothing: RowLog, edits: _Edits | None) -> RowLog:
    if edits is None:
        return replace(nothing, too_many=True)
    cells = {place: {cell: number for (at, cell), number in edits.items() if at is place} for place in _Place}
    return replace(
        nothing,
        applied=cells[_Place.APPLIED],
        pending=frozenset(cells[_Place.PENDING]),
        left_out=frozenset(cells[_Place.LEFT_OUT]),
    )


def _frame(found: Mapping[int, object]) -> pa.RecordBatch:
    pickled = [pickle.dumps(value) for value in found.values()]
    return pa.record_batch([pa.array(list(found), pa.int32()), pa.array(pickled, pa.binary())], schema=_FOUND)

"""Replay by row: cells of all groups shuffled by row and sorted by sequence number.

Right always, also across moves, splits and merges of regions, because a row's sequence numbers rise through all of
them. Costs one shuffle and, beforehand, one pass over the files to see what is in them.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from walferry.errors import DamagedInputError, WalferryError
from walferry.formats.cells import binary_column, gather, index_cells
from walferry.formats.wal import EntryBatch, Marker
from walferry.spark.items import map_items
from walferry.spark.pipe import Pipe
from walferry.spark.sealed import FileIndex, Refusal, entry_at, index_file
from walferry.spark.sender import MAX_BYTES, MAX_MUTATIONS, RefusedError, Run, Sender
from walferry.wal.files import WalFile

EVERY_REGION = "*"
"""in `RowTask.from_offset`: all regions that have no offset of their own"""


def index_files(spark: SparkSession, pipe: Pipe, files: Sequence[WalFile]) -> list[FileIndex]:
    """Read files without applying anything; one task each."""
    return map_items(spark, lambda file: [index_file(pipe.open(file), file, pipe.tables)], files)


@dataclass(frozen=True)
class RowTask:
    """Cells to apply in row order: of which files and regions, and from which offsets on."""

    pipe: Pipe
    files: tuple[WalFile, ...]
    from_offset: Mapping[tuple[str, str], int] | None = None
    """(file, region) to the offset from which its entries count; None: everything counts"""
    skipped: frozenset[tuple[str, int]] = frozenset()
    """(file, offset) of entries that stay out: quarantined ones"""
    cut_off: Mapping[str, int] = field(default_factory=dict)
    """file to the offset of damage that was accepted: nothing is read from there on"""
    held: frozenset[str] = frozenset()
    """regions that stay out"""


_ROW_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("row", pa.binary()),
        ("sequence_number", pa.int64()),
        ("index", pa.int32()),
        ("region", pa.string()),
        ("clusters", pa.binary()),
        ("write_time", pa.int64()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("cell", pa.binary()),
    ]
)
_ROW_DDL = (
    "table string, row binary, sequence_number long, index int, region string, clusters binary, "
    "write_time long, file string, offset long, cell binary"
)


@dataclass(frozen=True)
class RowsApplied:
    """What one partition of `apply_by_row` did."""

    cells: int
    refusals: tuple[Refusal, ...]


def apply_by_row(spark: SparkSession, task: RowTask, tasks: int = 4) -> RowsApplied:
    """Apply the chosen cells of all files so that each row's edits go in order.

    One shuffle: rows to partitions, within one sorted by row, sequence number and index in the entry. A row is
    in one partition, a partition has one request under way. Cells that the target refuses are reported; other
    cells of their rows may have been applied, so their regions must be applied again as a whole later.
    """
    numbers = spark.range(0, len(task.files), 1, max(1, len(task.files)))
    cells: DataFrame = numbers.mapInArrow(lambda batches: _read_rows(task, batches), _ROW_DDL)
    ordered = cells.repartition(tasks, "table", "row").sortWithinPartitions("table", "row", "sequence_number", "index")
    sent = ordered.mapInArrow(lambda batches: _send_rows(task, batches), "outcome binary")
    outcomes = [pickle.loads(row["outcome"]) for row in sent.collect()]
    for outcome in outcomes:
        if isinstance(outcome, WalferryError):
            raise outcome
    first = {refusal.region: refusal for outcome in outcomes for refusal in reversed(outcome.refusals)}
    return RowsApplied(sum(outcome.cells for outcome in outcomes), tuple(first.values()))


def _read_rows(task: RowTask, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from _read_file(task, task.files[number])
    except WalferryError as error:  # Spark would turn it into a traceback; travels on as a row of its own
        yield _failure(error)


def _read_file(task: RowTask, file: WalFile) -> Iterator[pa.RecordBatch]:
    end = task.cut_off.get(file.name)
    try:
        for entries in task.pipe.open(file):
            yield from row_cells(entries, file.name, _chosen(task, file.name, entries))
    except DamagedInputError as error:
        if end is None or error.facts["offset"] < end:
            raise


def _failure(error: WalferryError) -> pa.RecordBatch:
    """A row without a table: sorts first and is raised again by the side that sends."""
    values = [[None], [b""], [0], [0], [""], [b""], [0], [""], [0], [pickle.dumps(error)]]
    return pa.record_batch(
        [pa.array(value, kind.type) for value, kind in zip(values, _ROW_SCHEMA, strict=True)], schema=_ROW_SCHEMA
    )


def _chosen(task: RowTask, file: str, batch: EntryBatch) -> np.ndarray:
    wanted = np.array([name.decode() in task.pipe.tables for name in batch.tables] or [False])
    chosen = wanted[batch.table] & (batch.marker == Marker.NONE) & (batch.cell_count > 0)
    offsets = batch.base + batch.start
    out = np.array([name.decode() in task.held for name in batch.regions] or [False])
    chosen &= ~out[batch.region]
    if task.from_offset is not None:
        never = np.iinfo(np.int64).max
        others = task.from_offset.get((file, EVERY_REGION), never)
        first = np.array([task.from_offset.get((file, name.decode()), others) for name in batch.regions] or [never])
        chosen &= offsets >= first[batch.region]
    for name, offset in task.skipped:
        if name == file:
            chosen &= offsets != offset
    picked: np.ndarray = np.flatnonzero(chosen)
    return picked


def row_cells(batch: EntryBatch, file: str, picked: np.ndarray) -> Iterator[pa.RecordBatch]:
    """The cells of entries with what their order needs; the cell's bytes are the WAL's own."""
    if len(picked) == 0:
        return
    buffer = gather(batch.buffer, batch.cells_start[picked], batch.end[picked])
    cells = index_cells(buffer)
    counts = batch.cell_count[picked]
    entry = np.repeat(picked, counts)
    index = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    borders = np.append(cells.position, len(buffer)).astype(np.int32)

    def named(codes: np.ndarray, names: list[bytes], kind: pa.DataType) -> pa.Array:
        return pa.array(names, pa.binary()).cast(kind).take(pa.array(codes[entry]))

    yield pa.record_batch(
        [
            named(batch.table, batch.tables, pa.string()),
            binary_column(buffer, cells.row_start, cells.row_length),
            pa.array(batch.sequence_number[entry], pa.int64()),
            pa.array(index, pa.int32()),
            named(batch.region, batch.regions, pa.string()),
            named(batch.clusters, batch.cluster_lists, pa.binary()),
            pa.array(batch.write_time[entry], pa.int64()),
            pa.array([file]).take(pa.array(np.zeros(len(entry), np.int64))),
            pa.array(batch.base + batch.start[entry], pa.int64()),
            pa.Array.from_buffers(pa.binary(), len(entry), [None, pa.py_buffer(borders), pa.py_buffer(buffer)]),
        ],
        schema=_ROW_SCHEMA,
    )


def _send_rows(task: RowTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pipe = task.pipe
    sent = 0
    refusals: list[Refusal] = []
    outcome: RowsApplied | WalferryError
    try:
        sender = pipe.sender()
        for batch in batches:
            if batch.num_rows and batch["table"][0].as_py() is None:
                raise pickle.loads(batch["cell"][0].as_py())
            for part in _same_origin(_without(batch, {refusal.region for refusal in refusals})):
                sent += part.num_rows
                refusals += _send_part(pipe, sender, part)
        outcome = RowsApplied(sent, tuple(_with_entry(task, refusal) for refusal in refusals))
    except WalferryError as error:
        outcome = error
    yield pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], ["outcome"])


def _send_part(pipe: Pipe, sender: Sender, part: pa.RecordBatch) -> Iterator[Refusal]:
    """Send cells of one table; on a refusal halve until the refused cell stands alone, and leave out its region."""
    first = {name: part[name][0].as_py() for name in part.schema.names}
    run = Run(
        table=pipe.tables[first["table"]],
        clusters=first["clusters"],
        region=first["region"].encode(),
        sequence_number=first["sequence_number"],
        write_time=first["write_time"],
        cells=part.num_rows,
    )
    try:
        sender.send([run], _bytes_of(part["cell"]))
    except RefusedError as error:
        if part.num_rows > 1:
            middle = part.num_rows // 2
            refused = list(_send_part(pipe, sender, part.slice(0, middle)))
            rest = _without(part.slice(middle), {refusal.region for refusal in refused})
            yield from refused
            if rest.num_rows:
                yield from _send_part(pipe, sender, rest)
            return
        yield Refusal(
            first["file"], first["offset"], first["offset"], first["table"], first["region"],
            first["sequence_number"], str(error), first["cell"],
        )  # fmt: skip


def _with_entry(task: RowTask, refusal: Refusal) -> Refusal:
    """The refusal with the bytes of the whole WAL entry: that is what a release decides about."""
    file = next(file for file in task.files if file.name == refusal.file)
    data = entry_at(task.pipe.open(file), refusal.start)
    return replace(refusal, end=refusal.start + len(data), data=data)


def _without(batch: pa.RecordBatch, regions: Collection[str | None]) -> pa.RecordBatch:
    """Leave out the cells of refused regions: those are applied as a whole later."""
    if not regions:
        return batch
    refused = pc.is_in(batch["region"], pa.array(sorted(filter(None, regions))))
    return batch.filter(pc.invert(refused))


def _same_origin(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a sorted batch where the table or the list of clusters changes, and at the size of a request."""
    table = batch["table"].dictionary_encode().indices.to_numpy()
    clusters = batch["clusters"].dictionary_encode().indices.to_numpy()
    changes = np.flatnonzero((np.diff(table) != 0) | (np.diff(clusters) != 0)) + 1
    borders = [0, *changes.tolist(), batch.num_rows]
    offsets = _offsets(batch["cell"])
    for start, stop in pairwise(borders):
        while start < stop:
            fitting = int(np.searchsorted(offsets, offsets[start] + MAX_BYTES, side="right")) - 1
            end = max(start + 1, min(stop, start + MAX_MUTATIONS, fitting))
            yield batch.slice(start, end - start)
            start = end


def _offsets(array: pa.Array) -> np.ndarray:
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _bytes_of(array: pa.Array) -> memoryview:
    """The values of a binary array without nulls, one behind the other, without a copy."""
    offsets = _offsets(array)
    return memoryview(array.buffers()[2])[int(offsets[0]) : int(offsets[-1])]

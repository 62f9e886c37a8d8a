"""Replay by row: cells of all groups shuffled by row and sorted by sequence number.

Always correct, even across moves, splits and merges of regions, because a row's sequence numbers rise through all of
them. Costs one shuffle and, before that, one pass over the files to see what they hold.

A window is applied the same way. Edits of other times are read too if the target already has them. If one of them
outranks an edit of the window, the window's edit is left out, so that an older window never undoes a newer one (R3).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F

from walferry.apply.index import FileIndex, index_file
from walferry.apply.outcomes import Refusal
from walferry.apply.route import Route
from walferry.apply.window_rows import WindowRows
from walferry.apply.writer_protocol import CellRun, RefusedError, WriteLimits, Writer
from walferry.apply.writers import writer_to
from walferry.background import made_once
from walferry.errors import DamagedInputError, WalferryError
from walferry.formats.cells import Bytes, CellType, Int32s, binary_column, cut_cells, find_cells, gather, index_cells
from walferry.formats.wal import EntryBatch
from walferry.refusals import ANY_REGION
from walferry.spark.fan_out import fan_out, job
from walferry.spark.handing_over import all_handed_back, handed_back, handing_over
from walferry.wal.files import WalFile
from walferry.wal.open import entry_at

LEAST_WRITERS = 4
"""least number of the shuffle's partitions, each with one request under way; if there are more cores, one per core"""
_CELLS_AT_ONCE = 10_000
_BYTES_AT_ONCE = 4 << 20
"""bytes that are handed to Spark at a time"""


def index_files(
    spark: SparkSession | None, route: Route, files: Sequence[WalFile], window: RowTask | None = None
) -> list[FileIndex]:
    """Read files without applying anything, one task each. With `window`, also index the edits that it would apply.

    `spark`: as for `fan_out`.
    """

    def index(file: WalFile) -> list[FileIndex]:
        select = None if window is None else partial(_in_window, window, file.name)
        return [index_file(route.open(file), file, route.tables, select)]

    return fan_out(spark, index, files, what="read WALs", sizes=[file.length for file in files])


@dataclass(frozen=True)
class RowTask:
    """Which cells to apply in row order: their files, regions, and first offsets."""

    route: Route
    files: tuple[WalFile, ...]
    from_offset: Mapping[tuple[str, str], int] | None = None
    """(file, region) to the offset of the first entry to apply, with ANY_REGION for all other regions; None: apply
    everything"""
    skipped: frozenset[tuple[str, int]] = frozenset()
    """(file, offset) of entries to leave out: quarantined or late ones"""
    cut_off: Mapping[str, int] = field(default_factory=dict)
    """file to the offset of accepted damage, where reading stops"""
    held: frozenset[str] = frozenset()
    """regions to leave out"""
    window: WindowRows = field(default_factory=WindowRows)
    """which edits to apply by write time; by default all, as in a round"""
    borders: tuple[tuple[str, bytes], ...] = ()
    """table and first row of each piece except the first, in order"""
    pieces: frozenset[int] | None = None
    """numbers, from 0, of the pieces to apply; None: all"""

    @property
    def ranked(self) -> bool:
        """Whether edits that the target already has are read too, so that edits they outrank are left out."""
        return bool(self.window.settled)


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
        ("piece", pa.int32()),
        ("cell", pa.binary()),
    ]
)
_ROW_DDL = (
    "table string, row binary, sequence_number long, index int, region string, clusters binary, "
    "write_time long, file string, offset long, piece int, cell binary"
)
# Columns that rank edits; they are needed only if there are settled edits.
_RANKED_SCHEMA = pa.schema(
    [
        *_ROW_SCHEMA,
        ("family", pa.binary()),
        ("qualifier", pa.binary()),
        ("timestamp", pa.int64()),
        ("type", pa.int32()),
        ("settled", pa.bool_()),
    ]
)
_RANKED_DDL = f"{_ROW_DDL}, family binary, qualifier binary, timestamp long, type int, settled boolean"


@dataclass(frozen=True)
class RowsApplied:
    """The outcome of applying the rows of one partition, or of all."""

    cells: int
    refusals: tuple[Refusal, ...]
    outranked: int = 0
    """cells of the window that were left out because the target has later ones"""


def apply_by_row(spark: SparkSession, task: RowTask) -> RowsApplied:
    """Apply the chosen cells of all files so that each row's edits go in order.

    One shuffle distributes rows to partitions, which are sorted by row, sequence number and index in the entry. Each
    row is in one partition, and each partition has one request under way at a time. Cells that the target refuses are
    reported. Other cells of the same rows may have been applied, so the regions must later be applied again as a whole.
    """
    cells = _cells(spark, task)
    writers = max(LEAST_WRITERS, spark.sparkContext.defaultParallelism)
    sent = _sent(task, cells.repartition(writers, "table", "row"))
    with job(spark, "apply edits by row"):
        rows = sent.collect()
    outcomes: list[RowsApplied] = all_handed_back(pickle.loads(row["outcome"]) for row in rows)
    first = {refusal.region: refusal for outcome in outcomes for refusal in reversed(outcome.refusals)}
    return RowsApplied(sum(outcome.cells for outcome in outcomes), tuple(first.values()))


def place_rows(spark: SparkSession | None, task: RowTask) -> Callable[[int, str], RowsApplied]:
    """Cut the chosen cells of all files into pieces, which are ranges of rows.

    Returns a function that applies one piece, under the given job name, in a Spark job of one task; several may run at
    once. The first job reads the files. One shuffle puts each piece into a partition of its own, where the piece is
    sorted. Without a session this process sorts in memory: only for small files, and not if the task is `ranked`.
    """
    if spark is None:
        return _place_here(task)
    placed = _cells(spark, task).repartitionById(len(task.borders) + 1, "piece")
    sent = _sent(task, _rank(placed) if task.ranked else placed, placed=True).rdd

    def apply(piece: int, what: str) -> RowsApplied:
        with job(spark, what):
            (row,) = spark.sparkContext.runJob(sent, list, [piece])
        return _outcome(row["outcome"])

    return apply


def _place_here(task: RowTask) -> Callable[[int, str], RowsApplied]:
    assert not task.ranked, "settled edits are ranked by Spark"
    numbers = pa.record_batch([pa.array(range(len(task.files)), pa.int64())], ["id"])
    order = [(name, "ascending", "at_start") for name in ("table", "row", "sequence_number", "index")]
    placed = made_once(lambda: pa.Table.from_batches(_read_rows(task, iter([numbers])), _ROW_SCHEMA))

    def apply(piece: int, what: str) -> RowsApplied:
        mine = placed().filter(pc.equal(placed()["piece"], piece))
        mine = mine.take(pc.sort_indices(mine, order))
        (sent,) = _send_rows(task, iter(mine.to_batches()))
        return _outcome(sent["outcome"][0].as_py())

    return apply


def _outcome(pickled: bytes) -> RowsApplied:
    outcome: RowsApplied | WalferryError = pickle.loads(pickled)
    return handed_back(outcome)


def _cells(spark: SparkSession, task: RowTask) -> DataFrame:
    numbers = spark.range(0, len(task.files), 1, max(1, len(task.files)))
    return numbers.mapInArrow(
        handing_over(spark, lambda batches: _read_rows(task, batches)), _RANKED_DDL if task.ranked else _ROW_DDL
    )


def _sent(task: RowTask, cells: DataFrame, *, placed: bool = False) -> DataFrame:
    """`placed`: each partition has the piece with the partition's number."""
    ordered = cells.sortWithinPartitions("table", "row", "sequence_number", "index")
    send = handing_over(cells.sparkSession, lambda batches: _send_rows(task, _in_place(batches) if placed else batches))
    return ordered.mapInArrow(send, "outcome binary")


def _in_place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. Raises WalferryError if a cell is not in its piece's partition, so that no cell is lost."""
    context = TaskContext.get()
    assert context is not None
    here = context.partitionId()
    for batch in batches:
        if batch.num_rows and pc.any(pc.not_equal(batch["piece"], here)).as_py():
            raise WalferryError(
                f"Spark moved rows of other pieces into partition {here} after they had been placed, so the "
                "partition is not sent. Look for settings of Spark SQL that change how data is distributed",
                partition=here,
            )
        yield batch


def pieces_of(cells: pa.RecordBatch, borders: Sequence[tuple[str, bytes]]) -> np.ndarray:
    """The piece of each cell, by its table and row; `borders` as in `RowTask`."""
    if not borders or not cells.num_rows:
        return np.zeros(cells.num_rows, np.int32)
    starts = pa.array([table.encode() + b"\0" + row for table, row in borders], pa.binary())
    keys = pc.binary_join_element_wise(cells["table"].cast(pa.binary()), cells["row"], pa.scalar(b"\0", pa.binary()))
    # The sort is stable, so that a border comes before the cells of its own row.
    order = pc.sort_indices(pa.concat_arrays([starts, keys])).to_numpy()
    piece = np.empty(len(order), np.int32)
    piece[order] = np.cumsum(order < len(borders))
    of_cells: np.ndarray = piece[len(borders) :]
    return of_cells


def _rank(cells: DataFrame) -> DataFrame:
    """The cells that are not settled, with a column `outranked`: whether a settled edit with a higher sequence number
    replaces or deletes the cell. Keeps the partitioning: every Spark window below is within a row of a piece."""
    family = ("piece", "table", "row", "family")
    column = (*family, "qualifier")

    def newest(*types: CellType) -> Column:
        counts = F.col("settled") if not types else F.col("settled") & F.col("type").isin([int(kind) for kind in types])
        return F.max(F.when(counts, F.col("sequence_number")))

    def at(*keys: str) -> WindowSpec:
        return Window.partitionBy(*keys)

    def up(*keys: str) -> WindowSpec:
        """The cells with the same or a later timestamp."""
        order = Window.partitionBy(*keys).orderBy(F.desc("timestamp"))
        return order.rangeBetween(Window.unboundedPreceding, Window.currentRow)

    equal = newest().over(at(*column, "timestamp", "type"))
    deleted = F.greatest(
        newest(CellType.DELETE_FAMILY).over(up(*family)),
        newest(CellType.DELETE_FAMILY_VERSION).over(at(*family, "timestamp")),
        newest(CellType.DELETE_COLUMN).over(up(*column)),
        newest(CellType.DELETE).over(at(*column, "timestamp")),
    )
    is_put = F.col("type") == int(CellType.PUT)
    later = F.greatest(equal, F.when(is_put, deleted))
    outranked = F.coalesce(later > F.col("sequence_number"), F.lit(False))
    mine = F.coalesce(~F.col("settled"), F.lit(True))
    return cells.withColumn("outranked", outranked).filter(mine)


def _read_rows(task: RowTask, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for cells in _read_file(task, task.files[number]):
                    yield _placed(task, cells)
    except WalferryError as error:  # pass the error on as a row: Spark would turn it into a traceback
        for piece in range(len(task.borders) + 1):  # every piece now lacks edits
            yield _failure(error, piece, _RANKED_SCHEMA if task.ranked else _ROW_SCHEMA)


def _placed(task: RowTask, cells: pa.RecordBatch) -> pa.RecordBatch:
    """Assign each cell its piece, and keep only the cells of pieces to apply."""
    pieces = pieces_of(cells, task.borders)
    at = cells.schema.get_field_index("piece")
    cells = cells.set_column(at, cells.schema.field(at), pa.array(pieces))
    return cells if task.pieces is None else cells.filter(pa.array(np.isin(pieces, list(task.pieces))))


def _read_file(task: RowTask, file: WalFile) -> Iterator[pa.RecordBatch]:
    end = task.cut_off.get(file.name)
    try:
        for entries in task.route.open(file):
            settled = ~task.window.applied(entries) if task.ranked else None
            yield from row_cells(entries, file.name, chosen_entries(task, file.name, entries), settled)
            del entries  # free its bytes before the next batch is read
    except DamagedInputError as error:
        if end is None or error.facts["offset"] < end:
            raise


def _failure(error: WalferryError, piece: int, schema: pa.Schema) -> pa.RecordBatch:
    """The error as a row without a table: the row sorts first, and the sending side raises the error again."""
    values = dict.fromkeys(schema.names) | {
        "row": b"", "sequence_number": 0, "index": 0, "piece": piece, "cell": pickle.dumps(error),
    }  # fmt: skip
    return pa.record_batch([pa.array([values[field.name]], field.type) for field in schema], schema=schema)


def chosen_entries(task: RowTask, file: str, batch: EntryBatch) -> np.ndarray:
    """Positions in a batch of the entries that the task reads, to apply them or because the target has them."""
    chosen = batch.edits & batch.of_tables(task.route.tables)
    chosen &= ~batch.of_regions(task.held) & task.window.chosen(file, batch)
    if task.from_offset is not None:
        never = np.iinfo(np.int64).max
        others = task.from_offset.get((file, ANY_REGION), never)
        first = np.array([task.from_offset.get((file, name.decode()), others) for name in batch.regions] or [never])
        chosen &= batch.offset >= first[batch.region]
    for name, offset in task.skipped:
        if name == file:
            chosen &= batch.offset != offset
    picked: np.ndarray = np.flatnonzero(chosen)
    return picked


def _in_window(task: RowTask, file: str, batch: EntryBatch) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the chosen entries in the task's window, and of the chosen entries that the target already has."""
    chosen = chosen_entries(task, file, batch)
    inside = task.window.applied(batch)[chosen]
    return chosen[inside], chosen[~inside]


def row_cells(
    batch: EntryBatch, file: str, picked: np.ndarray, settled: np.ndarray | None = None
) -> Iterator[pa.RecordBatch]:
    """The cells of entries with the columns that order them, a few MiB at a time; the cells' bytes are the WAL's.

    `settled`: for each entry of the batch, whether the target already has it; if given, adds the ranking columns.
    """
    if len(picked) == 0:
        return
    start, length, entry, index = find_cells(batch.buffer, batch.cells_start[picked], batch.cell_count[picked])
    borders = np.append(0, np.cumsum(length))
    for begin, end in cut_cells(borders, 0, len(start), _CELLS_AT_ONCE, _BYTES_AT_ONCE):
        part = slice(begin, end)
        buffer = gather(batch.buffer, start[part], start[part] + length[part])
        yield _row_batch(batch, file, buffer, picked[entry[part]], index[part], settled)


def _row_batch(
    batch: EntryBatch, file: str, buffer: Bytes, entry: np.ndarray, index: Int32s, settled: np.ndarray | None
) -> pa.RecordBatch:
    """The cells in `buffer`. `entry`: each cell's entry, by position in the batch; `index`: its index in that entry."""
    cells = index_cells(buffer)
    borders = np.append(cells.position, len(buffer)).astype(np.int32)

    def named(codes: np.ndarray, names: list[bytes], kind: pa.DataType) -> pa.Array:
        return pa.array(names, pa.binary()).cast(kind).take(pa.array(codes[entry]))

    ranking = []
    if settled is not None:
        ranking = [
            binary_column(buffer, cells.family_start, cells.family_length),
            binary_column(buffer, cells.qualifier_start, cells.qualifier_length),
            pa.array(cells.timestamp),
            pa.array(cells.type.astype(np.int32)),
            pa.array(settled[entry]),
        ]
    return pa.record_batch(
        [
            named(batch.table, batch.tables, pa.string()),
            binary_column(buffer, cells.row_start, cells.row_length),
            pa.array(batch.sequence_number[entry], pa.int64()),
            pa.array(index, pa.int32()),
            named(batch.region, batch.regions, pa.string()),
            named(batch.clusters, batch.cluster_lists, pa.binary()),
            pa.array(batch.write_time[entry], pa.int64()),
            pa.array([file]).take(pa.array(np.zeros(len(entry), np.int64))),
            pa.array(batch.offset[entry], pa.int64()),
            pa.array(np.zeros(len(entry), np.int32)),
            pa.Array.from_buffers(pa.binary(), len(entry), [None, pa.py_buffer(borders), pa.py_buffer(buffer)]),
            *ranking,
        ],
        schema=_RANKED_SCHEMA if ranking else _ROW_SCHEMA,
    )


def _send_rows(task: RowTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    route = task.route
    sent = outranked = 0
    refusals: list[Refusal] = []
    outcome: RowsApplied | WalferryError
    try:
        writer = writer_to(route)
        for batch in batches:
            if batch.num_rows and batch["table"][0].as_py() is None:
                raise pickle.loads(batch["cell"][0].as_py())
            if "outranked" in batch.schema.names:
                before, batch = batch.num_rows, batch.filter(pc.invert(batch["outranked"]))
                outranked += before - batch.num_rows
            for part in _same_origin(_without(batch, {refusal.region for refusal in refusals}), route.limits):
                sent += part.num_rows
                refusals += _send_part(route, writer, part)
        outcome = RowsApplied(sent, tuple(_with_entry(task, refusal) for refusal in refusals), outranked)
    except WalferryError as error:
        outcome = error
    yield pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], ["outcome"])


def _send_part(route: Route, writer: Writer, part: pa.RecordBatch) -> Iterator[Refusal]:
    """Send cells of one table. After a refusal, halve the part to find the refused cell, and leave out its region."""
    first = {name: part[name][0].as_py() for name in part.schema.names}
    run = CellRun(
        table=route.tables[first["table"]],
        clusters=first["clusters"],
        cells=part.num_rows,
    )
    try:
        writer.send([run], _bytes_of(part["cell"]))
    except RefusedError as error:
        if part.num_rows > 1:
            middle = part.num_rows // 2
            refused = list(_send_part(route, writer, part.slice(0, middle)))
            rest = _without(part.slice(middle), {refusal.region for refusal in refused})
            yield from refused
            if rest.num_rows:
                yield from _send_part(route, writer, rest)
            return
        yield Refusal(
            first["file"], first["offset"], first["offset"], first["table"], first["region"],
            first["sequence_number"], str(error), first["cell"], write_time=first["write_time"],
        )  # fmt: skip


def _with_entry(task: RowTask, refusal: Refusal) -> Refusal:
    """The refusal with the bytes of the whole WAL entry: an operator releases whole entries."""
    file = next(file for file in task.files if file.name == refusal.file)
    data, end = entry_at(task.route.open(file), refusal.start)
    return replace(refusal, end=end, data=data)


def _without(batch: pa.RecordBatch, regions: Collection[str]) -> pa.RecordBatch:
    """Leave out the cells of refused regions, which are later applied as a whole."""
    if not regions:
        return batch
    refused = pc.is_in(batch["region"], pa.array(sorted(regions)))
    return batch.filter(pc.invert(refused))


def _same_origin(batch: pa.RecordBatch, limits: WriteLimits) -> Iterator[pa.RecordBatch]:
    """Cut a sorted batch where the table or the list of clusters changes, and into parts of a request's size."""
    if not batch.num_rows:
        return
    table = batch["table"].dictionary_encode().indices.to_numpy()
    clusters = batch["clusters"].dictionary_encode().indices.to_numpy()
    changes = np.flatnonzero((np.diff(table) != 0) | (np.diff(clusters) != 0)) + 1
    buffer, borders = np.frombuffer(batch["cell"].buffers()[2], np.uint8), _offsets(batch["cell"])
    for start, stop in pairwise([0, *changes.tolist(), batch.num_rows]):
        for begin, end in limits.cut(buffer, borders, start, stop):
            yield batch.slice(begin, end - begin)


def _offsets(array: pa.Array) -> np.ndarray:
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _bytes_of(array: pa.Array) -> memoryview:
    """The concatenated values of a binary array without nulls, without copying."""
    offsets = _offsets(array)
    return memoryview(array.buffers()[2])[int(offsets[0]) : int(offsets[-1])]

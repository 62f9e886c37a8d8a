"""Replay in bulk: cells of all groups sorted into HFiles, which the target's regions take as they are.

The target writes no log and sorts nothing, so this suits a lot of log at once. One Spark job reads each file once. It
sorts the file's cells some megabytes at a time, cuts them into pieces, which are ranges of rows, and shuffles them as
blocks of many cells. An extra partition reports what the files hold, before any piece is applied. Each piece merges its
blocks into one HFile per region and family, and loads these files (`bulk_loader`).

Among cells with equal keys, only the last one in the log is written. As in `by_row`, a cell is left out if the target
already has a later edit that replaces or deletes the cell (R3).
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from walferry.apply.bulk_loader import Loader, StagedHFile, staging_folder
from walferry.apply.bulk_merge import Block, Merge, Spool, sorted_cells, taken
from walferry.apply.by_row import RowTask, chosen_entries
from walferry.apply.index import FileIndex, FileIndexer
from walferry.apply.outcomes import Refusal, refuse
from walferry.apply.route import Route
from walferry.errors import WalferryError
from walferry.formats.cells import Bytes, Int64s, find_cells, gather, index_cells, row_at
from walferry.formats.hfile_writer import StoreFormat
from walferry.formats.order import (
    NUMBER_BITS,
    count_below,
    families_of,
    outranked,
    winners,
)
from walferry.formats.wal import EntryBatch
from walferry.spark.fan_out import fan_out, job
from walferry.spark.handing_over import all_handed_back, handed_back, handing_over
from walferry.wal.files import WalFile

RUN_BYTES = 64 << 20
"""bytes of cells that are sorted together as they are read"""
BLOCK_BYTES = 256 << 10
"""bytes of sorted cells that are shuffled as one block"""
SAMPLED_FILES = 16
_DDL = "piece int, family binary, clusters binary, first binary, cells binary, numbers binary"
_SCHEMA = pa.schema(
    [
        ("piece", pa.int32()),
        ("family", pa.binary()),
        ("clusters", pa.binary()),
        ("first", pa.binary()),  # row
        ("cells", pa.binary()),  # each int32 length + KeyValue, in the order of a store
        ("numbers", pa.binary()),  # int64, see `formats.order.outranked`
    ]
)


@dataclass(frozen=True)
class BulkTask:
    """Cells to load, and the format of the files for the target's families."""

    rows: RowTask
    """which cells to load; its `borders` include the first row of each table"""
    formats: Mapping[str, Mapping[bytes, StoreFormat]]
    """by source table and family, the format of the target's family"""
    keeps_deleted: frozenset[tuple[str, bytes]]
    """source table and family of each family that keeps deleted cells readable (KEEP_DELETED_CELLS)"""
    root: str
    """HBase's root folder on the target's file system; files are staged below it"""


@dataclass(frozen=True)
class BulkApplied:
    """The outcome of loading one piece."""

    cells: int
    """cells that were loaded, one per key"""
    outranked: int
    """cells of the window that were left out because the target has later ones"""
    files: int
    bytes: int
    """bytes of the loaded files"""
    taken: int
    """cells that were placed into the piece, as `InFile.placed` counts them"""


@dataclass(frozen=True)
class InFile:
    """What one file holds, and what was left out while it was read."""

    index: FileIndex
    cells: int
    """cells to apply"""
    outranked: int
    placed: Mapping[int, int]
    """by piece, the number of cells placed into it, after some cells with equal keys were dropped"""


def sample_rows(task: RowTask) -> list[tuple[str, bytes]]:
    """Table and row of some cells, in order: a sample from the beginning of some of the files."""
    files = task.files[:: max(1, len(task.files) // SAMPLED_FILES)]
    found: list[tuple[str, bytes]] = []
    for file in files:
        try:
            batch = next(iter(task.route.open(file, batch_bytes=1 << 20)), None)
        except WalferryError:
            continue  # reading the whole file will report the error
        if batch is None:
            continue
        picked = chosen_entries(task, file.name, batch)
        for entry in picked[:: max(1, len(picked) // 500)].tolist():
            cells = index_cells(batch.buffer, int(batch.cells_start[entry]), int(batch.end[entry]))
            found.append((batch.tables[batch.table[entry]].decode(), cells.row(0)))
    return sorted(found)


# ------------------------------------------------------------------ both stages


@dataclass(frozen=True)
class Placed:
    """Cells of all files, placed into pieces on demand. Call `read` before `apply`."""

    read: Callable[[], list[InFile]]
    """reads the files, and returns what they hold, in the files' order"""
    apply: Callable[[int, str], BulkApplied]
    """loads one piece, under the given job name; several may run at once"""
    close: Callable[[], None] = lambda: None
    """frees the pieces; call it at the end"""


def place_in_bulk(spark: SparkSession, task: BulkTask) -> Placed:
    """Cut the chosen cells of all files into pieces, which are ranges of rows: one shuffle."""
    rows = task.rows
    pieces = len(rows.borders)
    numbers = spark.range(0, len(rows.files), 1, max(1, len(rows.files)))
    cells = numbers.mapInArrow(handing_over(spark, lambda batches: _read(task, batches)), _DDL)
    placed = cells.repartitionById(pieces + 1, "piece").sortWithinPartitions("family", "first")
    done = placed.mapInArrow(handing_over(spark, lambda batches: _apply(task, batches)), "outcome binary").rdd

    def outcomes(piece: int, what: str) -> list[Any]:
        with job(spark, what):
            found = spark.sparkContext.runJob(done, list, [piece])
        return [pickle.loads(row["outcome"]) for row in found]

    def read() -> list[InFile]:
        told: list[tuple[int, InFile | WalferryError]] = outcomes(pieces, "read WALs")
        told.sort(key=itemgetter(0))
        return all_handed_back(found for _, found in told)

    def apply(piece: int, what: str) -> BulkApplied:
        (outcome,) = outcomes(piece, what)
        applied: BulkApplied = handed_back(outcome)
        return applied

    return Placed(read, apply)


def place_here(task: BulkTask) -> Placed:
    """As `place_in_bulk`, but in this process, for small files: pieces wait in local files until they are loaded."""
    pieces = [_Waiting() for _ in task.rows.borders]

    def read_file(file: WalFile) -> list[InFile]:
        blocks = _read_file(task, file)
        while True:
            try:
                batch = next(blocks)
            except StopIteration as end:
                return [end.value]
            pieces[batch["piece"][0].as_py()].add(batch)

    def read() -> list[InFile]:
        files = task.rows.files
        return fan_out(None, read_file, files, what="read WALs", sizes=[file.length for file in files])

    def apply(piece: int, what: str) -> BulkApplied:
        return _load_piece(task, piece, pieces[piece].blocks(), task.rows.route)

    def close() -> None:
        for piece in pieces:
            piece.close()

    return Placed(read, apply, close)


class _Waiting:
    """Blocks of one piece that wait in a local file."""

    def __init__(self) -> None:
        self._spool = Spool()
        self._known: list[tuple[bytes, bytes, bytes, tuple[int, int], tuple[int, int]]] = []
        """of each block: family, first row, list of clusters, and the places of its cells and its numbers"""
        self._adding = threading.Lock()
        self.close = self._spool.close

    def add(self, batch: pa.RecordBatch) -> None:
        with self._adding:
            for row in range(batch.num_rows):
                family, first, clusters = (batch[name][row].as_py() for name in ("family", "first", "clusters"))
                cells, numbers = (self._spool.add(batch[name][row].as_buffer()) for name in ("cells", "numbers"))
                self._known.append((family, first, clusters, cells, numbers))

    def blocks(self) -> Iterator[Block]:
        """The blocks, by family and first row."""
        for family, first, clusters, cells, numbers in sorted(self._known):
            content = np.frombuffer(self._spool.read(*cells), np.uint8)
            yield family, clusters, first, content, np.frombuffer(self._spool.read(*numbers), np.int64)


# ------------------------------------------------------------------ reading


def _read(task: BulkTask, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last = len(task.rows.borders)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            told: InFile | WalferryError
            try:
                told = yield from _read_file(task, task.rows.files[number])
            except WalferryError as error:  # Spark would turn it into a traceback
                told = error
            content = [last, b"", b"", b"", pickle.dumps((number, told)), b""]
            yield pa.record_batch(
                [pa.array([value], of.type) for value, of in zip(content, _SCHEMA, strict=True)], schema=_SCHEMA
            )


def _read_file(task: BulkTask, file: WalFile) -> Generator[pa.RecordBatch, None, InFile]:
    """The blocks of one file; returns its InFile."""
    rows = task.rows
    reading = FileIndexer(rows.route.open(file), file, rows.route.tables)
    run = _Run(task, file.name)
    for batch in reading.batches(rows.cut_off.get(file.name)):
        reading.refusals += run.add(batch, chosen_entries(rows, file.name, batch))
        if run.bytes >= RUN_BYTES:
            yield from run.blocks()
        del batch  # free its bytes before the next batch is read
    yield from run.blocks()
    return InFile(FileIndex(reading.report()), run.cells, run.outranked, run.placed)


class _Run:
    """Cells of one file, to be sorted together."""

    def __init__(self, task: BulkTask, file: str) -> None:
        self._task = task
        self._file = file
        self._parts: dict[tuple[str, bytes], list[tuple[Bytes, Int64s, Int64s]]] = {}
        """by source table and raw list of clusters: cells, their positions, and their numbers"""
        self.bytes = 0
        self.cells = self.outranked = 0
        """counts over the whole file, across all runs of cells"""
        self.placed: Counter[int] = Counter()

    def add(self, batch: EntryBatch, picked: np.ndarray) -> list[Refusal]:
        """Take the cells of a batch's entries. Returns refusals for cells of families that the target lacks."""
        refusals: list[Refusal] = []
        window = self._task.rows.window
        origin = np.stack([batch.table[picked], batch.clusters[picked]])
        for table, clusters in np.unique(origin, axis=1).T.tolist():
            mine = picked[(origin[0] == table) & (origin[1] == clusters)]
            name = batch.tables[table].decode()
            start, length, entry, _ = find_cells(batch.buffer, batch.cells_start[mine], batch.cell_count[mine])
            family = families_of(batch.buffer, start, list(self._task.formats[name]))
            for number in np.unique(entry[family < 0]).tolist():
                cell = index_cells(batch.buffer, int(batch.cells_start[mine[number]]), int(batch.end[mine[number]]))
                strange = {
                    cell.buffer[at : at + size].tobytes()
                    for at, size in zip(cell.family_start.tolist(), cell.family_length.tolist(), strict=True)
                } - set(self._task.formats[name])
                reason = f"target table {self._task.rows.route.tables[name]} has no family {sorted(strange)[0]!r}"
                refusals.append(refuse(self._file, batch, int(mine[number]), reason))
            numbers = batch.sequence_number[mine][entry] << NUMBER_BITS
            numbers |= ~window.applied(batch)[mine][entry]
            cells = gather(batch.buffer, start, start + length)
            at = np.cumsum(length) - length
            self._parts.setdefault((name, batch.cluster_lists[clusters]), []).append((cells, at, numbers))
            self.bytes += len(cells)
            self.cells += int((numbers & 1 == 0).sum())
        return refusals

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Sort all cells so far and cut them into blocks by piece and family. Afterwards the run is empty."""
        parts, self._parts, self.bytes = self._parts, {}, 0
        for (table, clusters), found in parts.items():
            buffer, positions, numbers = sorted_cells(found)
            found.clear()
            left_out = outranked(buffer, positions, numbers)
            self.outranked += int(left_out.sum())
            # A settled cell stays, even beside a later one with its key: it may outrank cells of other files.
            keep = (winners(buffer, positions) | (numbers & 1 == 1)) & ~left_out
            yield from self._cut(table, clusters, buffer, positions[keep], numbers[keep])

    def _cut(
        self, table: str, clusters: bytes, buffer: Bytes, positions: Int64s, numbers: Int64s
    ) -> Iterator[pa.RecordBatch]:
        """Cut the sorted cells of one table into blocks of its pieces."""
        families = list(self._task.formats[table])
        family = families_of(buffer, positions, families)
        mine = [number for number, (of, _) in enumerate(self._task.rows.borders) if of == table]
        starts = [count_below(buffer, positions, self._task.rows.borders[number][1]) for number in mine]
        wanted = self._task.rows.pieces
        for number, begin, end in zip(mine, starts, [*starts[1:], len(positions)], strict=True):
            if wanted is not None and number not in wanted:
                continue
            for code in np.unique(family[begin:end][family[begin:end] >= 0]).tolist():
                chosen = begin + np.flatnonzero(family[begin:end] == code)
                self.placed[number] += len(chosen)
                yield from _blocks(number, families[code], clusters, buffer, positions[chosen], numbers[chosen])


def _blocks(
    piece: int, family: bytes, clusters: bytes, buffer: Bytes, positions: Int64s, numbers: Int64s
) -> Iterator[pa.RecordBatch]:
    """Cut the sorted cells of one family into blocks."""
    data, starts = taken(buffer, positions)
    block = starts[:-1] // BLOCK_BYTES
    first = np.flatnonzero(np.diff(block, prepend=-1))
    cuts = np.append(first, len(positions))

    def column(content: np.ndarray, borders: np.ndarray) -> pa.Array:
        buffers = [None, pa.py_buffer(borders.astype(np.int32)), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.binary(), len(first), buffers)

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), len(first))

    rows = [row_at(data, int(starts[at])) for at in first.tolist()]
    batch = pa.record_batch(
        [
            same(piece, pa.int32()), same(family, pa.binary()), same(clusters, pa.binary()),
            pa.array(rows, pa.binary()), column(data, starts[cuts]),
            column(numbers, cuts * 8),
        ],
        schema=_SCHEMA,
    )  # fmt: skip
    at_once = max(1, (4 << 20) // BLOCK_BYTES)
    for begin in range(0, batch.num_rows, at_once):
        yield batch.slice(begin, at_once)


# ------------------------------------------------------------------ loading


def _apply(task: BulkTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The outcome of one piece; in the extra partition, what the files hold."""
    context = TaskContext.get()
    assert context is not None
    piece = context.partitionId()
    if piece == len(task.rows.borders):
        for batch in batches:
            yield pa.record_batch([batch["cells"]], ["outcome"])
        return
    outcome: BulkApplied | WalferryError
    try:
        # A repeated attempt at a Spark task first waits for the previous attempt to end.
        guard = task.rows.route.guard.of_attempt(f"{context.stageId()}-{piece}", context.attemptNumber())
        route = replace(task.rows.route, guard=guard)
        outcome = _load_piece(task, piece, _blocks_of(batches, piece), route)
    except WalferryError as error:
        outcome = error
    yield pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], ["outcome"])


def _load_piece(task: BulkTask, piece: int, blocks: Iterator[Block], route: Route) -> BulkApplied:
    """Write and load the blocks of one piece; the blocks come sorted by family and first row."""
    table = task.rows.borders[piece][0]
    loader = Loader(route, table, f"{staging_folder(task.root, route.tables[table])}/{piece}")
    outranked_cells = taken = 0
    staged: list[StagedHFile] = []
    for family, mine in groupby(blocks, key=itemgetter(0)):
        with Merge(mine, keeps_deleted=(table, family) in task.keeps_deleted) as merge:
            for clusters, cells in merge.by_clusters():
                staged += loader.stage(family, clusters, task.formats[table][family], cells)
            outranked_cells += merge.outranked
            taken += merge.taken
    loader.load(staged)
    return BulkApplied(
        sum(file.cells for file in staged), outranked_cells, len(staged), sum(file.bytes for file in staged), taken
    )


def _blocks_of(batches: Iterator[pa.RecordBatch], piece: int) -> Iterator[Block]:
    for batch in batches:
        for row in range(batch.num_rows):
            if batch["piece"][row].as_py() != piece:
                raise WalferryError(
                    f"Spark moved blocks of other pieces into partition {piece}, so the partition is not loaded. "
                    "Look for settings of Spark SQL that change how data is distributed",
                    partition=piece,
                )
            cells, numbers = (np.frombuffer(batch[name][row].as_buffer(), np.uint8) for name in ("cells", "numbers"))
            yield (
                batch["family"][row].as_py(), batch["clusters"][row].as_py(), batch["first"][row].as_py(), cells,
                numbers.view(np.int64),
            )  # fmt: skip

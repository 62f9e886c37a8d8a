"""Replay of whole WAL files by rpc, done in the executors.

Two ways, chosen per table and batch by the caller (migration.ordering):

* `apply_group`: one task per WAL group, its files in order, all tables in one pass. The cells' bytes go from
  the file into the request unchanged. Right as long as no region changed its server during the batch.
* `apply_by_row`: cells of all groups shuffled by row and sorted by sequence number. Right always, also across
  moves, splits and merges, because a region's sequence numbers rise through all of them.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from walferry.errors import DamagedInputError, GapError, TransientError, UnfinishedInputError, WalferryError
from walferry.formats.arrays import gather
from walferry.formats.cells import entry_cells, index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import Ending, EntryBatch, Marker, WalReader
from walferry.hbase.address import ClusterAddress
from walferry.spark.clients import shared_client, shared_files
from walferry.spark.items import map_items
from walferry.spark.sender import MAX_BYTES, MAX_MUTATIONS, Limits, RefusedError, Run, Sender
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, find_wal

LANES = 4
CLOSE_SECONDS = 20.0
EVERY_REGION = "*"


@dataclass(frozen=True)
class Pipe:
    """Where edits come from and go to, and under which guard. Travels to the executors."""

    source: ClusterAddress
    root: str
    """HBase's root folder on the source's file system"""
    source_id: tuple[int, int]
    """the source's cluster id: least, most significant bits"""
    target: ClusterAddress
    tables: dict[str, str]
    """source table to target table"""
    guard: Callable[[], None]
    limits: Limits = field(default_factory=Limits)

    def sender(self) -> Sender:
        """A sender of this process to the target."""
        least, most = self.source_id
        source_id = pb.UUID(least_sig_bits=least, most_sig_bits=most)
        return Sender(shared_client(self.target), source_id, self.guard, self.limits)

    def open(self, file: WalFile) -> SealedWal:
        """A sealed file of the source, to be read in this process."""
        return SealedWal(shared_files(self.source), self.root, file)


@dataclass(frozen=True)
class GroupTask:
    """Files of one WAL group in order; entries of `held` regions stay where they are."""

    pipe: Pipe
    files: tuple[WalFile, ...]
    held: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TableTally:
    """What one file holds of one table: whole entries, their cells, first and last write time (ms)."""

    table: str
    entries: int
    cells: int
    first_write_ms: int
    last_write_ms: int


@dataclass(frozen=True)
class Refusal:
    """Bytes that could not be applied: region None means any region the file may hold."""

    file: str
    start: int
    end: int
    table: str
    region: str | None
    sequence_number: int
    reason: str
    data: bytes


@dataclass(frozen=True)
class Withheld:
    """Entries of a held region in one file, from an offset on."""

    file: str
    table: str
    region: str
    from_offset: int


@dataclass(frozen=True)
class FileReport:
    """What became of one file. `complete`: read and applied to its end, but for what is refused and withheld."""

    file: str
    length: int
    complete: bool
    applied_to: int
    """when not complete: nothing is applied from this offset on"""
    tallies: tuple[TableTally, ...]
    refusals: tuple[Refusal, ...]
    withheld: tuple[Withheld, ...]


# ------------------------------------------------------------------ reading one sealed file


class SealedWal:
    """The entries of a file that its server has left, wherever it moved meanwhile, to its true end.

    Iterating raises TransientError when a live file's writer does not close it within `CLOSE_SECONDS`, GapError
    when the file is nowhere any more, DamagedInputError behind what precedes damage. An archived file without a
    trailer is a killed server's: its end is final.
    """

    def __init__(self, file_system: FileSystem, root: str, file: WalFile) -> None:
        self._file_system = file_system
        self._root = root
        self._file = file
        self.length = 0
        """bytes in the file, known behind the last entry"""

    def __iter__(self) -> Iterator[EntryBatch]:
        name = self._file.name
        deadline = time.monotonic() + CLOSE_SECONDS
        offset = 0
        while True:
            now = find_wal(self._file_system, self._root, self._file)
            if now is None:
                raise GapError(
                    f"WAL file {name} is gone from WALs, -splitting and oldWALs; last seen at {self._file.path}",
                    file=name,
                    start=offset,
                    end=None,
                )
            ended = False
            try:
                chunks = self._file_system.read(now.path, offset)
                reader = WalReader.resume(chunks, name, offset) if offset else WalReader(chunks, name)
                yield from reader
                self.length, offset = reader.length, reader.end
                ended = reader.ending is Ending.WHOLE
            except FileNotFoundError:
                continue  # moved between the look and the read
            except UnfinishedInputError:
                pass  # no complete header yet: a server that died at once leaves such files
            if ended or now.place is Place.ARCHIVED:
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    f"WAL file {name} is not closed yet ({now.place.value}); it is tried again in the next round",
                    file=name,
                )
            time.sleep(0.5)


def table_cells(file_system: FileSystem, root: str, file: WalFile, table: str) -> Iterator[pa.RecordBatch]:
    """The cells of one table in a sealed file, markers left out (WAL_CELL_SCHEMA); what precedes damage."""
    try:
        for batch in SealedWal(file_system, root, file):
            wanted = np.array([name.decode() == table for name in batch.tables] or [False])
            yield entry_cells(batch, file.name, wanted[batch.table] & (batch.marker == Marker.NONE))
    except DamagedInputError:
        return


# ------------------------------------------------------------------ by WAL group


def apply_groups(spark: SparkSession, tasks: Sequence[GroupTask]) -> list[FileReport]:
    """Apply every group in a Spark task of its own; reports of all files, in task order."""
    return map_items(spark, apply_group, tasks)


def apply_group(task: GroupTask) -> list[FileReport]:
    """Apply the files of one WAL group in order, all tables in one pass, and wait for every acknowledgement.

    Stops in front of what cannot be applied: a refused edit holds its region from there on, damage ends the
    task. Raises what `Sender.send` raises when the target cannot be reached.
    """
    with _Lanes(task) as lanes:
        reports = []
        for number, file in enumerate(task.files):
            reports.append(_apply_file(task, lanes, number, file))
            if not reports[-1].complete:
                break
        lanes.wait()
    behind_damage = [
        FileReport(file.name, file.length, False, 0, _Tally(task.pipe.tables).rows(), (), ())
        for file in task.files[len(reports) :]
    ]
    return [lanes.amend(report) for report in reports] + behind_damage


def _apply_file(task: GroupTask, lanes: _Lanes, number: int, file: WalFile) -> FileReport:
    tally = _Tally(task.pipe.tables)
    refusals: list[Refusal] = []
    wal = task.pipe.open(file)
    try:
        for batch in wal:
            selected = tally.add(batch)
            for refusal in unreadable_markers(batch, file.name, task.pipe.tables):
                refusals.append(refusal)
                lanes.hold(number, refusal)
            edits = selected & (batch.marker == Marker.NONE) & (batch.cell_count > 0)
            lanes.put(_Request(number, file.name, batch, np.flatnonzero(edits)))
    except DamagedInputError as error:
        damage = Refusal(file.name, int(error.facts["offset"]), -1, "*", None, 0, str(error), b"")
        return FileReport(file.name, file.length, False, damage.start, tally.rows(), (*refusals, damage), ())
    return FileReport(file.name, wal.length, True, wal.length, tally.rows(), tuple(refusals), ())


def unreadable_markers(batch: EntryBatch, file: str, tables: Iterable[str]) -> list[Refusal]:
    """Marker edits that stand for data which the log does not hold, or whose meaning is not known."""
    wanted = set(tables)
    found = []
    for i in np.flatnonzero((batch.marker == Marker.BULK_LOAD) | (batch.marker == Marker.UNKNOWN)):
        table = batch.tables[batch.table[i]].decode()
        if table not in wanted:
            continue
        kind = Marker(int(batch.marker[i]))
        reason = (
            "bulk load: the files' cells are not in the log"
            if kind is Marker.BULK_LOAD
            else "marker edit of an unknown kind"
        )
        found.append(
            Refusal(
                file,
                batch.base + int(batch.start[i]),
                batch.base + int(batch.end[i]),
                table,
                batch.regions[batch.region[i]].decode(),
                int(batch.sequence_number[i]),
                reason,
                batch.buffer[batch.start[i] : batch.end[i]].tobytes(),
            )
        )
    return found


class _Tally:
    """Counts the entries and cells of the wanted tables in one file."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._tables = {table.encode(): [0, 0, 0, 0] for table in tables}

    def add(self, batch: EntryBatch) -> np.ndarray:
        """Count a batch; a mask of the entries that belong to a wanted table."""
        wanted = np.array([name in self._tables for name in batch.tables] or [False])
        selected = wanted[batch.table] if len(batch) else np.zeros(0, bool)
        for code in np.unique(batch.table[selected]):
            mine = batch.table == code
            times = batch.write_time[mine]
            row = self._tables[batch.tables[code]]
            row[2] = min(row[2], int(times.min())) if row[0] else int(times.min())
            row[3] = max(row[3], int(times.max()))
            row[0] += int(mine.sum())
            row[1] += int(batch.cell_count[mine & (batch.marker == Marker.NONE)].sum())
        return selected

    def rows(self) -> tuple[TableTally, ...]:
        """One row for each wanted table, those without entries too."""
        return tuple(TableTally(table.decode(), *row) for table, row in self._tables.items())


@dataclass(frozen=True)
class _Request:
    """Entries of one batch that wait to be sent; `picked` are their positions in the batch, in file order."""

    number: int
    """position of the file in the task"""
    file: str
    batch: EntryBatch
    picked: np.ndarray

    def place(self, entry: int) -> tuple[int, int]:
        """Where an entry stands in the group: file number, offset in the file."""
        return self.number, self.batch.base + int(self.batch.start[entry])

    def narrowed(self, picked: np.ndarray) -> _Request:
        """The same request with fewer entries."""
        return _Request(self.number, self.file, self.batch, picked)


class _Lanes:
    """Sends the entries of one group over a few connections; a region always takes the same lane."""

    def __init__(self, task: GroupTask) -> None:
        self._pipe = task.pipe
        self._held: dict[str, tuple[int, int]] = dict.fromkeys(task.held, (-1, 0))
        self._withheld: dict[tuple[str, str], Withheld] = {}
        self._refusals: list[Refusal] = []
        self._error: BaseException | None = None
        self._queues: list[queue.Queue[_Request | None]] = [queue.Queue(maxsize=2) for _ in range(LANES)]
        self._threads = [threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in self._queues]

    def __enter__(self) -> _Lanes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._queues:
            lane.put(None)
        for thread in self._threads:
            thread.join()

    def hold(self, number: int, refusal: Refusal) -> None:
        """Let the refused region wait from the refused entry on; file `number` of the task holds it."""
        if refusal.region is None or refusal.region in self._held:
            return
        self._held[refusal.region] = (number, refusal.start)
        self._withhold(refusal.file, refusal.table, refusal.region, refusal.start)

    def put(self, request: _Request) -> None:
        """Queue the entries by region; waits while a lane is busy, which bounds memory."""
        lane_of = request.batch.region[request.picked] % LANES
        for lane, waiting in enumerate(self._queues):
            mine = request.picked[lane_of == lane]
            if len(mine):
                if self._error is not None:
                    raise self._error
                waiting.put(request.narrowed(mine))

    def wait(self) -> None:
        """Wait until everything queued is acknowledged; raises what a lane met."""
        for lane in self._queues:
            lane.join()
        if self._error is not None:
            raise self._error

    def amend(self, report: FileReport) -> FileReport:
        """Add to a file's report what the lanes refused and withheld of it."""
        refusals = (*report.refusals, *(item for item in self._refusals if item.file == report.file))
        withheld = tuple(item for item in self._withheld.values() if item.file == report.file)
        return replace(report, refusals=refusals, withheld=withheld)

    def _run(self, lane: queue.Queue[_Request | None]) -> None:
        sender = self._pipe.sender()
        while (request := lane.get()) is not None:
            try:
                if self._error is None:
                    self._send(sender, request)
            except BaseException as error:  # raised again where the lane is fed
                self._error = error
            finally:
                lane.task_done()
        lane.task_done()

    def _send(self, sender: Sender, request: _Request) -> None:
        """Send what is not held; on a refusal halve until the refused entry stands alone."""
        passing = self._let_pass(request)
        if len(passing.picked) == 0:
            return
        try:
            for runs, cells in requests(passing.batch, passing.picked, self._pipe.tables):
                sender.send(runs, cells)
        except RefusedError as error:
            if len(passing.picked) > 1:
                middle = len(passing.picked) // 2
                self._send(sender, passing.narrowed(passing.picked[:middle]))
                self._send(sender, passing.narrowed(passing.picked[middle:]))
            else:
                refusal = refuse(passing.file, passing.batch, int(passing.picked[0]), str(error))
                self._refusals.append(refusal)
                self.hold(passing.number, refusal)

    def _let_pass(self, request: _Request) -> _Request:
        if not self._held:
            return request
        batch = request.batch
        passing = []
        for entry in request.picked:
            region = batch.regions[batch.region[entry]].decode()
            place = request.place(int(entry))
            if region not in self._held or place < self._held[region]:
                passing.append(entry)
            else:
                self._withhold(request.file, batch.tables[batch.table[entry]].decode(), region, place[1])
        return request.narrowed(np.array(passing, dtype=np.int64))

    def _withhold(self, file: str, table: str, region: str, offset: int) -> None:
        known = self._withheld.get((file, region))
        first = offset if known is None else min(offset, known.from_offset)
        self._withheld[file, region] = Withheld(file, table, region, first)


def refuse(file: str, batch: EntryBatch, entry: int, reason: str) -> Refusal:
    """Describe one entry that is not applied, with its bytes."""
    return Refusal(
        file,
        batch.base + int(batch.start[entry]),
        batch.base + int(batch.end[entry]),
        batch.tables[batch.table[entry]].decode(),
        batch.regions[batch.region[entry]].decode(),
        int(batch.sequence_number[entry]),
        reason,
        batch.buffer[batch.start[entry] : batch.end[entry]].tobytes(),
    )


def requests(
    batch: EntryBatch, picked: np.ndarray, tables: Mapping[str, str]
) -> Iterator[tuple[list[Run], memoryview]]:
    """Cut entries (positions in file order) into requests of bounded size.

    Within a request the entries stand table by table, in file order each; one request never mixes edits that
    came from different clusters, because the receiver applies those concurrently.
    """
    starts, ends = batch.cells_start[picked], batch.end[picked]
    begin = 0
    while begin < len(picked):
        size = np.cumsum(ends[begin:] - starts[begin:])
        mutations = np.cumsum(batch.mutation_count[picked[begin:]])
        clusters = batch.clusters[picked[begin:]]
        limit = min(
            int(np.searchsorted(size, MAX_BYTES, side="right")),
            int(np.searchsorted(mutations, MAX_MUTATIONS, side="right")),
            int(np.argmax(clusters != clusters[0])) if (clusters != clusters[0]).any() else len(clusters),
        )
        if limit == 0 and mutations[0] > MAX_MUTATIONS:
            yield from _split_entry(batch, int(picked[begin]), tables)
            begin += 1
            continue
        chosen = picked[begin : begin + max(limit, 1)]
        chosen = chosen[np.argsort(batch.table[chosen], kind="stable")]
        cells = gather(batch.buffer, batch.cells_start[chosen], batch.end[chosen])
        borders = np.flatnonzero(np.diff(batch.table[chosen], prepend=-1))
        counts = np.add.reduceat(batch.cell_count[chosen], borders)
        runs = [
            _run(batch, int(chosen[border]), int(count), tables) for border, count in zip(borders, counts, strict=True)
        ]
        yield runs, cells.data
        begin += len(chosen)


def _split_entry(batch: EntryBatch, entry: int, tables: Mapping[str, str]) -> Iterator[tuple[list[Run], memoryview]]:
    """An entry of more mutations than a request may hold goes in several; each cell is at most one mutation."""
    start, end = int(batch.cells_start[entry]), int(batch.end[entry])
    positions = index_cells(batch.buffer, start, end).position
    for begin in range(0, len(positions), MAX_MUTATIONS):
        part = positions[begin : begin + MAX_MUTATIONS]
        behind = begin + MAX_MUTATIONS
        stop = int(positions[behind]) if behind < len(positions) else end
        yield [_run(batch, entry, len(part), tables)], batch.buffer[int(part[0]) : stop].data


def _run(batch: EntryBatch, entry: int, cells: int, tables: Mapping[str, str]) -> Run:
    return Run(
        table=tables[batch.tables[batch.table[entry]].decode()],
        clusters=batch.cluster_lists[batch.clusters[entry]],
        region=batch.regions[batch.region[entry]],
        sequence_number=int(batch.sequence_number[entry]),
        write_time=int(batch.write_time[entry]),
        cells=cells,
    )


# ------------------------------------------------------------------ what is in the files, without applying


@dataclass(frozen=True)
class RegionEvent:
    """A region was opened or closed: the store files it had then tell whether its history goes on."""

    kind: Marker
    file: str
    offset: int
    table: str
    region: str
    sequence_number: int
    server: str
    stores: frozenset[str]
    """family/file of every store file"""


@dataclass(frozen=True)
class FileIndex:
    """What one file holds of the wanted tables: which regions, and what happened to them."""

    group: str
    report: FileReport
    regions: frozenset[tuple[str, str]]
    """(table, region) with edits"""
    events: tuple[RegionEvent, ...]


def index_files(spark: SparkSession, pipe: Pipe, files: Sequence[WalFile]) -> list[FileIndex]:
    """Read files without applying anything; one task each."""
    return map_items(spark, lambda file: [index_file(pipe, file)], files)


def index_file(pipe: Pipe, file: WalFile) -> FileIndex:
    """Read one sealed file: tallies, regions, region events and unreadable markers of the wanted tables."""
    tally = _Tally(pipe.tables)
    regions: set[tuple[str, str]] = set()
    events: list[RegionEvent] = []
    refusals: list[Refusal] = []
    wal, complete = pipe.open(file), True
    try:
        for batch in wal:
            selected = tally.add(batch)
            refusals += unreadable_markers(batch, file.name, pipe.tables)
            edits = selected & (batch.marker == Marker.NONE)
            pairs = np.unique(np.stack([batch.table[edits], batch.region[edits]]), axis=1)
            regions |= {(batch.tables[t].decode(), batch.regions[r].decode()) for t, r in pairs.T}
            opened = (batch.marker == Marker.REGION_OPEN) | (batch.marker == Marker.REGION_CLOSE)
            events += [_event(file, batch, int(i)) for i in np.flatnonzero(selected & opened)]
    except DamagedInputError as error:
        refusals.append(Refusal(file.name, int(error.facts["offset"]), -1, "*", None, 0, str(error), b""))
        complete = False
    report = FileReport(
        file.name, wal.length if complete else file.length, complete, 0, tally.rows(), tuple(refusals), ()
    )
    return FileIndex(file.group, report, frozenset(regions), tuple(events))


def _event(file: WalFile, batch: EntryBatch, entry: int) -> RegionEvent:
    cell = index_cells(batch.buffer, int(batch.cells_start[entry]), int(batch.end[entry]))
    start = int(cell.value_start[0])
    value = batch.buffer[start : start + int(cell.value_length[0])].tobytes()
    descriptor = pb.RegionEventDescriptor.FromString(value)
    return RegionEvent(
        Marker(int(batch.marker[entry])),
        file.name,
        batch.base + int(batch.start[entry]),
        batch.tables[batch.table[entry]].decode(),
        batch.regions[batch.region[entry]].decode(),
        int(batch.sequence_number[entry]),
        file.server,
        frozenset(f"{s.family_name.decode()}/{name}" for s in descriptor.stores for name in s.store_file),
    )


# ------------------------------------------------------------------ by row


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
    sent = ordered.mapInArrow(lambda batches: _send_rows(task.pipe, batches), "outcome binary")
    outcomes = [pickle.loads(row["outcome"]) for row in sent.collect()]
    for outcome in outcomes:
        if isinstance(outcome, WalferryError):
            raise outcome
    return RowsApplied(sum(o.cells for o in outcomes), tuple(r for o in outcomes for r in o.refusals))


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
        first = np.array([task.from_offset.get((file, name.decode()), never) for name in batch.regions] or [never])
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
    rows = gather(buffer, cells.row_start, cells.row_start + cells.row_length)
    row_borders = np.concatenate(([0], np.cumsum(cells.row_length))).astype(np.int32)

    def named(codes: np.ndarray, names: list[bytes], kind: pa.DataType) -> pa.Array:
        return pa.array(names, pa.binary()).cast(kind).take(pa.array(codes[entry]))

    yield pa.record_batch(
        [
            named(batch.table, batch.tables, pa.string()),
            pa.Array.from_buffers(pa.binary(), len(entry), [None, pa.py_buffer(row_borders), pa.py_buffer(rows)]),
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


def _send_rows(pipe: Pipe, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sent = 0
    refusals: list[Refusal] = []
    outcome: RowsApplied | WalferryError
    try:
        sender = pipe.sender()
        for batch in batches:
            if batch.num_rows and batch["table"][0].as_py() is None:
                raise pickle.loads(batch["cell"][0].as_py())
            for part in _same_origin(batch):
                sent += part.num_rows
                refusals += _send_part(pipe, sender, part)
        outcome = RowsApplied(sent - len(refusals), tuple(refusals))
    except WalferryError as error:
        outcome = error
    yield pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], ["outcome"])


def _send_part(pipe: Pipe, sender: Sender, part: pa.RecordBatch) -> Iterator[Refusal]:
    """Send cells of one table; on a refusal halve until the refused cell stands alone."""
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
            yield from _send_part(pipe, sender, part.slice(0, middle))
            yield from _send_part(pipe, sender, part.slice(middle))
            return
        yield Refusal(
            first["file"], first["offset"], first["offset"], first["table"], first["region"],
            first["sequence_number"], str(error), first["cell"],
        )  # fmt: skip


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

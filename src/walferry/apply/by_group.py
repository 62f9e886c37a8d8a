"""Replay by WAL group: the cells' bytes go from the file into the request unchanged.

One task takes files of one group in order, all tables in one pass. Correct only for regions that stood still while the
files were written (`replay.log.cut`); edits of other regions are only counted here, and `by_row` applies them.
"""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from pyspark.sql import SparkSession

from walferry.apply.number_spans import NumberSpans
from walferry.apply.outcomes import FileReport, Moved, Refusal, Tally, Withheld, damage, refuse, unreadable_markers
from walferry.apply.prefix import Beginning, Sent, not_known, taken_back
from walferry.apply.region_events import RegionEvent, region_events
from walferry.apply.route import Route, mark_tables
from walferry.apply.window_rows import ALL_TIMES, WriteTimes
from walferry.apply.writer_protocol import CellRun, RefusedError, WriteLimits, Writer
from walferry.apply.writers import writer_to
from walferry.apply.written import RowCollector
from walferry.errors import DamagedInputError, is_transient
from walferry.formats.cells import find_cells, gather
from walferry.formats.wal import EntryBatch
from walferry.hbase.errors import RemoteError, may_be_under_way
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.spark.byte_counts import count_bytes
from walferry.spark.fan_out import fan_out
from walferry.wal.files import WalFile


@dataclass(frozen=True)
class GroupTask:
    """Files of one WAL group in order. An edit is applied only if its region stood still and is not held."""

    route: Route
    files: tuple[WalFile, ...]
    standing: frozenset[str]
    """encoded names"""
    held: frozenset[str] = frozenset()
    window: WriteTimes = ALL_TIMES
    """only edits that were written in this span are applied"""
    skipped: frozenset[tuple[str, int]] = frozenset()
    """(file, offset) of entries to leave out: quarantined or late ones"""
    sent: Mapping[str, Sent] = field(default_factory=dict)
    """by file, the entries that were sent while the file was still being written; they are left out"""
    followed: frozenset[str] = frozenset()
    """regions that have moved; they count as moved even if they are among `standing`, since all but their last edits
    were sent"""
    collects: frozenset[str] = frozenset()
    """tables whose rows are collected"""

    def concerns(self, refusal: Refusal) -> bool:
        """Whether the refused entry is one to apply."""
        return self.window.has(refusal.write_time) and (refusal.file, refusal.start) not in self.skipped


def apply_groups(spark: SparkSession | None, tasks: Sequence[GroupTask], what: str = "apply edits") -> list[FileReport]:
    """Apply files of WAL groups in one Spark job, a task each. Returns the reports of all files, in task order.

    `spark`: as for `fan_out`.
    """
    sizes = [sum(file.length for file in task.files) for task in tasks]
    return fan_out(spark, apply_group, tasks, what=what, sizes=sizes)


def apply_group(task: GroupTask) -> list[FileReport]:
    """Apply the files of one WAL group in order, all tables in one pass, and wait for every acknowledgement.

    A refused edit holds its region from there on; damage ends the task. Raises the errors of `Writer.send` if the
    target cannot be reached.
    """
    with _Lanes(task) as lanes:
        reports = []
        for number, file in enumerate(task.files):
            reports.append(_apply_file(task, lanes, number, file))
            if not reports[-1].complete:
                break
        lanes.wait()
    after_damage = [
        FileReport(file.name, file.length, False, Tally(task.route.tables).rows(), (), ())
        for file in task.files[len(reports) :]
    ]
    return [lanes.amend(report) for report in reports] + after_damage


@dataclass(frozen=True)
class Part:
    """Entries of a file that is still being written: `picked` are their positions in the batch, in file order."""

    file: str
    batch: EntryBatch
    picked: np.ndarray


def send_entries(task: GroupTask, parts: Sequence[Part]) -> list[Refusal]:
    """Send entries in their order, those of one region in one lane, and wait for every acknowledgement. Returns the
    edits that the target refused; after a refused edit, nothing more of its region is sent. Raises the errors of
    `Writer.send`."""
    with _Lanes(task) as lanes:
        for number, part in enumerate(parts):
            lanes.put(_Request(number, part.file, part.batch, part.picked))
        lanes.wait()
        return lanes.refusals()


def _apply_file(task: GroupTask, lanes: _Lanes, number: int, file: WalFile) -> FileReport:
    """Apply a file without the entries sent while it was open. If the file does not begin with the entries that it
    showed then, apply all of it and mark the tables."""
    sent = task.sent.get(file.name)
    if sent is None:
        return _apply_entries(task, lanes, number, file)
    beginning = Beginning(sent.shown)
    report = replace(_apply_entries(task, lanes, number, file, sent, beginning), compared=True)
    if beginning.is_same:
        return report
    why = taken_back(file.name, sent.shown)
    for refusal in report.refusals:
        if refusal.kind is RefusalKind.DAMAGE:
            why = not_known(file.name, sent.shown, f"it is damaged: {refusal.reason}")
    mark_tables(task.route, sent.tables, why)
    if not sent.regions:
        return report
    # If a region has moved, the edits that another file holds of the region came later.
    again = replace(task, standing=task.standing - task.followed)
    return replace(_apply_entries(again, lanes, number, file), compared=True)


def _apply_entries(
    task: GroupTask,
    lanes: _Lanes,
    number: int,
    file: WalFile,
    sent: Sent | None = None,
    beginning: Beginning | None = None,
) -> FileReport:
    """Apply a file's entries except those in `sent`; `beginning` sees how the file begins."""
    tally = Tally(task.route.tables)
    refusals: list[Refusal] = []
    events: list[RegionEvent] = []
    moved, numbers, written = Moved(file.name), NumberSpans(file.name), RowCollector(task.collects)
    passed = sent.regions & task.standing if sent else frozenset()
    wal = task.route.open(file)
    try:
        for batch in wal:
            selected = tally.add(batch)
            events += region_events(batch, file.name, selected)
            numbers.add(batch, selected)
            written.add(batch)
            for refusal in unreadable_markers(batch, file.name, task.route.tables):
                if task.concerns(refusal):
                    refusals.append(refusal)
                    lanes.hold(number, refusal)
            edits = selected & batch.edits
            edits &= task.window.holds(batch.write_time)
            for name, offset in task.skipped:
                if name == file.name:
                    edits &= batch.offset != offset
            stands = batch.of_regions(task.standing)
            moved.add(batch, np.flatnonzero(edits & (~stands | batch.of_regions(task.followed))))
            if sent is not None and beginning is not None:
                beginning.add(batch)
                edits &= ~((batch.offset_end <= sent.end) & batch.of_regions(passed))
            lanes.put(_Request(number, file.name, batch, np.flatnonzero(edits & stands)))
            if len(batch):
                count_bytes(int(batch.offset_end[-1] - batch.offset[0]))
            del batch  # free its bytes before the next ones are read
    except DamagedInputError as error:
        return FileReport(file.name, file.length, False, tally.rows(), (*refusals, damage(error)), ())
    return FileReport(
        file.name, wal.length, True, tally.rows(), tuple(refusals), (), tuple(events), moved.edits(), numbers.spans(),
        written.rows(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Request:
    """Entries of one batch to be sent; `picked` are their positions in the batch, in file order."""

    number: int
    """position of the file in the task"""
    file: str
    batch: EntryBatch
    picked: np.ndarray

    def place(self, entry: int) -> tuple[int, int]:
        """An entry's position in the group: file number, offset in the file."""
        return self.number, int(self.batch.offset[entry])

    def narrowed(self, picked: np.ndarray) -> _Request:
        """The same request with fewer entries."""
        return _Request(self.number, self.file, self.batch, picked)


class _Lanes:
    """Sends the entries of one group over a few connections; a region always uses the same lane."""

    def __init__(self, task: GroupTask) -> None:
        self._route = task.route
        self._held: dict[str, tuple[int, int]] = dict.fromkeys(task.held, (-1, 0))
        self._withheld: dict[tuple[str, str], Withheld] = {}
        self._refusals: list[Refusal] = []
        self._errors: list[BaseException] = []
        self._interrupted = False
        limits = task.route.limits
        self._ahead = _ReadAheadBytes(limits.ahead_bytes)
        self._queues: list[queue.Queue[_Request | None]] = [
            queue.Queue(maxsize=limits.read_ahead) for _ in range(limits.lanes)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(lane, writer_to(self._route)), daemon=True)
            for lane in self._queues
        ]

    def __enter__(self) -> _Lanes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if failure is not None and not issubclass(failure, Exception):
            # Interrupted: do not wait for the lanes, since a lane may wait for as long as the run is paused. The lanes
            # end with the leases, which are given back now, as after every failure.
            self._interrupted = True
            for lane in self._queues:
                with suppress(queue.Full):
                    lane.put_nowait(None)
            return
        for lane in self._queues:
            lane.put(None)
        for thread in self._threads:
            thread.join()
        if error is not None and error in self._errors:  # more errors may have come while the lanes ended
            self._raise_worst()

    def hold(self, number: int, refusal: Refusal) -> None:
        """Hold the refused region from the refused entry on. `number`: the position in the task of the file with that
        entry."""
        place = (number, refusal.start)
        if refusal.region == ANY_REGION or self._held.get(refusal.region, place) < place:
            return
        # The reader may have held the region at a later place before a lane got here.
        self._held[refusal.region] = place
        self._withhold(refusal.file, refusal.table, refusal.region, refusal.start)

    def put(self, request: _Request) -> None:
        """Queue the entries by region; waits while too much is queued, which bounds memory."""
        lane_of = lanes_of(request.batch, len(self._queues))[request.picked]
        parts = {lane: request.picked[lane_of == lane] for lane in np.unique(lane_of).tolist()}
        if parts:
            self._ahead.enter(request.batch, len(parts))
        for lane, mine in parts.items():
            self._raise_worst()
            self._queues[lane].put(request.narrowed(mine))

    def wait(self) -> None:
        """Wait until everything queued is acknowledged; raises a lane's error."""
        for lane in self._queues:
            lane.join()
        self._raise_worst()

    def _raise_worst(self) -> None:
        """Raise the most important error of the lanes, if there is one."""
        if self._errors:
            raise min(self._errors, key=_rank)

    def refusals(self) -> list[Refusal]:
        """What the target has refused so far."""
        return list(self._refusals)

    def amend(self, report: FileReport) -> FileReport:
        """Add to a file's report what the lanes refused and withheld of the file."""
        refusals = (*report.refusals, *(item for item in self._refusals if item.file == report.file))
        withheld = tuple(item for item in self._withheld.values() if item.file == report.file)
        return replace(report, refusals=refusals, withheld=withheld)

    def _run(self, lane: queue.Queue[_Request | None], writer: Writer) -> None:
        while self._send_next(lane, writer):
            pass  # `_send_next` is a function of its own, so that no request is kept while the lane waits for the next

    def _send_next(self, lane: queue.Queue[_Request | None], writer: Writer) -> bool:
        request = lane.get()
        try:
            if request is not None and not self._errors and not self._interrupted:
                self._send(writer, request)
        except BaseException as error:  # raised again by `put` or `wait`
            self._errors.append(error)
        finally:
            if request is not None:
                self._ahead.leave(request.batch)
            lane.task_done()
        return request is not None and not self._interrupted

    def _send(self, writer: Writer, request: _Request) -> None:
        """Send the entries that are not held; after a refusal, halve the request until the refused entry is alone."""
        passing = self._let_pass(request)
        if len(passing.picked) == 0:
            return
        try:
            for runs, cells in requests(passing.batch, passing.picked, self._route.tables, self._route.limits):
                writer.send(runs, cells)
        except RefusedError as error:
            if len(passing.picked) > 1:
                middle = len(passing.picked) // 2
                self._send(writer, passing.narrowed(passing.picked[:middle]))
                self._send(writer, passing.narrowed(passing.picked[middle:]))
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


def _rank(error: BaseException) -> int:
    """The rank of an error: lowest if it ends everything, such as rows that could not be marked; next if it needs a
    wait."""
    if not is_transient(error) and not isinstance(error, RemoteError):
        return 0
    return 1 if may_be_under_way(error) else 2


class _ReadAheadBytes:
    """Bounds the bytes of the batches in the lanes, however many lanes a batch is in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._lanes: dict[int, int] = {}
        """by the identity of a batch, how many requests in the lanes still refer to the batch"""
        self._bytes = 0

    def enter(self, batch: EntryBatch, lanes: int) -> None:
        """Wait until there is room for a batch, unless it is in the lanes already. `lanes`: how many lanes get a
        request of it."""
        with self._changed:
            if id(batch) not in self._lanes:
                size = batch.buffer.nbytes
                self._changed.wait_for(lambda: not self._lanes or self._bytes + size <= self._most)
                self._lanes[id(batch)] = 0
                self._bytes += size
            self._lanes[id(batch)] += lanes

    def leave(self, batch: EntryBatch) -> None:
        """A lane has sent a request of a batch."""
        with self._changed:
            self._lanes[id(batch)] -= 1
            if not self._lanes[id(batch)]:
                del self._lanes[id(batch)]
                self._bytes -= batch.buffer.nbytes
                self._changed.notify()


def lanes_of(batch: EntryBatch, count: int) -> np.ndarray:
    """The lane of each entry, out of `count` lanes. The region's name decides, because its code differs from file to
    file."""
    lanes = np.array([zlib.crc32(name) % count for name in batch.regions] or [0])
    of_entries: np.ndarray = lanes[batch.region]
    return of_entries


def requests(
    batch: EntryBatch, picked: np.ndarray, tables: Mapping[str, str], limits: WriteLimits
) -> Iterator[tuple[list[CellRun], memoryview]]:
    """Cut entries (positions in file order) into requests of bounded size.

    Within a request the entries are ordered by table, and those of one table are in file order. One request never mixes
    edits that came from different clusters, because the receiver would apply those concurrently.
    """
    starts, ends = batch.cells_start[picked], batch.end[picked]
    begin = 0
    while begin < len(picked):
        size = np.cumsum(ends[begin:] - starts[begin:])
        mutations = np.cumsum(batch.mutation_count[picked[begin:]])
        clusters = batch.clusters[picked[begin:]]
        limit = min(
            int(np.searchsorted(size, min(limits.aim_bytes, limits.bytes), side="right")),
            int(np.searchsorted(mutations, limits.mutations, side="right")),
            int(np.argmax(clusters != clusters[0])) if (clusters != clusters[0]).any() else len(clusters),
        )
        if limit == 0:
            yield from _split_entry(batch, int(picked[begin]), tables, limits)
            begin += 1
            continue
        chosen = picked[begin : begin + limit]
        chosen = chosen[np.argsort(batch.table[chosen], kind="stable")]
        cells = gather(batch.buffer, batch.cells_start[chosen], batch.end[chosen])
        borders = np.flatnonzero(np.diff(batch.table[chosen], prepend=-1))
        counts = np.add.reduceat(batch.cell_count[chosen], borders)
        runs = [
            _run(batch, int(chosen[border]), int(count), tables) for border, count in zip(borders, counts, strict=True)
        ]
        yield runs, cells.data
        begin += len(chosen)


def _split_entry(
    batch: EntryBatch, entry: int, tables: Mapping[str, str], limits: WriteLimits
) -> Iterator[tuple[list[CellRun], memoryview]]:
    """Cut an entry that exceeds a request into several requests, between rows if possible; they are sent one after the
    other."""
    alone = slice(entry, entry + 1)
    start, *_ = find_cells(batch.buffer, batch.cells_start[alone], batch.cell_count[alone])
    borders = np.append(start, batch.end[entry])
    for begin, stop in limits.cut(batch.buffer, borders, 0, len(borders) - 1):
        yield [_run(batch, entry, stop - begin, tables)], batch.buffer[int(borders[begin]) : int(borders[stop])].data


def _run(batch: EntryBatch, entry: int, cells: int, tables: Mapping[str, str]) -> CellRun:
    return CellRun(
        table=tables[batch.tables[batch.table[entry]].decode()],
        clusters=batch.cluster_lists[batch.clusters[entry]],
        cells=cells,
    )

"""Bulk loads of a call are applied beside it: their cells are read from the source's files, and sent as edits are.

    entries of a region: edits | load                             | edits
                         call  | job; the call waits or is refused| the same call or, once more, its repetition

A load may take minutes, a call is answered in seconds. So a load is a job of this process, and the call that brings it
is refused if the job takes longer; the source sends the call again. Until the job has ended nothing else of its regions
is applied. What came before the load is recorded before it begins, and the load once it is at the target. So a
repetition applies neither again, and what follows comes last. A job whose process is killed, or whose table is given
back, begins again with the next holder: nothing newer of the region was applied, and equal cells change nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from walferry.amounts import amount
from walferry.apply.recopy import send_cells
from walferry.apply.writer_protocol import RefusedError
from walferry.apply.writers import writer_to
from walferry.formats.hfile import HFile
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.ledger.received import ReceivedCall
from walferry.receive.applying import apply_entries, record, settled
from walferry.receive.holding import NotHeldError
from walferry.receive.loaded_files import LEFT_OUT, Load
from walferry.receive.seen import Applied, Picked
from walferry.receive.target_table import TargetTable
from walferry.run.run import Run

log = logging.getLogger(__name__)

AT_ONCE = 2
"""jobs of a process; each holds some megabytes of a file, decoded"""


class Loads:
    """The jobs of one process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pool = ThreadPoolExecutor(AT_ONCE, "load")
        self._jobs: dict[str, Job] = {}
        """by region (`regions_of`), those that are under way, and those whose failure nobody has been told yet"""

    def close(self) -> None:
        """Begin nothing more. What is under way ends with the leases."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def under_way(self, regions: Collection[str]) -> Iterator[Job]:
        """The jobs of these regions. Nothing else of the regions may be applied before they have `ended`."""
        for region in regions:
            if (job := self._jobs.get(region)) is not None:
                yield job

    async def ended(self, job: Job) -> None:
        """Wait for a job's end. Raises its error, once."""
        ended = asyncio.wrap_future(job.future)
        ended.add_done_callback(_retrieve)  # also if the one who waits is cancelled
        await asyncio.wait({ended})
        self._forget(job)
        ended.result()

    def apply(self, holding: TargetTable, batch: EntryBatch, picked: Picked, deadline: float) -> Picked:
        """Apply the first of these entries of a table: the edits before the first load or, if that is the first, begin
        the loads up to the next edit. Returns the rest.

        No job of the entries' regions may be under way. Otherwise as `apply_entries`, whose errors it raises.
        """
        loads = batch.marker[picked] == Marker.BULK_LOAD
        changes = np.flatnonzero(loads != loads[0])
        end = int(changes[0]) if len(changes) else len(picked)
        if loads[0]:
            self._begin(holding, batch, picked[:end])
        else:
            apply_entries(holding, batch, picked[:end], deadline)
        return picked[end:]

    def _begin(self, holding: TargetTable, batch: EntryBatch, picked: Picked) -> None:
        """Begin those of these loads that were not applied before."""
        with holding.used():
            with holding.lock:
                judged = holding.seen.judge(batch, picked)
            if repeated := int(judged.repeated.sum()):
                nothing = Applied.of(batch, picked[:0], judged.prints[:0])
                row = ReceivedCall(holding.pair.source, 0, 0, 0, repeated, 0, None, nothing.encode())
                record(holding, row, nothing)
        tasks = []
        for place in np.flatnonzero(~judged.repeated).tolist():
            entry, this = int(picked[place]), slice(place, place + 1)
            applied = Applied.of(batch, picked[this], judged.prints[this])
            written_ms = int(batch.write_time[entry])
            tasks.append(_Task(Load.of(batch, entry), applied, written_ms, bool(judged.late[place])))
        if not tasks:
            return
        job = Job(holding, tasks, regions_of(holding.pair.target, batch, picked))
        job.future = self._pool.submit(job.run, self._run)
        self._jobs.update(dict.fromkeys(job.regions, job))
        job.future.add_done_callback(lambda _: self._tell(job))

    def _tell(self, job: Job) -> None:
        """Of a job that has ended: unless it has failed, nobody must be told."""
        error = None if job.future.cancelled() else job.future.exception()
        if error is None or isinstance(error, NotHeldError):
            self._forget(job)
        else:
            log.warning("a bulk load failed: %s", error)

    def _forget(self, job: Job) -> None:
        for region in job.regions:
            if self._jobs.get(region) is job:
                self._jobs.pop(region, None)


@dataclass(frozen=True)
class _Task:
    """A load to apply. It refers to nothing of its call, whose memory is freed before it ends."""

    load: Load
    applied: Applied
    """its entry, for the ledger"""
    written_ms: int
    late: bool


class Job:
    """Loads of one table, one after the other, in a thread of their own. As text, how far it is."""

    future: Future[None]
    """of `run`"""

    def __init__(self, holding: TargetTable, tasks: Sequence[_Task], regions: Collection[str]) -> None:
        self._holding, self._tasks, self.regions = holding, tasks, regions
        self._done = self._sent = 0
        """files and cells"""
        self._cells = 0
        """of all files; 0 before these are opened"""

    def __str__(self) -> str:
        files = sum(len(task.load.files) for task in self._tasks)
        percent = 100 * self._sent // self._cells if self._cells else 0
        others = len(self._tasks) - 1
        what = f" and {others} more of the table are" if others else " is"
        return (
            f"{self._tasks[0].load}{what} being applied: {self._done} of {amount(files, 'file')}, {percent}%; the "
            "source sends the call again"
        )

    def run(self, run: Run) -> None:
        """Do it. Nothing is sent unless all files are there. Raises NotHeldError once the table is given back."""
        files, root = run.source_files, run.source_root
        opened = [task.load.open(files, root) for task in self._tasks]
        self._cells = sum(len(file) for its in opened for file in its)
        for task, its in zip(self._tasks, opened, strict=True):
            self._apply(task, its, root)

    def _apply(self, task: _Task, files: Sequence[HFile], root: str) -> None:
        holding, load = self._holding, task.load
        with holding.used():
            _mark(holding, task, files)
        writer, before, size = writer_to(holding.route_while_held()), self._sent, 0
        for file in files:
            for run in load.runs(file, root):
                with holding.used(), settled(holding):
                    try:
                        self._sent += send_cells(writer, holding.route, load.table, run.data, load.clusters)
                    except RefusedError as error:
                        raise RefusedError(
                            f"{load}: the target refuses its cells: {error.reason}. {LEFT_OUT}", **error.facts
                        ) from error
                size += len(run)
            self._done += 1
        cells, late = self._sent - before, int(task.late)
        row = ReceivedCall(load.table, 1, cells, size, 0, late, task.written_ms, task.applied.encode())
        with holding.used():
            record(holding, row, task.applied)
        log.info("%s is applied: %s of %s", load, amount(cells, "cell"), amount(len(files), "file"))


def regions_of(table: str, batch: EntryBatch, picked: Picked) -> set[str]:
    """The regions of entries of a target table, for whatever concerns one region at a time."""
    return {f"{table} {batch.regions[code].decode()}" for code in np.unique(batch.region[picked]).tolist()}


def _mark(holding: TargetTable, task: _Task, files: Sequence[HFile]) -> None:
    """Mark the rows of a load whose cells may not be newer than those that the target has."""
    spans = [file.rows for file in files if len(file)]
    if not spans or not (task.late or not task.load.ordered):
        return
    known = all(last for _, last in spans)
    rows = (min(first for first, _ in spans), max(last for _, last in spans)) if known else (b"", b"")
    why = "came after newer edits of the region" if task.late else "has no sequence number at the source"
    log.warning("rows %r to %r of target table %s: %s %s", *rows, holding.pair.target, task.load, why)
    holding.route.guard.mark_dirty({holding.pair.target: rows}, f"old values: {task.load} {why}")


def _retrieve(ended: asyncio.Future[None]) -> None:
    """Else asyncio tells the error of a future that nobody has asked."""
    if not ended.cancelled():
        ended.exception()

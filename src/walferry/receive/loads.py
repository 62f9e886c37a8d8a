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
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from walferry.amounts import amount
from walferry.apply.recopy import send_cells
from walferry.apply.writer_protocol import RefusedError
from walferry.apply.writers import writer_to
from walferry.background import beside
from walferry.clock import duration, steady_s
from walferry.errors import WalferryError
from walferry.formats.hfile import HFile
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.ledger import RunLedger
from walferry.ledger.received import ReceivedCall
from walferry.receive.applying import apply_entries, record, settled
from walferry.receive.holding import NotHeldError
from walferry.receive.loaded_files import LEFT_OUT, Load
from walferry.receive.seen import Applied, Picked
from walferry.receive.target_table import TargetTable
from walferry.replay.rights.lease import LeaseLostError
from walferry.run.notes.loads import load_ended, tell_of_load
from walferry.run.run import Run

log = logging.getLogger(__name__)

TELL_SECONDS = 2.0
"""how often the ledger is told how far a load is"""
STILL_SECONDS = 120.0
"""after which a load that moves no more counts as a fault"""
AT_ONCE = 2
"""jobs of a process; each holds some megabytes of a file, decoded"""


class Loads:
    """The jobs of one process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pool = ThreadPoolExecutor(AT_ONCE, "load")
        self._jobs: dict[str, Job] = {}
        """by region (`regions_of`), those that are under way, and those whose failure nobody has been told yet"""
        self._failed: dict[str, str] = {}
        """by load, why its last job has failed, until another one has not"""

    def close(self) -> None:
        """Begin nothing more. What is under way ends with the leases."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def given_back(self, holding: TargetTable) -> None:
        """Forget the jobs of a table that have ended: what nobody was told of them is no matter of its next holder."""
        for job in list(self._jobs.values()):
            if job.is_of(holding) and job.future.done():
                self._forget(job)

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
        failed = next((self._failed[str(task.load)] for task in tasks if str(task.load) in self._failed), "")
        job = Job(holding, tasks, regions_of(holding.pair.target, batch, picked), failed)
        job.future = self._pool.submit(job.run, self._run)
        self._jobs.update(dict.fromkeys(job.regions, job))
        job.future.add_done_callback(lambda _: self._tell(job))

    def _tell(self, job: Job) -> None:
        """Of a job that has ended: unless it has failed, nobody must be told."""
        error = None if job.future.cancelled() else job.future.exception()
        if error is None:
            for load in job.loads:
                self._failed.pop(load, None)
        elif not isinstance(error, (NotHeldError, LeaseLostError)):
            self._failed |= dict.fromkeys(job.loads, str(error) or repr(error))
            log.warning("a bulk load failed: %s", error)
            return
        self._forget(job)

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

    def __init__(self, holding: TargetTable, tasks: Sequence[_Task], regions: Collection[str], failed: str) -> None:
        """`failed`: why a job before it of one of these loads has failed; "" if none has."""
        self._holding, self._tasks, self.regions, self._failed = holding, tasks, regions, failed
        self._done = self._sent = 0
        """files and cells"""
        self._cells = 0
        """of all files; 0 before these are opened"""
        self._began_s = self._moved_s = 0.0
        """when the first cell could be sent, and when the last one was, of `clock.steady_s`; 0: it waits for others"""

    @property
    def loads(self) -> list[str]:
        """The names of its loads."""
        return [str(task.load) for task in self._tasks]

    def is_of(self, holding: TargetTable) -> bool:
        """Whether it began while the table was held thus."""
        return self._holding is holding

    def __str__(self) -> str:
        files = sum(len(task.load.files) for task in self._tasks)
        done = self._sent / self._cells if self._cells else 0
        left = f", about {duration((steady_s() - self._began_s) * (1 - done) / done)} left" if done else ""
        others = len(self._tasks) - 1
        what = f" and {others} more of the table are" if others else " is"
        return (
            f"{self._tasks[0].load}{what} being applied: {self._done} of {amount(files, 'file')}, {done:.0%}{left}; "
            f"{f'{self.fault}; ' if self.fault else ''}the source sends the call again"
        )

    @property
    def fault(self) -> str:
        """Why it may not end well; "" if nothing says so."""
        still_s = steady_s() - self._moved_s if self._moved_s else 0
        if still_s > STILL_SECONDS:
            return f"none of its cells was applied for {duration(still_s)}"
        return f"it has failed before: {self._failed}" if self._failed else ""

    def run(self, run: Run) -> None:
        """Do it, and tell the ledger how far it is. Nothing is sent unless all files are there. Raises NotHeldError
        once the table is given back."""
        with beside(partial(self._telling, run.ledger), "load"):
            self._run(run)

    def _telling(self, ledger: RunLedger, ended: threading.Event) -> None:
        load, told = self.loads[0], False
        while not ended.wait(TELL_SECONDS):
            with _logged():
                tell_of_load(ledger, load, str(self))
                told = True
        if told:
            with _logged():
                load_ended(ledger, load)

    def _run(self, run: Run) -> None:
        self._moved_s = steady_s()
        files, root = run.source_files, run.source_root
        opened = [task.load.open(files, root) for task in self._tasks]
        self._cells = sum(len(file) for its in opened for file in its)
        self._began_s = steady_s()
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
                self._moved_s = steady_s()
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


@contextmanager
def _logged() -> Iterator[None]:
    """For what the ledger is told of a load: it may fail."""
    try:
        yield
    except WalferryError as error:
        log.warning("the ledger does not know how far the load is: %s", error)


def _retrieve(ended: asyncio.Future[None]) -> None:
    """Else asyncio tells the error of a future that nobody has asked."""
    if not ended.cancelled():
        ended.exception()

"""Sends the rows that tables have, beside the changes of other tables, in the transactions of the same sink.

While a table's rows are sent, its changes are held; afterwards they follow, without those that the snapshot has
(`streams.snapshot.covered`). Tables are sent one after the other, and all of them are let go together, since the log is
then read once more from where their changes are held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass, replace

import numpy as np

from walferry.amounts import amount
from walferry.background import begun
from walferry.clock import now_ms, steady_s
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.errors import TableNotFoundError
from walferry.replay.keeping.objects import drop_snapshot, snapshot_name
from walferry.run.notes.table_snapshots import Progress, asked_again, drop_progress, keep_progress, take_request
from walferry.run.run import LogRun
from walferry.snapshots.manifest import SnapshotRegion, has_manifest
from walferry.streams.delivery import AnyDestination, Committer, Made
from walferry.streams.message import events
from walferry.streams.message.changes import Form, SnapshotMark
from walferry.streams.ordering.sent import RegionSent
from walferry.streams.snapshot.covered import Covered
from walferry.streams.snapshot.records import RegionRows, Snapshots, Step, TableSnapshot
from walferry.streams.snapshot.rows import Rows, rows_of
from walferry.streams.snapshot.taking import RegionsChangedError, Taken, regions_of, take

log = logging.getLogger(__name__)

COMMIT_BYTES = 16 << 20
"""most bytes of messages in a transaction, but for the last batch"""
TELL_SECONDS = 10.0
"""time between two lines of the log about how far it is"""


@dataclass(frozen=True)
class _Made:
    """Rows of a region, as they are sent; None: it has no more."""

    region: str
    rows: Rows | None
    made: Made | None


@dataclass
class Delivered:
    """What was sent of snapshots."""

    rows: int = 0
    cells: int = 0
    bytes: int = 0


class SnapshotSender:
    """Sends the snapshots of a stream's tables. A context manager, for one thread; each sink has its own."""

    def __init__(
        self,
        run: LogRun,
        form: Form,
        delivery: AnyDestination,
        sink: Committer,
        records: Mapping[str, bytes],
        sent: Mapping[str, RegionSent],
        covered: Covered,
    ) -> None:
        """`records`: of the position topic. `sent`: how far each region was sent, of tables that are held now.
        `covered`: is told which snapshots the log is followed past."""
        self._run = run
        self._form = form
        self._delivery = delivery
        self._sink = sink
        self._sent = sent
        self._covered = covered
        self.snapshots = Snapshots.of_records(records)
        self._taking: Future[Taken] | None = None
        self._reading: Iterator[_Made] | None = None
        self._next: Future[_Made | None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows of snapshots")
        self._sizes: dict[str, int] = {}
        """bytes of the store files of each region that is sent now"""
        self._told = steady_s()
        self._began = (0, 0)
        """when this process began with them, and how many bytes were done"""
        self._begin_again()
        self._drop_left_over()
        self._held = self.snapshots.holding
        """the log that is followed with this sink holds these tables to its end"""

    def __enter__(self) -> SnapshotSender:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def take_up(self) -> None:
        """Take up what people have asked for since."""
        held = {hold.table for hold in self._run.ledger.quarantine.holds()}
        for table, request in asked_again(self._run.ledger).items():
            known = self.snapshots.tables.get(table)
            is_done = known is None or known.step is Step.DONE
            if table in held or (known is not None and not is_done and known.asked_ms != request.asked_ms):
                continue  # another one comes first
            if is_done:
                count = 0 if known is None else known.count
                wanted = TableSnapshot(Step.WANTED, asked_ms=request.asked_ms, since_ms=now_ms(), count=count)
                self._commit(self._with(table, wanted))
                log.info("%s: all rows are sent again, as %s asked: %s", table, request.by, request.reason)
            take_request(self._run.ledger, table)

    def followed(self, moment_ms: int, sent: Collection[str], record: Callable[[], None]) -> None:
        """The log was followed up to a moment, and of the tables `sent`, all of it is sent: hold those whose snapshots
        are wanted, and forget the snapshots that it was followed past.

        `record` is called before anything changes. It records how far the log was followed: of what lies before, a
        snapshot that is forgotten can no longer say whether it has it.
        """
        now = self.snapshots
        for table, known in list(now.tables.items()):
            if known.since_ms >= moment_ms or table in self._held or table not in sent:
                continue
            if known.step is Step.WANTED:
                name = snapshot_name(self._run.run_id, table)
                now = _with(now, table, replace(known, step=Step.TAKING, name=name, count=known.count + 1))
            elif known.step is Step.CATCHING_UP:
                now = _with(now.without(table), table, TableSnapshot(Step.DONE, count=known.count))
        if now is not self.snapshots:
            record()
            self._commit(now)

    def go_on(self, seconds: float, most_bytes: float = COMMIT_BYTES) -> Delivered:
        """Take a snapshot, or send rows of it, for about so long, and about so many bytes of messages at most.

        Raises UsageError for a row that cannot be sent, what reading store files raises, and TransientError if the
        snapshot is gone: the next sender begins the table again.
        """
        delivered = Delivered()
        table = self._current()
        if table is None:
            return delivered
        if self.snapshots.tables[table].step is Step.TAKING:
            self._take(table, seconds)
        else:
            try:
                self._send(table, seconds, min(most_bytes, COMMIT_BYTES), delivered)
            except TransientError:
                raise
            except WalferryError as error:
                name = self.snapshots.tables[table].name
                if self._is_there(name):
                    raise
                raise TransientError(f"snapshot {name} at the source was deleted", snapshot=name) from error
        return delivered

    def _current(self) -> str | None:
        """The table whose rows are sent, or will be next."""
        steps = {name: table.step for name, table in self.snapshots.tables.items()}
        for wanted in (Step.SENDING, Step.TAKING):
            if found := [name for name, step in steps.items() if step is wanted]:
                return min(found)
        return None

    def _begin_again(self) -> None:
        """Another run's snapshots are gone, or will be: begin these tables again."""
        now = self.snapshots
        for table, known in list(now.tables.items()):
            if known.step not in (Step.TAKING, Step.SENDING):
                continue
            own = known.name.startswith(f"{self._run.run_id}-")
            if own and (known.step is Step.TAKING or self._is_there(known.name)):
                continue
            log.warning("snapshot %s is gone: all rows of %s are sent from another one", known.name, table)
            name = snapshot_name(self._run.run_id, table)
            again = TableSnapshot(Step.TAKING, name, known.asked_ms, count=known.count + 1)
            now = _with(now.without(table), table, again)
        self._commit(now)

    def _drop_left_over(self) -> None:
        """Delete the snapshots that a killed process has left at the source: they would keep store files for ever."""
        needed = {table.name for table in self.snapshots.tables.values() if table.step in (Step.TAKING, Step.SENDING)}
        for item in self._run.ledger.objects.all():
            if item.kind == "snapshot" and item.state != "removed" and item.name not in needed:
                self._drop(item.name)

    def _drop(self, name: str) -> None:
        drop_snapshot(self._run, self._run.source, "source", name)

    def _is_there(self, name: str) -> bool:
        """Whether a snapshot has its files. (The master's list may be incomplete after a restart.)"""
        return has_manifest(self._run.source_files, self._run.source_root, name)

    def _take(self, table: str, seconds: float) -> None:
        known = self.snapshots.tables[table]
        if self._taking is None:
            log.info("%s: taking snapshot %s", table, known.name)
            before = {name: sent for name, sent in self._sent.items() if sent.table == table}
            self._taking = begun(
                lambda: take(self._run, table, known.name, before, joins=not known.asked_ms), f"snapshot of {table}"
            )
        try:
            taken = self._taking.result(seconds)
        except NotYetError:
            return
        except RegionsChangedError as error:
            log.info("%s; it is taken again once they were seen", error)
            self._taking = None
            self._drop(known.name)
            self._commit(_let_go(self._with(table, replace(known, step=Step.WANTED, name="", since_ms=now_ms()))))
            return
        except TableNotFoundError:
            log.warning("%s was dropped: it has no rows to send", table)
            self._taking = None
            self._commit(_let_go(self._with(table, replace(known, step=Step.SENT, since_ms=now_ms()))))
            return
        self._taking = None
        sending = replace(known, step=Step.SENDING, since_ms=taken.complete_ms, taken_ms=taken.taken_ms)
        self._delivery.to_all(table, events.snapshot_begins(self._form, table, known.name, taken.taken_ms))
        now = self._with(table, sending)
        self._commit(replace(now, regions={**now.regions, **taken.regions}))
        log.info("%s: sending the rows of %s", table, amount(len(taken.regions), "region"))

    def _send(self, table: str, seconds: float, most_bytes: float, delivered: Delivered) -> None:
        known = self.snapshots.tables[table]
        if self._reading is None:
            found = regions_of(self._run, known.name)
            self._sizes = {region.name: sum(file.size for file in region.files) for region in found}
            self._began = now_ms(), self._done_bytes(table)
            self._reading = self._read(table, known, found, self.snapshots.of_table(table))
        began = steady_s()
        regions = dict(self.snapshots.regions)
        while (left := seconds - (steady_s() - began)) > 0 and delivered.bytes < most_bytes:
            self._next = self._next or self._thread.submit(next, self._reading, None)
            try:
                one = self._next.result(left)
            except NotYetError:
                break
            self._next = None
            if one is None:
                self._reading = None
                break
            if one.rows is None or one.made is None:
                regions[one.region] = replace(regions[one.region], next=None)
                continue
            self._next = self._thread.submit(next, self._reading, None)
            self._deliver(table, one.rows, one.made, delivered)
            regions[one.region] = replace(regions[one.region], next=one.rows.next)
        rows = known.rows + delivered.rows
        self._commit(replace(self._with(table, replace(known, rows=rows)), regions=regions), at_once=False)
        if self._reading is None:
            self._end(table)
        else:
            self._tell(table)

    def _deliver(self, table: str, rows: Rows, made: Made, delivered: Delivered) -> None:
        known = self.snapshots.tables[table]
        fitting = self._delivery.fit(replace(self._form, snapshot=_mark(known)), rows.batch, made)
        if fitting.refused:
            number, reason = min(fitting.refused.items())
            raise UsageError(
                f"row {made.name(number)} cannot be sent from snapshot {known.name}: {reason}. "
                "What was sent before it stays; once it can be sent, the stream goes on from there",
                table=table, snapshot=known.name,
            )  # fmt: skip
        self._delivery.send(rows.batch, made, fitting.claims)
        delivered.rows += len(made)
        delivered.bytes += made.size
        delivered.cells += int(rows.batch.cell_count.sum())

    def _read(
        self, table: str, known: TableSnapshot, found: Sequence[SnapshotRegion], wanted: Mapping[str, RegionRows]
    ) -> Iterator[_Made]:
        """The rest of a snapshot; runs in a thread of its own."""
        form = replace(self._form, snapshot=_mark(known))
        for region in found:
            known_rows = wanted[region.name]
            if known_rows.next is None:
                continue
            number, files = known_rows.number, self._run.source_files
            for rows in rows_of(files, table, region, known_rows.next, number, known.taken_ms):
                count = len(rows.batch)
                incarnations = np.full(count, known_rows.incarnation, np.int32)
                made = self._delivery.make(form, rows.batch, np.arange(count), incarnations)
                yield _Made(region.name, rows, made)
            yield _Made(region.name, None, None)

    def _end(self, table: str) -> None:
        """All rows of a table were sent."""
        known = self.snapshots.tables[table]
        self._delivery.to_all(table, events.snapshot_ends(self._form, table, known.name, known.rows))
        self._commit(_let_go(self._with(table, replace(known, step=Step.SENT))))
        log.info("%s: the snapshot is sent, %s", table, amount(known.rows, "row"))
        drop_progress(self._run.ledger, table)
        self._drop(known.name)

    def _done_bytes(self, table: str) -> int:
        regions = self.snapshots.of_table(table)
        return sum(size for name, size in self._sizes.items() if regions[name].next is None)

    def _tell(self, table: str) -> None:
        regions, (since_ms, begun_bytes) = self.snapshots.of_table(table).values(), self._began
        progress = Progress(
            since_ms, begun_bytes, self._done_bytes(table), sum(self._sizes.values()),
            sum(region.next is None for region in regions), len(regions), self.snapshots.tables[table].rows,
        )  # fmt: skip
        keep_progress(self._run.ledger, table, progress)
        if steady_s() - self._told > TELL_SECONDS:
            self._told = steady_s()
            log.info("sent: %s", progress.describe(table, now_ms()))

    def _with(self, table: str, known: TableSnapshot) -> Snapshots:
        return _with(self.snapshots, table, known)

    def _commit(self, now: Snapshots, *, at_once: bool = True) -> None:
        """Commit where the snapshots are; have it written, unless it may be lost with the rows that it tells of."""
        changed = now.changed(self.snapshots)
        self._sink.commit(changed)
        if changed and at_once:
            self._sink.write()
        self._covered.change(now.covering)
        self.snapshots = now


def _mark(known: TableSnapshot) -> SnapshotMark:
    return SnapshotMark(known.name, known.count)


def _let_go(now: Snapshots) -> Snapshots:
    """Let the tables go whose rows were sent, if there are no rows left of any other."""
    if any(one.step in (Step.TAKING, Step.SENDING) for one in now.tables.values()):
        return now
    for name, one in list(now.tables.items()):
        if one.step is Step.SENT:
            now = _with(now, name, replace(one, step=Step.CATCHING_UP))
    return now


def _with(now: Snapshots, table: str, known: TableSnapshot) -> Snapshots:
    return replace(now, tables={**now.tables, table: known})

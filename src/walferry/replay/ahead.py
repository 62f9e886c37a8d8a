"""Between two cuts: apply what the open logs show, so that the target is a second behind and not a round.

After a cut each WAL group has one file that is being written. It is read as far as it is visible, again and again, and
what it holds is sent at once, of the regions that stood still during the cut: all of their edits since then are in that
file, in order, or after a move in those of the servers that the region's closings and openings name, one after the
other (`replay.handover`). hbase:meta is not asked. Edits of other regions wait for the next round, and so does what a
group writes after its file was closed.

Nothing of this counts as applied (R2). The next batch has the same files, sealed, and accounts for every byte of them.
By group it leaves out what was sent, but only if the sealed file begins with the very bytes that had been visible:
those past the last acknowledgement may be taken back when HDFS recovers the file of a dead server
(`replay.taken_back`).

Leaving out rests on five more facts. Where one does not hold, everything is sent again, which changes nothing (R3):

1. The leases were not interrupted: nobody else has written since. `OpenLogs` belongs to one taking of them, and
   `OpenLogs.sent` asserts that the batch is applied under the same.
2. Quarantine holds the regions that it held at the cut, table by table: what was passed over then is not taken for
   sent. `OpenLogs.begin` gives up the files that go on, and `OpenLogs.sent` names no region, if it holds others.
3. A line never returns: every opening of a region raises its number. So a region that has the line of the cut before
   the batch and of the one after it was nowhere else. One that has moved has, after the batch, the line of the opening
   that was followed last: then all that came before it was sent, and the rest is in one file. Only of those two is
   something left out (`GroupTask.standing`), of the latter only if the batch has all files that were followed
   (`Batch.followed`). Otherwise, and in a batch that another process continues, they go by row.
4. A server that rests is not rolled (`replay.idle`): its file goes on, with all that was read of it, and is in no
   batch. `OpenLogs.begin` keeps a file's tail only under the file's own name.
5. The batch has nothing older of the file's group: it would come after what was sent. `batch` leaves out nothing of a
   file with an older one beside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from walferry.apply.by_group import GroupTask, Part, send_entries
from walferry.apply.outcomes import unreadable_markers
from walferry.apply.prefix import Prefix, Sent
from walferry.apply.region_events import RegionEvent, region_events
from walferry.apply.route import Route
from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.hbase.errors import may_be_under_way
from walferry.refusals import ANY_REGION
from walferry.replay.cut import Cut, server_of, standing
from walferry.replay.dirty import UnmarkedRowsError
from walferry.replay.handover import Handover
from walferry.replay.lease import LeaseLostError, OutcomeUnknownError
from walferry.replay.lineage import follow_at
from walferry.replay.quarantine import held_regions
from walferry.run.facts import kept_lines
from walferry.run.lag import Ahead, Followed, ahead_of, keep_ahead
from walferry.run.run import Run, RunEndedError
from walferry.run.sent_early import SentEarly, note_sent, sent_early
from walferry.wal.files import Place, WalFile
from walferry.wal.open import Until, Wal, open_wal

log = logging.getLogger(__name__)

PASS_SECONDS = 0.5
"""between the beginnings of two passes, at least"""
SECONDS_PER_GROUP = 0.02
"""and for each WAL group, since a pass lists each server's folder and reads each open file: of many servers each is
asked less often"""
READERS = 8
BATCH_BYTES = 1 << 20
SLICE_BYTES = 4 << 20
"""of one group, read before something is sent"""
ENOUGH_BYTES = 64 << 20
"""read since the cut; then a round is better, which shares the work among Spark's executors"""
WARN_SECONDS = 30.0


def seconds_between(groups: int) -> float:
    """From the beginning of a pass over the open logs of so many WAL groups to that of the next one, at least."""
    return max(PASS_SECONDS, SECONDS_PER_GROUP * groups)


class _Tail:
    """The open file of one WAL group."""

    def __init__(self, run: Run, file: WalFile, before: SentEarly | None) -> None:
        """`before`: what was sent of it by others, or by a tail that has been given up."""
        self.file = file
        self._before = before
        self._wal: Wal = open_wal(run.source_files, run.wal_root, file, Until.NOW, batch_bytes=BATCH_BYTES)
        self._visible: Iterator[EntryBatch] | None = None
        """what has become visible and was not read to its end yet"""
        self._prefix = Prefix()
        self._tables: set[str] = set()
        self.closed = False
        """nothing more is read of it until the next cut"""
        self.events: list[RegionEvent] = []
        """of the tables that are followed, from its beginning on"""
        self.followed = Followed(server=file.server)
        self._shown_after_ms: int | None = None

    def begin_pass(self) -> None:
        """Measure the next pass."""
        self._shown_after_ms = None
        self.followed = self.followed.model_copy(update={"read_ms": 0, "apply_ms": 0, "sending_since_ms": 0})

    def read(self) -> tuple[list[EntryBatch], bool]:
        """Some of what has become visible, and whether that was all."""
        began = time.monotonic()
        try:
            return self._read()
        finally:
            took_ms = round((time.monotonic() - began) * 1000)
            self._measured(read_ms=self.followed.read_ms + took_ms)

    def _read(self) -> tuple[list[EntryBatch], bool]:
        found, size = list[EntryBatch](), 0
        try:
            self._visible = self._visible or self._wal.more()
            for batch in self._visible:
                found.append(batch)
                size += batch.buffer.nbytes
                if size >= SLICE_BYTES:
                    return found, False
            self._visible = None
            self.closed = self._wal.unfinished is None and self._wal.length > 0
        except (OSError, WalferryError) as error:
            # Archived (the next round has it), damaged (it records that), or the NameNode cannot be reached.
            log.info("open log %s is not followed until the next round: %s", self.file.name, error)
            self.closed = True
        return found, True

    def took(self, batch: EntryBatch, tables: Sequence[str]) -> None:
        """Remember entries that are about to be sent, those of some tables, or passed over."""
        self._prefix.add(batch)
        self._tables.update(tables)

    def measure(self, batch: EntryBatch, edits: np.ndarray) -> None:
        """Measure how old the oldest of some edits is that were just read."""
        if edits.any():
            age_ms = max(0, now_ms() - int(batch.write_time[edits].min()))
            self._shown_after_ms = max(age_ms, self._shown_after_ms or 0)
            self._measured(shown_after_ms=self._shown_after_ms)

    def sending(self) -> None:
        """What was read is about to be sent."""
        self._measured(sending_since_ms=now_ms())

    def sent(self) -> None:
        """It is sent."""
        took_ms = max(0, now_ms() - self.followed.sending_since_ms)
        self._measured(apply_ms=self.followed.apply_ms + took_ms, sending_since_ms=0)

    def covered(self, moment_ms: int) -> None:
        """Everything that was written to it before a moment is applied."""
        self._measured(covered_ms=max(moment_ms, self.followed.covered_ms))

    def _measured(self, **numbers: int) -> None:
        self.followed = self.followed.model_copy(update=numbers)

    @property
    def end(self) -> int:
        """How far it was read, in bytes of the file."""
        return self._prefix.end

    def shown(self) -> SentEarly:
        """What was read, for the ledger; beside what others have read of it."""
        before = self._before or SentEarly(shown=(), tables=())
        own = (self._prefix.end, self._prefix.crc)
        return SentEarly(shown=(*before.shown, own), tables=tuple(sorted({*before.tables, *self._tables})))

    @property
    def sends(self) -> bool:
        """Whether something of it was sent, or is about to be."""
        return bool(self._tables)


class OpenLogs:
    """Sends what the open files show. One per replay, under its leases."""

    def __init__(self, run: Run, route: Route) -> None:
        self._run = run
        self._route = route
        self._tails: dict[str, _Tail] = {}
        self._known: frozenset[str] = frozenset()
        self._followed: frozenset[str] = frozenset()
        """the tables"""
        self._handover = Handover({})
        self._holds: Mapping[str, Collection[str]] = {}
        """for each table, the regions that quarantine held at the cut"""
        self._rejected: frozenset[tuple[str, int]] = frozenset()
        self._ahead = Ahead()
        self._noted: dict[str, SentEarly] = {}
        self._bytes = 0
        self._due = 0.0
        self._warned = -WARN_SECONDS

    def begin(self, cut: Cut) -> None:
        """Go on from a cut, everything before which is applied."""
        live = [file for file in cut.files if file.place is not Place.ARCHIVED]
        first = current(cut)
        held = held_regions(self._run)
        # What was passed over in a file that goes on must not be: it is read from its beginning.
        all_sent = not (self._handover.left or self._handover.waits or held != self._holds)
        same = [tail for tail in self._tails.values() if all_sent and not tail.closed]
        before = {tail.file.name: tail for tail in same}
        earlier = sent_early(self._run.ledger)
        self._tails = {
            file.group: before.get(file.name) or _Tail(self._run, file, earlier.get(file.name)) for file in first
        }
        self._known = frozenset(file.name for file in live)
        lines = kept_lines(self._run, "applied")
        self._followed = frozenset(table for table in lines if ANY_REGION not in held.get(table, ()))
        # Those that moved during the cut may have edits in a file after it that are older than some before it.
        still = standing(lines, cut.after)
        servers = {r: server_of(lines[table][r]) for table in self._followed for r in still.get(table, ())}
        self._holds = held
        self._handover = Handover(servers, self._held, self._continues)
        self._rejected = self._run.ledger.late.rejected()
        self._bytes = 0
        self._ahead = (ahead_of(self._run.ledger) or Ahead()).model_copy(update={"fault": ""})
        for tail in self._tails.values():
            tail.covered(cut.started_ms)
        self._covered(cut.started_ms)

    @property
    def _held(self) -> frozenset[str]:
        return frozenset().union(*self._holds.values())

    def sent(self, route: Route) -> dict[str, Sent]:
        """By file, what was sent of it since the last cut, for a batch that is applied under the leases of `route`.

        Regions are named only where the batch may leave out what was sent of them ("Leaving out", above): not of what a
        killed process sent, nor if quarantine holds other regions than at the cut.
        """
        assert route.guard is self._route.guard, "sent under other leases"
        found = sent_earlier(self._run)
        whole = self._handover.still | self._handover.followed.keys()
        if held_regions(self._run) != self._holds:
            whole = frozenset()
        for tail in self._tails.values():
            if tail.end:
                known = tail.shown()
                found[tail.file.name] = Sent(tail.end, known.shown, frozenset(known.tables), whole)
        return found

    @property
    def followed(self) -> dict[str, str]:
        """The lines of regions that have moved since the cut, all of whose edits that were read are sent."""
        return self._handover.followed

    def go_on(self) -> bool:
        """Make a pass over the open files if one is due. False if a round should begin now.

        Raises LeaseLostError, RunEndedError, OutcomeUnknownError, and UnmarkedRowsError. After another error nothing is
        followed until the next round.
        """
        if time.monotonic() < self._due:
            return True
        self._due = time.monotonic() + seconds_between(len(self._tails))
        try:
            return self._pass()
        except (LeaseLostError, RunEndedError, OutcomeUnknownError, UnmarkedRowsError):
            raise
        except Exception as error:  # whatever it is, rounds do not need it
            self._tails = {}  # what was read and not sent is unknown: the next round sends everything
            if time.monotonic() - self._warned > WARN_SECONDS:
                self._warned = time.monotonic()
                known = isinstance(error, (WalferryError, OSError))
                log.warning("the open logs cannot be followed now; rounds go on: %s", error, exc_info=not known)
            self._ahead = self._ahead.model_copy(update={"fault": str(error) or type(error).__name__})
            with suppress(WalferryError):  # it may be the ledger that fails
                keep_ahead(self._run.ledger, self._ahead)
            return True

    def _pass(self) -> bool:
        if not self._tails:
            return True
        began_ms = now_ms()
        for tail in self._tails.values():
            tail.begin_pass()
        listed = self._run.source_log.live()
        waiting = [tail for tail in self._tails.values() if not tail.closed]
        with ThreadPoolExecutor(READERS, thread_name_prefix="open log") as readers:
            while waiting:
                found = list(readers.map(_Tail.read, waiting))
                self._send([(tail, batch) for tail, (some, _) in zip(waiting, found, strict=True) for batch in some])
                waiting = [tail for tail, (_, to_the_end) in zip(waiting, found, strict=True) if not to_the_end]
        self._handover.end_pass()
        for tail in self._tails.values():
            if not (tail.closed or self._handover.is_behind(tail.file.name)):
                tail.covered(began_ms)
        needs_round = bool(self._handover.left) or any(tail.closed for tail in self._tails.values())
        # Of a server that has just come, or of a group that was just begun.
        needs_round = needs_round or any(file.name not in self._known for file in listed)
        if not (needs_round or self._handover.waits) and all(file.place is Place.LIVE for file in listed):
            self._covered(began_ms)
        else:
            self._note()
        return not needs_round and self._bytes < ENOUGH_BYTES

    def _send(self, read: Sequence[tuple[_Tail, EntryBatch]]) -> None:
        parts = list[Part]()
        for tail, batch in read:
            ours = batch.of_tables(self._followed)
            names = sorted({batch.tables[code].decode() for code in np.unique(batch.table[ours])})
            edits = ours & (batch.marker == Marker.NONE) & (batch.cell_count > 0)
            self._bytes += batch.buffer.nbytes
            for refusal in unreadable_markers(batch, tail.file.name, names):
                self._handover.leave(refusal.region)
            for name, offset in self._rejected:
                if name == tail.file.name:
                    edits &= batch.offset != offset
            tail.events += region_events(batch, tail.file.name, ours)
            tail.took(batch, names)
            tail.measure(batch, edits)
            parts += self._handover.take(tail.file.server, tail.file.name, batch, edits)
        if not parts:
            return
        sending = {part.file for part in parts}
        senders = [tail for tail in self._tails.values() if tail.file.name in sending]
        for tail in senders:
            tail.sending()
        self._note()
        task = GroupTask(self._route, (), frozenset(), self._held)
        try:
            refusals = send_entries(task, parts)
        except (LeaseLostError, RunEndedError, UnmarkedRowsError):
            raise
        except Exception as error:
            if not may_be_under_way(error):
                raise
            facts = error.facts if isinstance(error, WalferryError) else {}
            raise OutcomeUnknownError(f"edits of open logs may not have arrived: {error}", **facts) from error
        for refusal in refusals:
            self._handover.leave(refusal.region)
        for tail in senders:
            tail.sent()

    def _continues(self, region: str) -> bool:
        """Whether a region holds what it held before it opened, by what the log has shown up to now (R11)."""
        events = [event for tail in self._tails.values() for event in tail.events if event.region == region]
        known = self._run.ledger.regions.known({event.table for event in events}, [region])
        return not follow_at(self._run.source, known, events).breaks

    def _covered(self, moment_ms: int) -> None:
        """Record that the target has everything that was written before a moment."""
        self._ahead = self._ahead.covering(moment_ms, now_ms())
        self._note()

    def _note(self) -> None:
        """Keep what has been sent or is about to be, and how far each group is."""
        sent = {tail.file.name: tail.shown() for tail in self._tails.values() if tail.sends}
        note_sent(self._run.ledger, {name: one for name, one in sent.items() if self._noted.get(name) != one})
        self._noted = sent
        self._ahead = self._ahead.having({group: tail.followed for group, tail in self._tails.items()})
        keep_ahead(self._run.ledger, self._ahead)


def current(cut: Cut) -> list[WalFile]:
    """The files that were begun last at a cut, one of each group that still writes."""
    live = [file for file in cut.files if file.place is not Place.ARCHIVED]
    return [file for file in live if file.number == cut.current.get(file.group)]


def sent_earlier(run: Run) -> dict[str, Sent]:
    """By file, what another process may have sent while the file was open; no region is named."""
    return {
        name: Sent(0, sent.shown, frozenset(sent.tables), frozenset()) for name, sent in sent_early(run.ledger).items()
    }

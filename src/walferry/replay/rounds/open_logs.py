"""Apply what the open logs show, so that the target is a second behind instead of a round.

The open log of each WAL group is read as far as it is visible, again and again, and then the next log of the group.
Edits of regions that stood still during the first cut are sent at once. All of these regions' edits since the cut are
in that group's files, in order. After a move, a region's edits are in the files of the servers that its closings and
openings name, one after the other (`replay.rounds.sendable`). hbase:meta is not read.

None of these edits count as applied (R2). A round's batch has the same files, sealed, and accounts for every byte. When
it applies a file by group, it leaves out what was sent, but only if the sealed file begins with the very bytes that had
been visible: when HDFS recovers the file of a dead server, bytes past the last acknowledgement may be taken back
(`replay.log.taken_back`).

A round runs beside this (`OpenLogs.beside`). After its cut, all edits in the batch's files are sent for regions that
are followed without a break (`OpenLogs.settle`), so the batch sends nothing of these regions. The batch sends edits of
other regions, with other rows. Those regions wait for the batch, with the entries that their logs show since the cut.

Leaving out edits depends on six more facts. Where one does not hold, everything is sent again, which changes nothing
(R3):

1. The leases were held throughout: nobody else has written since. A replay makes a new `OpenLogs` each time it takes
   the leases, and `OpenLogs.settle` asserts that the batch is applied under these leases.
2. If quarantine holds a region, its edits from some entry on were not sent. `Sendable.whole` has no region that was
   held at the last cut or later.
3. A line never returns: every opening of a region raises its number. If a region's line after the cut is one that the
   logs have shown (`Sendable.lines`), everything before that opening was sent, and everything after it is in one group.
   `OpenLogs._whole_at` names only such regions.
4. A server that rests is not rolled (`replay.log.idle`): its file stays open, keeps everything that was read, and is in
   no batch.
5. The files of a group were read one after the other, each up to its trailer, and the batch has no other file of the
   group before the last of them (`OpenLogs._broken`). So the batch's later files are newer than what was sent. A file
   whose writer broke has no trailer, and the next file may repeat some of its entries. So nothing is left out for a
   region that has left such a server (`_whole_at`). A file with a trailer was closed by its server and no longer
   changes.
6. While the batch is applied, newer edits of a region are sent only if all of its edits in the batch's files were sent.
   If the files were not all read to their ends, or the batch goes in bulk, nothing is followed until the batch is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np

from walferry import background
from walferry.apply.by_group import GroupTask, Part, send_entries
from walferry.apply.outcomes import Refusal, unreadable_markers
from walferry.apply.prefix import Sent
from walferry.apply.region_events import region_events
from walferry.apply.route import Route
from walferry.clock import now_ms, steady_s
from walferry.errors import WalferryError
from walferry.formats.wal import EntryBatch
from walferry.hbase.errors import may_be_under_way
from walferry.ledger.batches import Change
from walferry.refusals import ANY_REGION
from walferry.replay.log.cut import Cut, server_of, standing
from walferry.replay.log.lineage import trace_at
from walferry.replay.quarantine import held_regions
from walferry.replay.rights.applying import is_paused
from walferry.replay.rights.dirty import UnmarkedRowsError
from walferry.replay.rights.lease import LeaseLostError, OutcomeUnknownError
from walferry.replay.rounds.open_tail import OpenTail
from walferry.replay.rounds.sendable import Sendable
from walferry.replay.rounds.sent_before_batch import Early, sent_before
from walferry.run.facts import Lines
from walferry.run.notes.sent_early import SentEarly, note_sent, sent_early
from walferry.run.progress.lag import Ahead, ahead_of, keep_ahead
from walferry.run.run import Run, RunEndedError
from walferry.wal.files import Place, WalFile, by_number

log = logging.getLogger(__name__)

PASS_SECONDS = 0.5
"""least time between the beginnings of two passes"""
SECONDS_PER_GROUP = 0.02
"""the same time, but for each WAL group: a pass lists each server's folder and reads each open file, so passes are less
frequent if there are many servers"""
READERS = 8
ENOUGH_BYTES = 64 << 20
"""once this many bytes were read since the cut, a round is better: it spreads the work over Spark's executors"""
SETTLE_SECONDS = (3.0, 10.0)
"""longest waits after a cut: for the closing of a region that has opened, and for reading the sealed files"""
LATE_PASSES, LATE_SECONDS = 3, 10.0
"""a pass is late after this many times the usual time between two passes, plus this many seconds"""
LOOK_SECONDS = 0.05
"""time between two checks whether a pass is due, beside a round"""
END_SECONDS = 10.0
"""how long an interrupted process waits for the current pass, which may wait for as long as the run is paused"""
WARN_SECONDS = 30.0
_VERDICTS = (LeaseLostError, RunEndedError, OutcomeUnknownError, UnmarkedRowsError)


def seconds_between(groups: int) -> float:
    """Least time between the beginnings of two passes over the open logs of this many WAL groups."""
    return max(PASS_SECONDS, SECONDS_PER_GROUP * groups)


class OpenLogs:
    """Sends what the open logs show. A replay needs a new one each time it takes its leases. Thread-safe.

    Before anything is sent, it is noted in the ledger under `lease_check`, which raises once another process has the
    leases.
    """

    def __init__(self, run: Run, route: Route, lease_check: Change) -> None:
        self._run = run
        self._route = route
        self._lease_check = lease_check
        self._passing = threading.RLock()
        """held during a pass, and while the followed logs and regions change"""
        self._tails: dict[str, OpenTail] = {}
        """the current tail of each WAL group"""
        self._read: list[OpenTail] = []
        """earlier tails, read up to their trailers, whose files are in no applied batch yet"""
        self._overdue: set[str] = set()
        """logs that had no trailer at the last pass although their group had a newer log"""
        self._groups: frozenset[str] = frozenset()
        """WAL groups that existed at the cut"""
        self._followed: frozenset[str] = frozenset()
        """tables whose edits are followed"""
        self._regions: Mapping[str, Collection[str]] = {}
        """each table's regions at the cut"""
        self._sendable = Sendable({})
        self._whole: frozenset[str] = frozenset()
        """regions that were followed past the cut: in each log up to the place in `_taken`"""
        self._taken: Mapping[str, int] = {}
        self._is_applied = False
        """whether the entries that wait for the batch can be sent now"""
        self._is_behind = False
        """whether the current batch has entries that were not sent"""
        self._holds: Mapping[str, Collection[str]] = {}
        """for each table, the regions that quarantine holds"""
        self._rejected: frozenset[tuple[str, int]] = frozenset()
        self._ahead = Ahead()
        self._noted: dict[str, SentEarly] = {}
        self._bytes = 0
        self._due = 0.0
        self._listed_at = 0.0
        self._warned = -WARN_SECONDS
        self._verdict: BaseException | None = None
        """the error that ended the passes: no further batch may begin under these leases"""

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Make passes in a thread until the block ends. Then raise any error of `go_on`, even in place of the block's
        own error: the caller must learn of a request whose outcome is unknown."""
        over = threading.Event()
        going = background.begun(lambda: self._go_on_until(over), "open logs")
        try:
            yield
        except Exception as error:
            over.set()
            with suppress(Exception):
                going.result()
            if self._verdict is not None:
                raise self._verdict from error
            raise
        except BaseException:
            over.set()
            with suppress(Exception):
                going.result(END_SECONDS)
            raise
        over.set()
        going.result()

    def _go_on_until(self, over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS):
            if time.monotonic() >= self._due and not self._is_paused():
                self.go_on()

    def _is_paused(self) -> bool:
        try:
            return is_paused(self._run)
        except RunEndedError:
            raise
        except WalferryError:  # the ledger cannot be reached: the round reports that
            return True

    def settle(self, cut: Cut, files: Sequence[WalFile], applied: Lines, route: Route) -> Early:
        """Read the logs that a cut has sealed. Returns what was sent of them, for a batch that is applied under the
        leases of `route`. If the logs could be read to the end, passes go on from the cut; otherwise they go on once
        the batch is `applied`.

        `files`: the batch's files. `applied`: the lines at the last applied cut. Raises the error that has ended the
        passes, if there is one.
        """
        assert route.guard is self._route.guard, "sent under other leases"
        began = steady_s()
        while True:
            with self._passing:
                self._due = 0.0
                self.go_on()
                is_read = self._has_read(cut)
                most = SETTLE_SECONDS[0 if is_read else 1]
                if (is_read and not self._sendable.awaits_closing) or steady_s() - began > most:
                    return self._settled(cut, files, applied, goes_on=is_read and bool(self._tails))
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Send nothing more until the batch is `applied`; the next batch leaves nothing out."""
        with self._passing:
            self._tails, self._read, self._overdue = {}, [], set()
            self._sendable, self._whole, self._taken = Sendable({}), frozenset(), {}

    def applied(self, cut: Cut) -> None:
        """Note that everything before a cut is applied."""
        with self._passing:
            self._hold()
            if self._tails:
                self._read = [tail for tail in self._read if not tail.is_before(cut)]
                self._is_applied = True
            else:
                self._ahead = (ahead_of(self._run.ledger) or Ahead()).model_copy(update={"fault": ""})
                self._sendable = Sendable({}, (), self._continues)
                self._listed_at = steady_s() - max(0, now_ms() - cut.started_ms) / 1000
                self._take_up(cut, {})
                self._sendable.batch_done()
            self._is_behind = False
            for tail in self._tails.values():
                tail.covered(cut.started_ms)
            self._covered(cut.started_ms)

    def _has_read(self, cut: Cut) -> bool:
        """Whether all sealed logs were read, except logs of groups that cannot be read further."""
        return all(tail.closed or tail.file.number >= cut.current.get(group, 0) for group, tail in self._tails.items())

    def _settled(self, cut: Cut, files: Sequence[WalFile], applied: Lines, *, goes_on: bool) -> Early:
        every = self._every
        below = [tail for tail in every if tail.is_before(cut)]
        doubted = {tail.file.server for tail in below if not tail.sealed}
        whole = self._whole_at(cut, self._broken(cut, files, below, goes_on=goes_on), doubted)
        before = sent_before(self._run, cut)
        sent = dict(before.sent)
        for tail in below:
            if tail.end:
                known = tail.shown()
                sent[tail.file.name] = Sent(tail.end, known.shown, frozenset(known.tables), frozenset(whole))
        logs = set(before.logs) - {tail.file.name for tail in every if not tail.is_before(cut)}
        stood = frozenset().union(*standing(applied, cut.after).values())
        if goes_on:
            self._take_up(cut, whole)
        else:
            self.stop()
        return Early(sent, frozenset(whole) - stood, logs)

    def _broken(
        self, cut: Cut, files: Sequence[WalFile], below: Sequence[OpenTail], *, goes_on: bool
    ) -> frozenset[str]:
        """The servers whose edits may have been sent out of order: before older ones, or after some that nobody saw."""
        names = {tail.file.name for tail in below}
        last = {tail.file.group: tail.file.number for tail in sorted(below, key=lambda tail: by_number(tail.file))}
        unread = [file for file in files if file.name not in names]
        found = {file.server for file in unread if goes_on or file.number <= last.get(file.group, file.number)}
        found |= {tail.file.server for tail in self._tails.values() if tail.is_broken}
        dead = cut.groups - cut.current.keys()
        return frozenset(found | {tail.file.server for tail in below if tail.file.group in dead})

    def _whole_at(self, cut: Cut, broken: Collection[str], doubted: Collection[str]) -> dict[str, str]:
        """The regions whose entries were all sent, at least up to the cut, or as far as their server's log was read;
        with their lines at the cut. Leaves out regions that were on a `broken` server, or have left a `doubted` one: if
        that server's log writer broke, its next log may repeat some entries."""
        self._hold()
        now = {region: line for table in self._followed for region, line in cut.after.get(table, {}).items()}
        had = {region: self._sendable.lines(region) for region in self._sendable.whole & now.keys()}
        servers = {region: {server_of(line) for line in lines} for region, lines in had.items()}
        return {
            region: now[region]
            for region, lines in had.items()
            if now[region] in lines and servers[region].isdisjoint(broken)
            and (servers[region] - {server_of(now[region])}).isdisjoint(doubted)
        }  # fmt: skip

    def _take_up(self, cut: Cut, whole: Mapping[str, str]) -> None:
        """Go on from a cut with the `whole` regions. Other regions wait for the batch if they stood still during the
        cut. Regions that moved are not followed: files after the cut may have edits that are older than some edits
        before the cut."""
        self._holds, self._rejected = held_regions(self._run), self._run.ledger.late.rejected()
        self._followed = frozenset(table for table in cut.after if ANY_REGION not in self._holds.get(table, ()))
        self._regions = {table: frozenset(lines) for table, lines in cut.after.items()}
        still = standing(cut.before, cut.after)
        at_rest = {r: cut.after[table][r] for table in self._followed for r in still.get(table, ())}
        others = {region: line for region, line in at_rest.items() if region not in whole and region not in self._held}
        self._sendable.take_up(whole, others, self._held)
        followed = frozenset().union(*(self._regions[table] for table in self._followed))
        self._is_behind = not (followed - self._held).issubset(whole)
        first, tails = {file.group: file for file in cut.begun()}, self._every
        if others:  # read again the entries of these regions that were skipped since the cut
            shown = {tail.file.name: tail.shown() for tail in tails if tail.sends}
            self._whole, self._taken = frozenset(whole), {tail.file.name: tail.end for tail in tails}
            self._read = [tail for tail in tails if tail.is_before(cut)]
            self._tails = {group: self._tail(file, shown.get(file.name)) for group, file in first.items()}
        else:
            gone = cut.groups | {group for group, tail in self._tails.items() if tail.is_broken}
            gone -= first.keys()
            self._tails = {group: tail for group, tail in self._tails.items() if group not in gone}
            for group, file in first.items():
                tail = self._tails.get(group)
                if tail is None or (tail.is_broken and tail.file.number < file.number):
                    self._tails[group] = self._tail(file)
        self._groups = cut.groups
        self._is_applied, self._bytes = False, 0

    @property
    def _every(self) -> list[OpenTail]:
        return [*self._read, *self._tails.values()]

    def _tail(self, file: WalFile, shown: SentEarly | None = None) -> OpenTail:
        return OpenTail(self._run, file, shown or sent_early(self._run.ledger).get(file.name))

    @property
    def _held(self) -> frozenset[str]:
        return frozenset().union(*self._holds.values())

    def go_on(self) -> bool:
        """Make a pass over the open logs if one is due. Returns False if a round should begin now.

        Raises LeaseLostError, RunEndedError, OutcomeUnknownError, and UnmarkedRowsError. After any other error nothing
        is followed until the next round.
        """
        with self._passing:
            if self._verdict is not None:
                raise self._verdict
            if time.monotonic() < self._due:
                return True
            self._due = time.monotonic() + seconds_between(len(self._tails))
            try:
                return self._pass()
            except BaseException as error:
                self.stop()  # it is unknown which entries were read but not sent: the next round sends all
                if isinstance(error, _VERDICTS) or not isinstance(error, Exception):
                    self._verdict = error
                    raise
                # Rounds do not need open logs, whatever the error is.
                if time.monotonic() - self._warned > WARN_SECONDS:
                    self._warned = time.monotonic()
                    known = isinstance(error, (WalferryError, OSError))
                    log.warning(
                        "the open logs cannot be followed now, but rounds continue: %s", error, exc_info=not known
                    )
                self._ahead = self._ahead.model_copy(update={"fault": str(error) or type(error).__name__})
                with suppress(WalferryError):  # the ledger itself may fail
                    keep_ahead(self._run.ledger, self._ahead)
                return True

    def _pass(self) -> bool:
        if not self._tails:
            return True
        began_ms = now_ms()
        for tail in self._tails.values():
            tail.begin_pass()
        self._hold()
        if self._is_applied:
            self._is_applied = False
            self._send(self._sendable.batch_done())
        listed = self._run.wal_listing.live()
        pause, self._listed_at = steady_s() - self._listed_at, steady_s()
        if pause > LATE_PASSES * seconds_between(len(self._tails)) + LATE_SECONDS:
            self._doubt_next(listed)
        # Logs may have been sealed after the last pass had listed the files: their successors are listed now.
        self._next(listed)
        waiting = [tail for tail in (*self._tails.values(), *self._new(listed)) if not tail.closed]
        with ThreadPoolExecutor(READERS, thread_name_prefix="open log") as readers:
            while waiting:
                found = list(readers.map(OpenTail.read, waiting))
                self._take([(tail, batch) for tail, (some, _) in zip(waiting, found, strict=True) for batch in some])
                waiting = [tail for tail, (_, to_the_end) in zip(waiting, found, strict=True) if not to_the_end]
                waiting += self._next(listed)
        self._sendable.end_pass()
        overdue = {tail.file.name for tail in self._tails.values() if not tail.closed and tail.next_in(listed)}
        broken = any(tail.is_broken for tail in self._tails.values())
        for tail in self._tails.values():
            name = tail.file.name
            if not (self._is_behind or tail.is_broken or name in overdue or self._sendable.is_behind(name)):
                tail.covered(began_ms)
        # A server has started and died since the cut, or has not closed its log in order.
        unknown = any(file.group not in self._groups and file.group not in self._tails for file in listed)
        needs_round = bool(self._sendable.left) or broken or unknown or bool(overdue & self._overdue)
        all_seen = not overdue and all(file.place is Place.LIVE for file in listed)
        self._overdue = overdue
        if not (needs_round or self._sendable.waits or self._is_behind) and all_seen:
            self._covered(began_ms)
        else:
            self._note()
        return not needs_round and self._bytes < ENOUGH_BYTES

    def _new(self, listed: Sequence[WalFile]) -> list[OpenTail]:
        """Start to follow the first log of each group that did not exist at the cut."""
        found = []
        for file in sorted(listed, key=by_number):
            if file.place is Place.LIVE and file.group not in self._groups and file.group not in self._tails:
                found.append(self._tails.setdefault(file.group, self._tail(file)))
        return found

    def _doubt_next(self, listed: Sequence[WalFile]) -> None:
        """The last listing is too old: since then, a log that comes before the logs listed now may have been created,
        closed and archived. So stop following groups that have a newer log."""
        for tail in self._tails.values():
            if tail.next_in(listed) is not None:
                tail.break_off()

    def _next(self, listed: Sequence[WalFile]) -> list[OpenTail]:
        """Start to follow the next log of each group whose current log was read up to its trailer."""
        found = []
        for group, tail in list(self._tails.items()):
            if tail.sealed and (file := tail.next_in(listed)) is not None:
                self._read.append(tail)
                self._tails[group] = self._tail(file)
                self._tails[group].followed = tail.followed
                found.append(self._tails[group])
        return found

    def _take(self, read: Sequence[tuple[OpenTail, EntryBatch]]) -> None:
        """Of the entries just read, send those whose order is known."""
        parts = list[Part]()
        for tail, batch in read:
            ours, again = batch.of_tables(self._followed), self._taken_before(tail, batch)
            names = sorted({batch.tables[code].decode() for code in np.unique(batch.table[ours])})
            edits = ours & ~again & batch.edits
            self._bytes += batch.buffer.nbytes
            for refusal in unreadable_markers(batch, tail.file.name, names):
                self._sendable.leave(refusal.region)
            for name, offset in self._rejected:
                if name == tail.file.name:
                    edits &= batch.offset != offset
            tail.events += region_events(batch, tail.file.name, ours)
            tail.took(batch, names)
            tail.measure(batch, edits)
            parts += self._sendable.take(tail.file.server, tail.file.name, batch, edits, again)
        self._send(parts)

    def _taken_before(self, tail: OpenTail, batch: EntryBatch) -> np.ndarray:
        """The entries that were taken before the cut's batch began."""
        before = batch.offset_end <= self._taken.get(tail.file.name, 0)
        return before & batch.of_regions(self._whole) if before.any() else before

    def _send(self, parts: Sequence[Part]) -> None:
        if not parts:
            return
        sending = {part.file for part in parts}
        senders = [tail for tail in self._tails.values() if tail.file.name in sending]
        for tail in senders:
            tail.sending()
        self._note()
        for refusal in self._sent(parts):
            self._sendable.leave(refusal.region)
        for tail in senders:
            tail.sent()

    def _sent(self, parts: Sequence[Part]) -> list[Refusal]:
        """Send parts under the leases. Returns the target's refusals."""
        try:
            return send_entries(GroupTask(self._route, (), frozenset(), self._held), parts)
        except (LeaseLostError, RunEndedError, UnmarkedRowsError):
            raise
        except Exception as error:
            if not may_be_under_way(error):
                raise
            facts = error.facts if isinstance(error, WalferryError) else {}
            raise OutcomeUnknownError(f"edits of open logs may not have arrived: {error}", **facts) from error

    def _hold(self) -> None:
        """Pass on nothing more of the regions that quarantine holds now; released regions wait for the next cut."""
        now = held_regions(self._run)
        if now != self._holds:
            merged: dict[str, set[str]] = defaultdict(set)
            for table, regions in (*self._holds.items(), *now.items()):
                merged[table] |= set(regions)
            self._holds = merged
            stopped = {table for table, regions in merged.items() if ANY_REGION in regions}
            self._followed -= stopped
            self._sendable.hold(self._held.union(*(self._regions.get(table, ()) for table in stopped)))

    def _continues(self, region: str) -> bool:
        """Whether a region that opened still has its old data, judged by the log so far (R11)."""
        events = [event for tail in self._every for event in tail.events if event.region == region]
        known = self._run.ledger.regions.known({event.table for event in events}, [region])
        return not trace_at(self._run.source, known, events).breaks

    def _covered(self, moment_ms: int) -> None:
        """Record that the target has everything written before a moment."""
        self._ahead = self._ahead.covering(moment_ms, now_ms())
        self._note()

    def _note(self) -> None:
        """Note in the ledger what has been sent or is about to be, and how far each group was read."""
        sent = {tail.file.name: tail.shown() for tail in self._every if tail.sends}
        changed = {name: one for name, one in sent.items() if self._noted.get(name) != one}
        note_sent(self._run.ledger, changed, self._lease_check)
        self._noted = sent
        self._ahead = self._ahead.having({group: tail.followed for group, tail in self._tails.items()})
        keep_ahead(self._run.ledger, self._ahead)

"""The loop of a stream: passes over the log, rows of snapshots between them, and looks into the ledger."""

from __future__ import annotations

import logging
import math
import time

from walferry.clock import steady_s
from walferry.errors import GapError, TransientError, WalferryError
from walferry.replay.keeping import protect
from walferry.replay.rights.pace import Pace
from walferry.run.log_folder import log_obstacle
from walferry.run.notes.throttle import throttle_of
from walferry.run.turn import Turn
from walferry.streams.account import Account
from walferry.streams.follower import Follower
from walferry.streams.queued import require_queued_here
from walferry.streams.resolved import ResolvedTimes
from walferry.streams.snapshot.sender import SnapshotSender
from walferry.streams.stream_run import StreamRun

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""time between two looks into the ledger: whether the run has ended, is paused, or an item was released"""
ROWS_SECONDS = 1.0
"""rows of snapshots are sent for so long between two passes over the log"""
RELEASE_SECONDS = 600.0
PLACE_SECONDS = 30.0
"""time between two looks at whether servers log where the stream reads"""
LOOK_FREE_SECONDS, LOOK_SHARE = 0.1, 10
"""a look that takes longer, with thousands of servers, is made again only after so many times that"""


class Passes:
    """Passes over the log, and snapshots of tables between them, with one sink."""

    def __init__(
        self,
        run: StreamRun,
        turn: Turn,
        follower: Follower,
        snapshots: SnapshotSender,
        times: ResolvedTimes,
        held: int,
    ) -> None:
        """`held`: items in quarantine."""
        self._run, self._turn, self._follower = run, turn, follower
        self._snapshots, self._times = snapshots, times
        self._account = Account(run, follower)
        self._held = held
        self._pace, self._owed = Pace(), (0, 0)
        self._most_bytes = math.inf
        self._looked, self._let_go = -LOOK_SECONDS, steady_s()
        self._placed, self._all_here, self._rest_s = -PLACE_SECONDS, True, 0.0

    def make(self) -> None:
        """Until what is held changes: an item was released from quarantine, or a snapshot begins or was sent. The log
        is then read again from where it was held."""
        holding = self._snapshots.snapshots.holding
        only_rows = holding >= set(self._run.source_tables)
        while self._snapshots.snapshots.holding == holding:
            if steady_s() - self._looked >= LOOK_SECONDS:
                if not self._look():
                    return
                if self._run.ledger.record.paused:
                    self._follower.write()
                    time.sleep(LOOK_SECONDS)
                    continue
            if wait_s := self._pace.take(*self._owed):
                time.sleep(min(wait_s, LOOK_SECONDS))
                continue
            if any(self._owed):  # it counts now, so the next pass waits until it is paid off
                self._owed = 0, 0
                continue
            self._send_rows()
            if not only_rows:
                self._pass()

    def _send_rows(self) -> None:
        try:
            rows = self._snapshots.go_on(ROWS_SECONDS, self._most_bytes)
        except WalferryError:
            self._turn.require()  # a run that was aborted has no snapshot any more
            raise
        self._owed = rows.cells, rows.bytes

    def _look(self) -> bool:
        """Look into the ledger. False: an item was released."""
        run = self._run
        self._looked = steady_s()
        throttle = throttle_of(run.ledger)
        self._pace.allow(throttle.write_bytes, throttle.write_cells)
        self._most_bytes = ROWS_SECONDS * (throttle.write_bytes or math.inf)
        self._turn.require()
        if self._looked - self._placed >= PLACE_SECONDS:
            self._is_all_here()
        self._follower.tend()
        if len(run.ledger.quarantine.holds()) < self._held:
            return False
        self._snapshots.take_up()
        if steady_s() - self._let_go > RELEASE_SECONDS:
            self._let_go = steady_s()
            _let_go(run)
        return True

    def _pass(self) -> None:
        try:
            passed = self._follower.pass_once()
            cells, size = self._owed
            self._owed = cells + passed.cells, size + passed.bytes
            self._held += self._account.add(passed)
        except GapError as error:
            raise _lost(self._run, error) from None
        if passed.read_ms is not None:
            sent = frozenset(self._run.source_tables) - passed.waiting
            self._snapshots.followed(passed.read_ms, sent, self._follower.record)
            if self._times.due and self._is_all_here():  # after the pass: so what it has read was everything
                self._times.tell(passed.read_ms, sent - self._snapshots.snapshots.in_progress)

    def _is_all_here(self) -> bool:
        """Whether servers log where the stream reads. False while that cannot be found out, which is tried every half
        minute, and while the last look is too young for what it cost. Raises TransientError if some log elsewhere, and
        GapError if some did: the stream would take that for silence."""
        began = steady_s()
        if began - self._placed < (self._rest_s if self._all_here else PLACE_SECONDS):
            return False
        self._placed, self._all_here = began, False
        run = self._run
        try:
            obstacle = log_obstacle(run.source, run.source_tables, run.wal_files)
            if obstacle is None:
                require_queued_here(run, self._follower.listing.names)
        except TransientError as error:
            log.warning("no resolved time is told, since nothing shows whether servers log here: %s", error)
            return False
        if obstacle is not None:
            raise TransientError(f"source: {obstacle}", side="source")
        self._all_here = True
        self._rest_s = LOOK_SHARE * max(0.0, steady_s() - began - LOOK_FREE_SECONDS)
        return True


def _let_go(run: StreamRun) -> None:
    try:
        protect.way_of(run).let_go(run)
    except WalferryError as error:
        log.warning("logs that were sent cannot be released and accumulate: %s", error)


def _lost(run: StreamRun, error: GapError) -> GapError:
    """The error of a file that is gone, in a stream's words; the ledger has the file as missing."""
    file = error.facts.get("file", "")
    if run.ledger.log.known({file}):
        run.ledger.log.mark_missing(file)
    return GapError(
        f"WAL file {file} is missing from WALs, -splitting and oldWALs, and was not sent past byte "
        f"{error.facts.get('start')}: HBase has deleted it. If you still have it, put it into oldWALs and start the "
        "stream again. If it is lost, so are its changes: start the stream with a higher epoch, which begins at the "
        "log that is there",
        **error.facts,
    )

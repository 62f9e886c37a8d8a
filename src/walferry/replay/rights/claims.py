"""Claims: the right to write, as each process of a replay knows it (R13).

A process sends only under a lease that it knows to have been held less than L ago (`Limits.claim_seconds`), by a clock
that goes on while the machine sleeps. It asks ZooKeeper at its first request and then every L/2; in between, a watch on
the holder and the state of its own session tell at once when the lease may have ended. Whoever takes the lease from a
holder that did not release it waits for L and the end of the requests sent in that time (`Limits.quiet_seconds`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

from kazoo.protocol.states import KazooState

from walferry.apply.writer_protocol import Rows
from walferry.clock import now_ms, steady_s
from walferry.hbase.address import ClusterAddress
from walferry.replay.rights import lease
from walferry.replay.rights.dirty import DirtyRows, mark
from walferry.replay.rights.lease import Attempt, HeldLease, LeaseLostError, LeaseUnknownError, Watch
from walferry.replay.rights.throttle_share import Turns, turns_at
from walferry.spark.clients import shared_client

log = logging.getLogger(__name__)

READS = 5
"""tries to confirm a claim; a session that expired while the process was suspended takes some"""
_FIRST_PAUSE_S = 0.2


@dataclass(frozen=True)
class Claims:
    """The guard of one replay: the leases that it took, and for how long a process may rely on having seen them."""

    target: ClusterAddress
    leases: Mapping[str, HeldLease]
    run_id: str
    seconds: float
    """L: a claim that was confirmed longer ago than this is none"""
    quiet_seconds: float
    """`Limits.quiet_seconds`"""
    attempt: Attempt | None = None
    """at a Spark task; None in the driver"""
    throttle: str | None = None
    """the node of `replay.rights.throttle_share`; None: there is none"""

    def of_attempt(self, task: str, number: int) -> Claims:
        """The claims of one attempt at a Spark task.

        Spark repeats a task when it loses its executor, which may go on elsewhere: suspended, or without a connection
        to the driver. So a repeated attempt ends the claims of those before it, and waits like a lease's next holder.
        """
        attempt = Attempt(task, number)
        if number > 0:
            _supersede(self.target, tuple(self.leases.values()), attempt, self.quiet_seconds)
        return replace(self, attempt=attempt)

    def __call__(self, tables: Collection[str]) -> None:
        """Raise LeaseLostError unless this process knows that the run held the leases of `tables` less than L ago."""
        for table in tables:
            _confirmation(self.target, self.leases[table], self.attempt, self.seconds).require()

    def wait_turn(self, tables: Collection[str], cells: int, size: int) -> None:
        """Wait while the run is paused, or has sent what its throttle allows.

        Raises LeaseLostError when the lease is lost meanwhile, RunEndedError when the run was ended.
        """
        if (turns := self._turns()) is not None:
            turns.wait(lambda: self(tables), cells, size)

    def slow_down(self) -> None:
        """Let this process send less for a while."""
        if (turns := self._turns()) is not None:
            turns.slow_down()

    def _turns(self) -> Turns | None:
        if self.throttle is None:
            return None
        return turns_at(self.target, self.throttle, next(iter(self.leases.values())))

    def mark_dirty(self, rows: Rows, why: str = "") -> None:
        """Mark rows in the target's ZooKeeper. Raises UnmarkedRowsError if that stays impossible."""
        for table, (first, last) in rows.items():
            found = DirtyRows.of(table, first, last, self.run_id, self.leases[table].number, now_ms(), why)
            log.error("%s", found.describe())
            mark(self.target, found)


class Confirmation:
    """When this process last knew that a lease was held. Usable from several threads, one of which reads."""

    def __init__(self, held: HeldLease, attempt: Attempt | None, seconds: float, read: Callable[[], None]) -> None:
        """`read` raises LeaseLostError unless the lease is held now; `end` is to be called once that may change."""
        self.held = held
        self.attempt = attempt
        self.seconds = seconds
        self._read = read
        self._confirmed: float | None = None
        self._ended = 0
        self._state = threading.Lock()
        self._reading = threading.Lock()

    def end(self) -> None:
        """From now on nothing is known until ZooKeeper is asked again."""
        with self._state:
            self._confirmed = None
            self._ended += 1

    def require(self) -> None:
        """Return if the lease was held less than `seconds` ago; asks ZooKeeper if it was more than half of that.

        Raises LeaseLostError when the lease is lost, LeaseUnknownError when ZooKeeper does not say.
        """
        age = self._age()
        if age < self.seconds / 2:
            return
        if not self._reading.acquire(blocking=age >= self.seconds):
            return  # another thread asks, and there is still time
        try:
            self._renew()
        finally:
            self._reading.release()

    def _age(self) -> float:
        confirmed = self._confirmed
        return float("inf") if confirmed is None else steady_s() - confirmed

    def _renew(self) -> None:
        for attempt in range(READS):
            if self._age() < self.seconds / 2:
                return
            with self._state:
                asked, ended = steady_s(), self._ended  # before the question: an answer may be late
            try:
                self._read()
            except LeaseUnknownError:
                if self._age() < self.seconds:
                    return
                if attempt == READS - 1:
                    raise
                time.sleep(_FIRST_PAUSE_S * 2**attempt)
                continue
            except LeaseLostError:
                self.end()
                raise
            with self._state:
                if self._ended == ended:
                    self._confirmed = asked
        if self._age() >= self.seconds:
            raise LeaseUnknownError(
                f"the lease number {self.held.number} on target table {self.held.table} could not be confirmed within "
                f"{self.seconds:g} s; is the target's ZooKeeper slow, or this machine overloaded?",
                table=self.held.table, number=self.held.number,
            )  # fmt: skip


_known: dict[tuple[ClusterAddress, str], Confirmation] = {}
"""of this process: for each table the newest lease, and the newest task, which works on nothing else meanwhile"""
_lock = threading.Lock()


@cache  # a task has several writers
def _supersede(target: ClusterAddress, leases: tuple[HeldLease, ...], attempt: Attempt, seconds: float) -> None:
    log.warning("attempt %d at task %s: waiting %.0f s until the one before it sends nothing more",
                attempt.number, attempt.task, seconds)  # fmt: skip
    for held in leases:
        lease.supersede(shared_client(target).zk, held, attempt)
    time.sleep(seconds)


def _confirmation(target: ClusterAddress, held: HeldLease, attempt: Attempt | None, seconds: float) -> Confirmation:
    def read() -> None:
        zk = shared_client(target).zk
        zk.add_listener(_session_changed)  # once, however often it is added
        lease.check(zk, held, _watch(target, held.table), attempt)

    with _lock:
        known = _known.get((target, held.table))
        if known is None or (known.held, known.attempt, known.seconds) != (held, attempt, seconds):
            known = _known[target, held.table] = Confirmation(held, attempt, seconds, read)
        return known


@cache  # kazoo keeps each watch that differs until the node changes
def _watch(target: ClusterAddress, table: str) -> Watch:
    def changed(_: object) -> None:
        with _lock:
            known = _known.get((target, table))
        if known is not None:
            known.end()

    return changed


def _session_changed(state: str) -> None:
    if state != KazooState.CONNECTED:
        with _lock:
            known = list(_known.values())
        for confirmation in known:
            confirmation.end()

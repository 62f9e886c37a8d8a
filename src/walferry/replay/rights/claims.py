"""Claims: the right to write, as each process of a replay knows it (R13).

A process sends only if it confirmed the lease less than L ago (`WriteLimits.claim_seconds`), by a clock that keeps
running while the machine sleeps. It asks ZooKeeper at its first request and then every L/2. In between, a watch on the
holder and the state of its own session notify it at once when the lease may have ended. If a holder did not release the
lease, the next holder first waits for L and for the requests that may have been sent in that time
(`WriteLimits.quiet_seconds`).
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
"""attempts to confirm a claim; more than one is needed if the session expired while the process was suspended"""
_FIRST_PAUSE_S = 0.2


@dataclass(frozen=True)
class Claims:
    """The guard of one replay: the leases that it took, and how long a process may rely on a confirmation of them."""

    target: ClusterAddress
    leases: Mapping[str, HeldLease]
    run_id: str
    seconds: float
    """L: a claim expires this long after its last confirmation"""
    quiet_seconds: float
    """`WriteLimits.quiet_seconds`"""
    attempt: Attempt | None = None
    """the attempt at a Spark task; None in the driver"""
    throttle: str | None = None
    """the node of `replay.rights.throttle_share`; None: no throttle"""

    def of_attempt(self, task: str, number: int) -> Claims:
        """The claims of one attempt at a Spark task.

        Spark repeats a task when it loses the executor, but that executor may still run: suspended, or cut off from the
        driver. So a repeated attempt ends the claims of earlier attempts, and waits as a lease's next holder does.
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
        """Wait while the run is paused, or has used up its throttle.

        Raises LeaseLostError when the lease is lost during the wait, RunEndedError when the run was ended.
        """
        if (turns := self._turns()) is not None:
            turns.wait(lambda: self(tables), cells, size)

    def slow_down(self) -> None:
        """Make this process send less for a while."""
        if (turns := self._turns()) is not None:
            turns.slow_down()

    def _turns(self) -> Turns | None:
        if self.throttle is None:
            return None
        return turns_at(self.target, self.throttle, next(iter(self.leases.values())))

    def mark_dirty(self, rows: Rows, why: str = "") -> None:
        """Mark rows in the target's ZooKeeper. Raises UnmarkedRowsError if all attempts fail."""
        for table, (first, last) in rows.items():
            found = DirtyRows.of(table, first, last, self.run_id, self.leases[table].number, now_ms(), why)
            log.error("%s", found.describe())
            mark(self.target, found)


class Confirmation:
    """When this process last confirmed that a lease was held. Thread-safe; one thread at a time asks ZooKeeper."""

    def __init__(self, held: HeldLease, attempt: Attempt | None, seconds: float, read: Callable[[], None]) -> None:
        """`read` raises LeaseLostError unless the lease is held now. Call `end` as soon as that may have changed."""
        self.held = held
        self.attempt = attempt
        self.seconds = seconds
        self._read = read
        self._confirmed: float | None = None
        self._ended = 0
        self._state = threading.Lock()
        self._reading = threading.Lock()

    def end(self) -> None:
        """Discard the confirmation: the next `require` asks ZooKeeper."""
        with self._state:
            self._confirmed = None
            self._ended += 1

    def require(self) -> None:
        """Return if the lease was confirmed less than `seconds` ago; ask ZooKeeper again after half of that time.

        Raises LeaseLostError when the lease is lost, LeaseUnknownError when ZooKeeper gives no answer.
        """
        age = self._age()
        if age < self.seconds / 2:
            return
        if not self._reading.acquire(blocking=age >= self.seconds):
            return  # another thread asks, and the confirmation is still valid
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
                asked, ended = steady_s(), self._ended  # time of the question, since the answer may be late
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
"""in this process: for each table the newest lease and task; a process works on one task at a time"""
_lock = threading.Lock()


@cache  # a task has several writers
def _supersede(target: ClusterAddress, leases: tuple[HeldLease, ...], attempt: Attempt, seconds: float) -> None:
    log.warning("attempt %d at task %s: waiting %.0f s until the attempt before it can no longer send",
                attempt.number, attempt.task, seconds)  # fmt: skip
    for held in leases:
        lease.supersede(shared_client(target).zk, held, attempt)
    time.sleep(seconds)


def _confirmation(target: ClusterAddress, held: HeldLease, attempt: Attempt | None, seconds: float) -> Confirmation:
    def read() -> None:
        zk = shared_client(target).zk
        zk.add_listener(_session_changed)  # kazoo keeps one copy, however often it is added
        lease.check(zk, held, _watch(target, held.table), attempt)

    with _lock:
        known = _known.get((target, held.table))
        if known is None or (known.held, known.attempt, known.seconds) != (held, attempt, seconds):
            known = _known[target, held.table] = Confirmation(held, attempt, seconds, read)
        return known


@cache  # kazoo keeps every distinct watch until the node changes
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

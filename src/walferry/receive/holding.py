"""The target tables that a process writes to: each under its lease, with what was applied of it before.

All processes of a run share the tables out evenly by the list of the processes that are there, which each of them reads
from ZooKeeper. A table whose place has changed is given back once the calls under way have ended, and taken by the
other process. The lease alone says who writes (R8, R13); the list only who tries to get it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from walferry.apply.route import Route
from walferry.apply.writer_protocol import Guard, Rows
from walferry.clock import steady_s
from walferry.errors import TransientError
from walferry.hbase.errors import ZooKeeperError
from walferry.ledger.batches import Change
from walferry.ledger.received import Received
from walferry.receive.seen import Applied, Seen
from walferry.replay.rights import lease
from walferry.replay.rights.applying import held, lease_check_of, route_under
from walferry.run.run import Run
from walferry.run.spec import TablePair

log = logging.getLogger(__name__)

LEASE_WAIT_SECONDS = 5.0
LOOK_SECONDS = 0.5
LEAST_REQUEST_SECONDS = 5.0
"""that a request may take, however little time its call has left"""
END_SECONDS = 45.0
"""how long the end of a process waits for what is under way"""
AGAIN_SECONDS = 2.0
"""after which a table that could not be taken is tried again"""


class NotHeldError(TransientError):
    """This process does not hold the lease on a target table; fact `table`."""


class OutOfTimeError(TransientError):
    """A call was not done in the time that it has; nothing more is sent for it."""


@dataclass
class Holding:
    """A target table under its lease."""

    pair: TablePair
    route: Route
    check: Change
    """raises, in a change of the ledger, once the lease is lost"""
    ledger: Received
    seen: Seen
    recording: threading.Lock
    """for the ledger's rows; one of all tables, since the ledger has one writer"""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """for `seen`"""
    stale: bool = False
    """`seen` may lack what the ledger has: the lease is given back, and what is known is read again"""
    _users: int = 0
    _ends: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the lease until the block ends. Raises NotHeldError if it is being given back."""
        with self._changed:
            if self._ends or self.stale:
                raise not_held(self.pair.target)
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Let nothing new begin, and wait until what is under way has ended."""
        with self._changed:
            self._ends = True
            self._changed.wait_for(lambda: self._users == 0)

    def route_until(self, deadline: float) -> Route:
        """The route for one call: in one lane, since a table's regions depend on each other when one is split; by which
        no request begins after a moment of `clock.steady_s`, and those before are soon given up."""
        limits = self.route.limits
        seconds = min(limits.request_seconds, max(LEAST_REQUEST_SECONDS, deadline - steady_s()))
        return replace(
            self.route,
            guard=_Until(self.route.guard, deadline),
            limits=replace(limits, lanes=1, request_seconds=seconds),
        )


@dataclass(frozen=True)
class _Until:
    """A guard by which no request begins after a deadline. What is under way then is the guard's own matter."""

    guard: Guard
    deadline: float

    def __call__(self, tables: Collection[str]) -> None:
        self.guard(tables)

    def wait_turn(self, tables: Collection[str], cells: int, size: int) -> None:
        self.guard.wait_turn(tables, cells, size)
        if steady_s() > self.deadline:
            raise OutOfTimeError(f"the edits of {', '.join(sorted(tables))} were not all applied in time")

    def slow_down(self) -> None:
        self.guard.slow_down()

    def of_attempt(self, task: str, number: int) -> Guard:
        return self.guard.of_attempt(task, number)

    def mark_dirty(self, rows: Rows, why: str = "") -> None:
        self.guard.mark_dirty(rows, why)


class HeldTables:
    """Takes leases of tables and gives them back, in threads of its own, until `end`."""

    def __init__(self, run: Run, members: Callable[[], Sequence[str]], me: str) -> None:
        """`members`: the processes of the run that are there; this one, `me`, is among them."""
        self._run, self._members, self._me = run, members, me
        self._held: dict[str, Holding] = {}
        self._over = threading.Event()
        self._recording = threading.Lock()
        self._shared: dict[str, str] = {}
        self._trouble: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(pair,), name=f"lease on {pair.target}", daemon=True)
            for pair in run.tables
        ]
        self._sharer = threading.Thread(target=self._share, name="share tables", daemon=True)

    def begin(self) -> None:
        """Start to take tables."""
        self._sharer.start()
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Give all tables back, once what is under way has ended."""
        self._over.set()
        deadline = steady_s() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - steady_s()))

    @property
    def held(self) -> Mapping[str, Holding]:
        """By target table."""
        return dict(self._held)

    @property
    def trouble(self) -> Mapping[str, str]:
        """Why a table cannot be taken, by target table."""
        return dict(self._trouble)

    def holding(self, table: str) -> Holding:
        """Raises NotHeldError if this process does not hold the lease on a target table."""
        known = self._held.get(table)
        if known is None:
            raise not_held(table)
        return known

    def holder(self, table: str) -> str | None:
        """The process of this run that holds the lease on a target table. Raises LeaseHeldError if another run does."""
        try:
            name = lease.holder_of(self._run.target.zk, table)
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperError(f"the target's ZooKeeper does not say who writes {table}: {error!r}") from error
        if name is None:
            return None
        process = name.partition("(")[2].removesuffix(")")
        if not lease.is_of(self._run.run_id, name) or process.count(",") != 2:
            raise lease.LeaseHeldError(f"{name} is writing to target table {table}", table=table, holder=name)
        return process

    def _share(self) -> None:
        """Say which process should have which table, all the time."""
        tables = sorted(pair.target for pair in self._run.tables)
        while not self._over.wait(LOOK_SECONDS):
            try:
                members = sorted(self._members())
            except Exception as error:  # whatever it is, the next look may succeed
                log.warning("the list of receivers cannot be read: %r", error)
                continue
            if members:
                self._shared = {table: members[place % len(members)] for place, table in enumerate(tables)}

    def _keep(self, pair: TablePair) -> None:
        """Hold a table's lease whenever it is this process's turn."""
        while not self._over.wait(LOOK_SECONDS):
            if self._shared.get(pair.target) != self._me:
                continue
            try:
                with held(self._run, [pair], LEASE_WAIT_SECONDS) as leases:
                    self._hold(pair, route_under(self._run, [pair], leases, None))
            except Exception as error:  # whatever it is, another try may succeed
                if not self._is_ours(error):
                    log.warning("target table %s is not held: %s", pair.target, error or repr(error))
                    self._trouble[pair.target] = str(error) or repr(error)
                self._over.wait(AGAIN_SECONDS)
            else:
                log.info("target table %s is given back", pair.target)

    def _is_ours(self, error: Exception) -> bool:
        """Whether the lease is only held by another process of the run, which is about to give it back."""
        return isinstance(error, lease.LeaseHeldError) and lease.is_of(self._run.run_id, error.facts["holder"])

    def _hold(self, pair: TablePair, route: Route) -> None:
        """Let calls use the lease until it is to be given back. Raises LeaseLostError once it is lost."""
        check = lease_check_of(self._run, route)
        received = self._run.ledger.received
        seen = Seen(received.floors(pair.source), map(Applied.decode, received.contents(pair.source)))
        holding = self._held[pair.target] = Holding(pair, route, check, received, seen, self._recording)
        self._trouble.pop(pair.target, None)
        log.info("target table %s is held by %s", pair.target, self._me)
        try:
            while not (holding.stale or self._over.wait(LOOK_SECONDS)) and self._shared.get(pair.target) == self._me:
                route.guard([pair.target])
        finally:
            del self._held[pair.target]
            holding.end()


def not_held(table: str) -> NotHeldError:
    """The error for a table that this process does not hold."""
    return NotHeldError(f"this receiver does not hold the lease on target table {table}", table=table)

"""The tables that a process writes: each under its lease, with what was applied of it before.

All processes of a run share the tables out evenly by the list of the processes that are there, which each of them reads
from ZooKeeper. A table whose place has changed is given back once the calls under way have ended, and taken by the
other process. The lease alone says who writes (R8, R13); the list only who tries to get it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from walferry.clock import steady_s
from walferry.errors import TransientError, is_transient
from walferry.formats.wal import EntryBatch
from walferry.hbase.errors import ZooKeeperError
from walferry.ledger.batches import Change
from walferry.ledger.received import Received
from walferry.receive.seen import Picked, Seen
from walferry.replay.rights import lease
from walferry.run.spec import TablePair

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
END_SECONDS = 45.0
"""how long the end of a process waits for what is under way"""
AGAIN_SECONDS = 2.0
"""after which a table that could not be taken is tried again"""
SELDOM_SECONDS = 60.0
"""the same at most"""


class NotHeldError(TransientError):
    """This process does not hold the lease on a table; fact `table`."""


class StillAtWorkError(TransientError):
    """A table is held, but calls wait for work on it that goes on, as the message says. It is no fault, and is shown
    elsewhere."""


class OutOfTimeError(TransientError):
    """A call was not done in the time that it has; nothing more is sent for it."""


@dataclass
class Holding:
    """A table under its lease."""

    pair: TablePair
    guard: Callable[[], None]
    """raises LeaseLostError once the lease is lost"""
    check: Change
    """the same in a change of the ledger"""
    ledger: Received
    seen: Seen
    recording: threading.Lock
    """for the ledger's rows; one of all tables, since the ledger has one writer"""
    lock: threading.Lock = field(default_factory=threading.Lock, kw_only=True)
    """for `seen`"""
    since_ms: int = field(default=0, kw_only=True)
    """edits that were written before are left out"""
    stale: bool = field(default=False, kw_only=True)
    """`seen` may lack what the ledger has: the lease is given back, and what is known is read again"""
    fault: str = field(default="", kw_only=True)
    """for which it is given back; "" if there is none"""
    _users: int = field(default=0, kw_only=True)
    _ends: bool = field(default=False, kw_only=True)
    _changed: threading.Condition = field(default_factory=threading.Condition, kw_only=True)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the lease until the block ends. Raises NotHeldError if it is being given back."""
        with self._changed:
            self.require()
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def require(self) -> None:
        """Raise NotHeldError if the lease is being given back."""
        if self._ends or self.stale:
            raise not_held(self.pair.target)

    def end(self) -> None:
        """Let nothing new begin, and wait until what is under way has ended."""
        with self._changed:
            self._ends = True
            self._changed.wait_for(lambda: self._users == 0)


H = TypeVar("H", bound=Holding)


class Beside(Protocol):
    """Work that goes on beside calls, which wait for it. As text, how far it is."""

    @property
    def fault(self) -> str:
        """Why it may not end well; "" if nothing says so."""


class Destination(Protocol[H]):
    """Where a run's edits go: a target cluster (`into_cluster`), or topics of Kafka (`into_kafka`)."""

    run_id: str
    source_id: UUID
    """of the source's cluster"""
    sink_id: UUID
    """of the cluster that the source takes the run for: what that had first is not sent again"""
    calls_at_once: int
    """of a table"""

    @property
    def pairs(self) -> Sequence[TablePair]:
        """The tables; without a target, both names of one are the source's."""

    @property
    def zk(self) -> KazooClient:
        """Where the leases are."""

    def lease_of(self, table: str) -> str:
        """The name of a table's lease."""

    def opened(self, pair: TablePair) -> AbstractContextManager[H]:
        """Hold a table for a block. Raises LeaseHeldError while another process holds it."""

    def prepare(self, holding: H, wanted: Callable[[], bool], tell: Callable[[str], None]) -> bool:
        """Do what must be done before the first call. Returns whether it is done; else it is no longer `wanted`, which
        waits a moment. `tell` gets how far it is, every few seconds."""

    def apply(self, holding: H, batch: EntryBatch, picked: Picked, deadline: float) -> Picked:
        """Apply the first of the entries `picked` of a batch, edits and loads of one table, and record them. Returns
        the rest, which is for another call once the regions are at rest.

        Nobody else may apply edits of their regions meanwhile. Nothing begins after `deadline` (of `clock.steady_s`).
        Raises NotHeldError if the lease is being given back. After any error, the whole call can be repeated.
        """

    def under_way(self, regions: Collection[str]) -> Beside | None:
        """What goes on beside the calls of these regions, if anything does."""

    async def at_rest(self, regions: Collection[str]) -> None:
        """Wait until nothing of these regions is under way beside the calls. Raises the error that it ends with."""

    def close(self) -> None:
        """Begin nothing more. Does not wait for what is under way."""


class HeldTables(Generic[H]):
    """Takes leases of tables and gives them back, in threads of its own, until `end`."""

    def __init__(self, destination: Destination[H], members: Callable[[], Sequence[str]], me: str) -> None:
        """`members`: the processes of the run that are there; this one, `me`, is among them."""
        self._destination, self._members, self._me = destination, members, me
        self._held: dict[str, H] = {}
        self._over = threading.Event()
        self._shared: dict[str, str] = {}
        self._trouble: dict[str, str] = {}
        self._preparing: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(pair,), name=f"lease on {pair.target}", daemon=True)
            for pair in destination.pairs
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
    def held(self) -> Mapping[str, H]:
        """By target table."""
        return dict(self._held)

    @property
    def trouble(self) -> Mapping[str, str]:
        """Why a table is not held, by target table: it could not be taken, or was given back."""
        return dict(self._trouble)

    def require_prepared(self, table: str) -> None:
        """Raise StillAtWorkError if this process holds a table and still prepares it."""
        if (progress := self._preparing.get(table)) is not None:
            raise StillAtWorkError(progress)

    def holding(self, table: str) -> H:
        """Raises NotHeldError if this process does not hold the lease on a table."""
        known = self._held.get(table)
        if known is None:
            raise not_held(table)
        return known

    def holder(self, table: str) -> str | None:
        """The process of this run that holds the lease on a table. Raises LeaseHeldError if another run does."""
        try:
            name = lease.holder_of(self._destination.zk, self._destination.lease_of(table))
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperError(f"ZooKeeper does not say who writes {table}: {error!r}") from error
        if name is None:
            return None
        process = name.partition("(")[2].removesuffix(")")
        if not lease.is_of(self._destination.run_id, name) or process.count(",") != 2:
            raise lease.LeaseHeldError(f"{name} is writing to table {table}", table=table, holder=name)
        if process != self._me:  # why it is not held here does not matter any more
            self._trouble.pop(table, None)
        return process

    def _share(self) -> None:
        """Say which process should have which table, all the time."""
        tables = sorted(pair.target for pair in self._destination.pairs)
        while not self._over.wait(LOOK_SECONDS):
            try:
                members = sorted(self._members())
            except Exception as error:  # whatever it is, the next look may succeed
                log.warning("the list of receivers cannot be read: %r", error)
                continue
            if members:
                self._shared = {table: members[place % len(members)] for place, table in enumerate(tables)}

    def _keep(self, pair: TablePair) -> None:
        """Hold a table's lease whenever it is this process's turn. What only a person can mend is tried less and less
        often: each attempt takes a number of the lease."""
        pause = AGAIN_SECONDS
        while not self._over.wait(LOOK_SECONDS):
            if self._shared.get(pair.target) != self._me:
                continue
            try:
                with self._destination.opened(pair) as holding:
                    if self._is_prepared(pair, holding):
                        self._hold(pair, holding)
            except Exception as error:  # whatever it is, another try may succeed
                if not self._is_ours(error):
                    log.warning("table %s is not held: %s", pair.target, error or repr(error))
                    self._trouble[pair.target] = str(error) or repr(error)
                pause = AGAIN_SECONDS if is_transient(error) else min(2 * pause, SELDOM_SECONDS)
                self._over.wait(pause)
            else:
                pause = AGAIN_SECONDS
                log.info("table %s is given back", pair.target)

    def _is_ours(self, error: Exception) -> bool:
        """Whether the lease is only held by another process of the run, which is about to give it back."""
        return isinstance(error, lease.LeaseHeldError) and lease.is_of(self._destination.run_id, error.facts["holder"])

    def _hold(self, pair: TablePair, holding: H) -> None:
        """Let calls use the lease until it is to be given back. Raises LeaseLostError once it is lost."""
        self._held[pair.target] = holding
        self._trouble.pop(pair.target, None)
        log.info("table %s is held by %s", pair.target, self._me)
        try:
            while not holding.stale and self._is_mine(pair):
                holding.guard()
        finally:
            if holding.fault:
                self._trouble[pair.target] = holding.fault
            del self._held[pair.target]
            holding.end()

    def _is_mine(self, pair: TablePair) -> bool:
        """Wait a moment. Whether the table is still this process's."""
        return not self._over.wait(LOOK_SECONDS) and self._shared.get(pair.target) == self._me

    def _is_prepared(self, pair: TablePair, holding: H) -> bool:
        """Have the table prepared. Returns whether it is; else the lease is to be given back."""

        def tell(progress: str) -> None:
            self._preparing[pair.target] = progress

        try:
            return self._destination.prepare(holding, lambda: self._is_mine(pair), tell)
        finally:
            self._preparing.pop(pair.target, None)


def not_held(table: str, why: str = "") -> NotHeldError:
    """The error for a table that this process does not hold."""
    return NotHeldError(
        f"this receiver does not hold the lease on table {table}{f': {why}' if why else ''}", table=table
    )

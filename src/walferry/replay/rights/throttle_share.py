"""One throttle for a whole run: the holder of the leases publishes it, and each process that sends keeps to its share.

The ledger has the limits and whether the run is paused. The driver reads the ledger several times a second and writes
the result to an ephemeral node on the target's ZooKeeper, with the number of processes that send at the moment. Each of
these processes watches the node. A process waits for its turn before it asks for a request's permit, so that no permit
ages during the wait. A pause acts as a rate of zero. A waiting process keeps confirming its lease, and stops if the
lease is lost.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from urllib.parse import quote

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from walferry.background import beside, made_once
from walferry.clock import steady_s
from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.replay.rights import znodes
from walferry.replay.rights.lease import READ_SECONDS, HeldLease, LeaseLostError
from walferry.replay.rights.pace import Pace
from walferry.run.notes.throttle import throttle_of
from walferry.run.run import Run, RunEndedError
from walferry.spark.clients import shared_client

log = logging.getLogger(__name__)

ROOT = "/walferry/throttles"
LOOK_SECONDS = 0.3
"""how often the driver reads the ledger"""
AGAIN_SECONDS = 2.0
"""how often a process reads the node even if its watch reports no change"""
CONFIRM_SECONDS = 1.0
"""how often a waiting process confirms the lease"""
TELL_SECONDS = 10.0
"""least time between two log lines which say that less is sent because the target is busy"""


@dataclass(frozen=True)
class Order:
    """The content of a throttle's node."""

    write_bytes: float | None = None
    """bytes per second, for all processes together"""
    write_cells: float | None = None
    processes: int = 1
    """how many processes send"""
    paused: bool = False
    ended: str = ""
    """why the run has ended, if it has"""


def node_of(held: HeldLease) -> str:
    """The node at which the holder of a lease publishes the throttle; if it holds several leases, by the first one."""
    return f"{ROOT}/{quote(held.table, safe='')}.{held.number}"


# ------------------------------------------------------------------ the holder of the leases


class _Publisher:
    def __init__(self, run: Run, zk: KazooClient, node: str, closed: bool) -> None:
        self._run = run
        self._zk = zk
        self._node = node
        self._lock = threading.Lock()
        self._processes = 1
        self._order = self._found()
        znodes.ensure_folder(zk, ROOT, closed)
        with znodes.refusals_told(zk, node):
            zk.create(node, _text(self._order), acl=znodes.own(closed), ephemeral=True)

    def look(self) -> None:
        """Publish the ledger's current limits and state of the run."""
        found = self._found()
        with self._lock:
            self._put(replace(found, processes=self._processes))

    def share(self, processes: int) -> None:
        """Publish how many processes send."""
        with self._lock:
            self._processes = processes
            try:
                self._put(replace(self._order, processes=processes))
            except (KazooException, KazooTimeoutError) as error:
                log.debug("that %d processes send will be published at the next look: %s", processes, error)

    def _put(self, order: Order) -> None:
        if order == self._order:
            return
        with suppress(NoNodeError):  # session and leases have ended, which the guard will notice
            self._zk.retry(self._zk.set, self._node, _text(order))
        self._order = order

    def _found(self) -> Order:
        record, throttle = self._run.ledger.record, throttle_of(self._run.ledger)
        ended = "" if record.state == "running" else f"{record.state}: {record.outcome or 'no reason given'}"
        return Order(throttle.write_bytes, throttle.write_cells, 1, record.paused, ended)


_lock = threading.Lock()
_publishers: dict[str, list[_Publisher]] = {}
"""this process's publishers, by run; several if it loads the history of several tables at once"""
_sending: Counter[str] = Counter()
"""by run, how many processes send on behalf of this process"""


def _share(run_id: str, more: int = 0) -> None:
    with _lock:
        _sending[run_id] += more
        mine = _publishers.get(run_id, [])
        for publisher in mine:
            publisher.share(max(1, len(mine), _sending[run_id]))


@contextmanager
def publishing(run: Run, zk: KazooClient, node: str, *, closed: bool = False) -> Iterator[None]:
    """Publish the run's throttle until the block ends. `zk`: the session that holds the leases; `closed`: as they."""
    publisher = _Publisher(run, zk, node, closed)

    def go_on(over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS):
            try:
                publisher.look()
            except (WalferryError, KazooException, KazooTimeoutError) as error:
                log.warning("the throttle of %s cannot be updated and stays as it is: %s", run.run_id, error)

    with _lock:
        _publishers.setdefault(run.run_id, []).append(publisher)
    _share(run.run_id)
    try:
        with beside(go_on, "throttle"):
            yield
    finally:
        with _lock:
            _publishers[run.run_id].remove(publisher)
        _share(run.run_id)
        # The node is deleted when the session ends: also where another principal made ROOT, and alone deletes in it.
        with suppress(KazooException, KazooTimeoutError):
            zk.delete(node)


@contextmanager
def sending(run: Run) -> Iterator[None]:
    """Count one more sending process for the run until the block ends: all get equal shares."""
    _share(run.run_id, 1)
    try:
        yield
    finally:
        _share(run.run_id, -1)


def _text(order: Order) -> bytes:
    return json.dumps(asdict(order)).encode()


# ------------------------------------------------------------------ a process that sends


class Turns:
    """What this process may send for one holder of leases. Thread-safe; one thread at a time reads the node."""

    def __init__(self, read: Callable[[Callable[[object], None]], Order], pace: Pace | None = None) -> None:
        """`read` returns the node's content, and calls its argument once when the content changes."""
        self._read = read
        self._pace = pace or Pace()
        self._order: Order | None = None
        self._read_at = 0.0
        self._stale = True
        self._changed = threading.Condition()
        self._reading = threading.Lock()
        self._told = -TELL_SECONDS

    def wait(self, confirm: Callable[[], None], cells: int, size: int) -> None:
        """Wait until `cells` cells and `size` bytes may be sent. `confirm` raises once this process may send nothing.

        Raises the errors of `confirm`, LeaseLostError when the holder is gone, RunEndedError when the run was ended.
        """
        while True:
            order = self._now()
            if order is not None and order.ended:
                raise RunEndedError(f"the run was {order.ended}")
            left = CONFIRM_SECONDS if order is None or order.paused else self._pace.take(cells, size)
            if not left:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._stale, min(left, CONFIRM_SECONDS))
            confirm()

    def slow_down(self) -> None:
        """The target is busy: send less for a while."""
        rate = self._pace.slow_down()
        if rate is not None and steady_s() - self._told >= TELL_SECONDS:
            self._told = steady_s()
            log.warning("the target is busy: this process sends at most %.2f MB/s for now", rate / 1e6)

    def _now(self) -> Order | None:
        """The node's content as last read; None if it was never read."""
        if self._is_old() and self._reading.acquire(blocking=self._order is None or self._stale):
            try:
                if self._is_old():
                    self._renew()
            finally:
                self._reading.release()
        return self._order

    def _is_old(self) -> bool:
        return self._stale or steady_s() - self._read_at >= AGAIN_SECONDS

    def _renew(self) -> None:
        self._stale = False  # before reading: the node may change right after it is read
        try:
            order = self._read(self._on_change)
        except (KazooException, KazooTimeoutError) as error:
            log.debug("the throttle could not be read: %s", error)
            self._read_at = steady_s()
            return
        self._read_at = steady_s()
        if order != self._order:
            self._pace.allow(_share_of(order.write_bytes, order), _share_of(order.write_cells, order))
            self._order = order

    def _on_change(self, _: object) -> None:
        with self._changed:
            self._stale = True
            self._changed.notify_all()


def _share_of(rate: float | None, order: Order) -> float | None:
    return None if rate is None else rate / order.processes


@made_once
def turns_at(target: ClusterAddress, node: str, held: HeldLease) -> Turns:
    """This process's `Turns` at a throttle's node; `held` is a lease of the holder that publishes the node."""

    def read(watch: Callable[[object], None]) -> Order:
        try:
            data, _ = shared_client(target).zk.get_async(node, watch=watch).get(timeout=READ_SECONDS)
        except NoNodeError as error:
            raise LeaseLostError(
                f"the process that held the lease number {held.number} on target table {held.table} has ended; "
                "run it again",
                table=held.table, number=held.number,
            ) from error  # fmt: skip
        return Order(**json.loads(data))

    return Turns(read)

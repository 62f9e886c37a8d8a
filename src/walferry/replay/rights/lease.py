"""One applier at a time (R8): a lease per target table on the target's ZooKeeper, with a fencing number.

`/walferry/leases/<table>` is a persistent node. Its data counts the holders so far and says whether the last one
released the lease. Its ephemeral child `holder` is the lease itself and has the holder's number.
The lease of a killed process ends with its session, or as soon as a process on the same machine wants the lease.
A holder that vanished or failed may have left requests under way, and executors that have not noticed yet. So its
successor sends nothing until they must have noticed (`claims`) and every such request has ended. The times come from
the settings `zookeeper_session_seconds` and `claim_seconds`, and from `WriteLimits.quiet_seconds`.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from walferry.errors import GateShutError, SidesDifferError, TransientError
from walferry.replay.rights import dirty, znodes
from walferry.run.heartbeat import gone, this_process

log = logging.getLogger(__name__)

ROOT = "/walferry/leases"
READ_SECONDS = 5.0


class LeaseHeldError(TransientError):
    """Another run applies to the table; facts `table`, `holder`."""


class LeaseLostError(TransientError):
    """Another process has the lease, or the holder's session ended; facts `table`, `number`. Retry with a new lease."""


class LeaseUnknownError(LeaseLostError):
    """ZooKeeper cannot confirm at the moment that the lease is held; facts as in LeaseLostError."""


@dataclass(frozen=True)
class HeldLease:
    """Proof that a lease was held: the table and the holder's number. Travels to the executors."""

    table: str
    number: int
    password: str = field(default="", repr=False, compare=False)
    """with it a worker makes the nodes of superseded attempts; "" where walferry's nodes are open"""


def resource(cluster_id: str, table: str) -> str:
    """The ledger's name for the lease on a target table: numbers rise only within one cluster."""
    return f"{cluster_id} {table}"


class OutcomeUnknownError(TransientError):
    """The target may still carry out a request with edits; facts as in the error that the request ended with.

    Send nothing newer under the same leases: their next holder waits until the request has certainly ended.
    """


VERDICTS = (GateShutError, SidesDifferError)
"""errors of gates, which are raised only after the target has answered every request"""


def holder(run_id: str, actor: str) -> str:
    """A holder's name, from its run and its actor."""
    return f"run {run_id} ({actor})"


def is_of(run_id: str, holder: str | None) -> bool:
    """Whether a holder's name belongs to a process that works on the run."""
    return holder is not None and f"{holder} ".startswith(f"run {run_id} ")


def node_of(table: str) -> str:
    """The node of the lease on a target table."""
    return f"{ROOT}/{quote(table, safe='')}"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a Spark task; the next one at the same task supersedes it."""

    task: str
    """the task's name, unique within the holder's lease"""
    number: int
    """from 0"""

    @property
    def name(self) -> str:
        """The name of the attempt's node."""
        return f"{quote(self.task, safe='')}.{self.number}"


Watch = Callable[[object], None]


def check(zk: KazooClient, held: HeldLease, watch: Watch | None = None, attempt: Attempt | None = None) -> None:
    """Raise LeaseLostError unless the lease is still held under this number, and no later attempt has begun.

    Raises LeaseUnknownError if ZooKeeper fails. One round trip. ZooKeeper calls `watch` once, when the answer may have
    changed or the connection breaks.
    """
    path = f"{node_of(held.table)}/holder"
    try:
        synced = zk.sync_async(path)  # a ZooKeeper follower may lag behind its leader and show an earlier holder
        answer = zk.get_async(path, watch=watch)
        given_up = None if attempt is None else zk.get_children_async(_given_up(held), watch=watch)
        synced.get(timeout=READ_SECONDS)
        data, _ = answer.get(timeout=READ_SECONDS)
        superseded = attempt is not None and given_up is not None and attempt.name in given_up.get(timeout=READ_SECONDS)
    except NoNodeError:
        data, superseded = b"{}", False
    except (KazooException, KazooTimeoutError) as error:
        raise LeaseUnknownError(
            f"the lease on target table {held.table} cannot be checked: {error or type(error).__name__}; "
            "is the target's ZooKeeper up?",
            table=held.table,
            number=held.number,
        ) from error
    if json.loads(data).get("number") != held.number:
        raise _lost(held)
    if attempt is not None and superseded:
        raise LeaseLostError(
            f"Spark gave up attempt {attempt.number} at a task that writes to target table {held.table}, and "
            "repeats the task elsewhere",
            table=held.table, number=held.number,
        )  # fmt: skip


def _lost(held: HeldLease) -> LeaseLostError:
    return LeaseLostError(
        f"the lease number {held.number} on target table {held.table} is no longer held; "
        "another run applies to it, or this run's ZooKeeper session ended; run it again",
        table=held.table,
        number=held.number,
    )


def supersede(zk: KazooClient, held: HeldLease, attempt: Attempt) -> None:
    """End the claims of earlier attempts. They may not notice at once: wait as after a holder that vanished.

    Raises LeaseLostError if a successor has taken the lease.
    """
    if held.password:
        znodes.use(zk, held.password)
    acl = znodes.READ_ONLY if held.password else None
    for number in range(attempt.number):
        with suppress(NodeExistsError), znodes.refusals_told(zk, _given_up(held)):
            try:
                zk.retry(zk.create, f"{_given_up(held)}/{Attempt(attempt.task, number).name}", acl=acl)
            except NoNodeError:
                raise _lost(held) from None


def _given_up(held: HeldLease) -> str:
    """The node whose children are this holder's superseded attempts; there are usually none."""
    return f"{node_of(held.table)}/superseded/{held.number}"


@contextmanager
def held_leases(
    zk: KazooClient,
    tables: Sequence[str],
    *,
    holder: str,
    request_seconds: float,
    wait_seconds: float,
    newest: Callable[[str], int] = lambda table: 0,
    tell: Callable[[str, float], None] = lambda what, seconds: None,
    closed: bool = False,
) -> Iterator[Mapping[str, HeldLease]]:
    """Hold the leases of all `tables` (taken in name order, so that two runs cannot wait for each other).

    `request_seconds`: how long the target may still carry out this holder's requests after the holder has lost a lease.
    Waits at most `wait_seconds` for another holder, then raises LeaseHeldError, which names that holder. `newest`: the
    highest number of a table's lease recorded elsewhere; the next number is above that too, because a rebuilt ZooKeeper
    has lost its count. `tell` gets what the call waits for, and for how many seconds at most. `closed`: the session has
    logged in, and the nodes become its principal's (`znodes`). Raises AccessDeniedError if they are another one's.
    """
    password = secrets.token_urlsafe() if closed else ""
    znodes.ensure_folder(zk, ROOT, closed)
    with ExitStack() as stack:
        leases: dict[str, HeldLease] = {}
        quiet: dict[str, float] = {}
        """for each table whose last holder vanished: when the last of that holder's requests has ended"""
        for table in sorted(tables):
            with znodes.refusals_told(zk, node_of(table)):
                leases[table], pause = _acquire(
                    zk, table, holder, request_seconds, wait_seconds, newest, tell, password
                )
            stack.push(partial(_leave, zk, leases[table]))
            if pause:
                quiet[table] = time.monotonic() + pause
        left = max(quiet.values(), default=0.0) - time.monotonic()
        if left > 0:  # one wait covers all tables
            log.warning("the last holder of the lease on %s did not release it; waiting %.0f s "
                        "until its requests have ended", ", ".join(sorted(quiet)), left)  # fmt: skip
            tell("until the requests of a process that did not release its lease have ended", left)
            time.sleep(left)
        yield leases


def _acquire(
    zk: KazooClient,
    table: str,
    holder: str,
    request_seconds: float,
    wait_seconds: float,
    newest: Callable[[str], int],
    tell: Callable[[str, float], None],
    password: str,
) -> tuple[HeldLease, float]:
    """The lease, and how many seconds requests of a vanished holder may still be under way."""
    path, acl = node_of(table), znodes.own(closed=bool(password))
    zk.ensure_path(path, acl=acl)
    deadline = time.monotonic() + wait_seconds
    announced = False
    while True:
        raw, stat = zk.get(path)
        record = json.loads(raw or b"{}")
        vanished = record and not record.get("left", True)
        pause = float(record.get("request_seconds", request_seconds)) if vanished else 0.0
        # The counter was read first: a process that takes a number in between changes the counter's version.
        number = max(record.get("number", 0), newest(table)) + 1
        try:
            node = {"number": number, "holder": holder} | this_process()
            zk.create(f"{path}/holder", json.dumps(node).encode(), acl=acl, ephemeral=True)
        except NodeExistsError:
            if _evicted(zk, table):
                continue
            other = holder_of(zk, table) or "a run that is ending"
            if time.monotonic() >= deadline:
                raise LeaseHeldError(
                    f"{other} is writing to target table {table}; wait for it, or end it with `walferry abort`, "
                    "then try again",
                    table=table,
                    holder=other,
                ) from None
            if not announced:
                log.info("waiting at most %.0f s for the lease on %s, held by %s", wait_seconds, table, other)
                tell(f"for the lease on {table}, held by {other}", wait_seconds)
                announced = True
            time.sleep(0.5)
            continue
        try:
            zk.set(
                path,
                # If this holder is killed while it waits, the next one must wait for both holders' requests.
                json.dumps({"number": number, "left": False, "request_seconds": max(request_seconds, pause)}).encode(),
                version=stat.version,
            )
        except BadVersionError:  # somebody took and released it between the read and the create
            zk.delete(f"{path}/holder")
            continue
        held = HeldLease(table, number, password)
        try:
            _make_room(zk, held)
        except BaseException:
            _leave(zk, held, None)  # nothing was sent
            raise
        return held, pause


def _make_room(zk: KazooClient, held: HeldLease) -> None:
    """Make the nodes below which workers note that attempts are superseded; close what an open time has left."""
    path = node_of(held.table)
    if held.password:
        dirty.make_room(zk, held.table)  # first: if it is refused, the lease's node does not change its owner
        zk.set_acls(path, znodes.OWN)
    zk.delete(f"{path}/superseded", recursive=True)  # attempts under earlier numbers, which are void
    zk.ensure_path(f"{path}/superseded", acl=znodes.own(closed=bool(held.password)))
    zk.ensure_path(_given_up(held), acl=znodes.shared_with(held.password) if held.password else None)


def _evicted(zk: KazooClient, table: str) -> bool:
    """End the lease of a process that was killed on this machine, instead of waiting until its session ends.

    The process sends nothing more, but its executors may be elsewhere and notice later (`claims`). The next holder
    waits for them, as after any holder that vanished.
    """
    path = node_of(table)
    try:
        _, stat = zk.get(path)
        data, _ = zk.get(f"{path}/holder")
    except NoNodeError:
        return False
    holder = json.loads(data)
    if not gone(holder):
        return False
    eviction = zk.transaction()
    eviction.check(path, version=stat.version)  # fails if another process has taken the lease since
    eviction.delete(f"{path}/holder")
    evicted = not any(isinstance(result, Exception) for result in eviction.commit())
    if evicted:
        log.warning("%s was killed on this machine (process %s): its lease on %s ends now",
                    holder["holder"], holder["pid"], table)  # fmt: skip
    return evicted


def _leave(zk: KazooClient, held: HeldLease, failure: type[BaseException] | None, *_: object) -> None:
    """Release the lease. After a failure requests may still be under way, so the next holder waits for them. It does
    not wait after a gate's verdict, which comes only once all requests have been answered."""
    try:
        check(zk, held)
        path = node_of(held.table)
        if failure is None or issubclass(failure, VERDICTS):
            raw, stat = zk.get(path)
            zk.set(path, json.dumps(json.loads(raw) | {"left": True}).encode(), version=stat.version)
        zk.delete(f"{path}/holder")
    except (LeaseLostError, KazooException):
        log.warning("the lease on %s was lost before it was released", held.table)


def holder_of(zk: KazooClient, table: str) -> str | None:
    """Who holds the lease on a target table now, or None."""
    try:
        data, _ = zk.get(f"{node_of(table)}/holder")
    except NoNodeError:
        return None
    return str(json.loads(data).get("holder"))

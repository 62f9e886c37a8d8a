"""Protect: nothing of the source's log is lost before it is applied.

There are two ways, each a module with the same functions: `by_peer` (`protect: peer`) keeps the WALs at the source with
a disabled replication peer; `by_copies` (`protect: stage`) copies each WAL to a folder as soon as it is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from walferry.background import beside
from walferry.errors import GateShutError, WalferryError
from walferry.replay.keeping import by_copies, by_peer
from walferry.replay.keeping.objects import release
from walferry.run.notes.failing import Attempts
from walferry.run.run import LogRun, Run
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0


class Protection(Protocol):
    """A way to keep the source's log."""

    NAMES_EVERY_LOG: bool
    """whether `kept` names every log that holds an edit, so that the archive need not be listed for other logs"""

    def begin(self, run: LogRun) -> dict[str, Any]:
        """Begin to keep the log that is written from now on. Idempotent; returns facts for the phase."""

    def require(self, run: LogRun) -> None:
        """Raise unless the log is being kept."""

    def kept(self, run: LogRun) -> set[str]:
        """Names of the WAL files that are kept. Each of them is required until it is applied (R1)."""

    def let_go(self, run: LogRun) -> object:
        """Release files that are applied and were kept for long enough. Idempotent; called from time to time."""

    def tend(self, run: LogRun) -> float | None:
        """Do the work that runs beside all phases. Returns the seconds until the next call; None: no further call."""

    def take_stock(self, run: LogRun, listed: Sequence[WalFile]) -> None:
        """Note what is kept (`run.progress.exposure`), given a listing of the whole archive."""

    def why_missing(self, run: LogRun, name: str) -> str:
        """What probably happened to a file that was kept and is missing: a sentence without the full stop."""


_WAYS: dict[str, Protection] = {"peer": by_peer, "stage": by_copies}


def way_of(run: LogRun) -> Protection:
    """How the run keeps the source's log."""
    return _WAYS[run.log_spec.protect]


@contextmanager
def tended(run: LogRun) -> Iterator[None]:
    """Run the protection's `tend` in a thread until the block ends."""
    way = way_of(run)
    with beside(lambda ended: tend(run, way, ended.wait), "protection"):
        yield


def tend(run: LogRun, way: Protection, wait: Callable[[float], bool]) -> None:
    """Call a protection's `tend` until it returns None, or until `wait`, which gets seconds, returns True.

    Retries after every error: there is time before a file is lost, and the status shows how much
    (`run.progress.exposure`). If the thread ended instead, the file would be lost silently. Failures that last are
    noted (`run.notes.failing`).
    """
    pause: float | None = 0.0
    attempts = Attempts(run.ledger, "keeping")
    while pause is not None and not wait(pause):
        try:
            pause = way.tend(run)
            attempts.succeeded()
        except Exception as error:
            log.warning("keeping the source's log failed; trying again: %s", error)
            pause = AGAIN_SECONDS
            attempts.failed(error)


def protect(run: LogRun) -> dict[str, Any]:
    """The phase `protect`: begin to keep the source's log."""
    return run.once("protect", lambda: way_of(run).begin(run))


def take_stock(run: LogRun, listed: Sequence[WalFile]) -> None:
    """Note what is kept, given a listing of the whole archive. Errors are only logged, since nothing depends on it."""
    try:
        way_of(run).take_stock(run, listed)
    except WalferryError as error:
        log.warning("cannot determine how much of the source's log is kept: %s", error)


def not_applied(run: LogRun, kept: Collection[str]) -> set[str]:
    """The kept files that are not applied for every table of the run.

    A peer's queue names every file that was ever added to it, so files once found applied are not looked up again.
    """
    new = set(kept) - run.wal_listing.applied
    applied = run.ledger.log.applied(new)
    run.wal_listing.applied = frozenset((run.wal_listing.applied & set(kept)) | applied)
    return new - applied


def finish(run: Run, outcome: str, gate: Callable[[Run], None] | None = None) -> None:
    """Remove what the run created on the clusters, except the target tables, and end the run as done.

    `gate` is checked first, once all earlier phases are done.

    Raises GateShutError while edits are in quarantine: removing the protection would lose their WALs. An abort skips
    this check.
    """
    if run.ledger.quarantine.items("held") or run.ledger.quarantine.holds():
        reason = f"edits wait in quarantine: `walferry quarantine list {run.run_id}`"
        raise GateShutError(f"the gate is shut: {reason}", reasons=[reason])

    def work() -> dict[str, Any]:
        if gate is not None:
            gate(run)
        return release(run)

    run.once("release", work)
    run.ledger.end("done", run.actor, outcome)

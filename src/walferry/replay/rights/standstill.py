"""Rows are written to the target beside the log only while the replay stands still.

Rows read from the source at that time are at least as new as everything applied, and newer edits are applied
afterwards. So of two puts with equal timestamps the later one still wins. If the replay went on, an older reading could
replace a newer edit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from walferry.apply.route import Route
from walferry.clock import steady_s
from walferry.errors import TransientError
from walferry.hbase.errors import may_be_under_way
from walferry.replay.rights.applying import applying
from walferry.replay.rights.lease import OutcomeUnknownError
from walferry.run.run import Run, RunEndedError

LOOK_SECONDS = 0.2
END_SECONDS = 10.0
"""how long an ending replay waits for writes beside the log: they may wait for as long as the run is paused"""


class NoStandstillError(TransientError):
    """The caller waited for the replay to stand still, and must no longer write."""


class Standstill:
    """Coordinates the replay of one process with the threads that wait for it to stand still. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alone = threading.Lock()
        self._replays = 0
        """how many blocks of `about_to_replay` are open"""
        self._route: Route | None = None
        self._kept: Route | None = None
        """the route of an open `kept` block"""
        self._waiting = False
        self._still = False
        self._waits = threading.local()
        self._doubt: BaseException | None = None
        """error of a thread that wrote under the replay's leases, if its request may be under way"""

    @property
    def replays(self) -> bool:
        """Whether this process replays, or waits for the leases to do so."""
        return self._replays > 0

    @property
    def waited_s(self) -> float:
        """How many seconds in total this thread has waited for its turn to write."""
        return getattr(self._waits, "seconds", 0.0)

    @contextmanager
    def about_to_replay(self) -> Iterator[None]:
        """Announce a replay until the block ends: it may take its leases several times. No other thread of this process
        takes them in the meantime."""
        with self._changed:
            self._replays += 1
        try:
            yield
        finally:
            with self._changed:
                self._replays -= 1
                self._changed.notify_all()

    @contextmanager
    def replaying(self, run: Run) -> Iterator[Route]:
        """Take the leases and replay until the block ends; the replay stands still at each `rest`."""
        with self.about_to_replay(), applying(run) as route:
            self._route, self._doubt = route, None
            try:
                yield route
            finally:
                with self._changed:  # a thread that writes now needs these leases
                    self._changed.wait_for(lambda: not self._still, END_SECONDS)
                    self._route = None

    def rest(self) -> None:
        """Let other threads write, and return once none wants to. The replay calls this with no request under way.

        Raises OutcomeUnknownError if the target may still carry out a request of another thread.
        """
        with self._changed:
            while self._still or (self._waiting and self._doubt is None):
                self._still = True
                self._changed.notify_all()
                self._changed.wait()
            if self._doubt is not None:
                raise OutcomeUnknownError(
                    f"rows that were written beside the log may not have arrived: {self._doubt}"
                ) from self._doubt

    @contextmanager
    def kept(self, run: Run) -> Iterator[Route]:
        """Keep the leases while nothing is replayed, so that only this process writes to the target.

        Raises LeaseHeldError while another process has the leases.
        """
        with applying(run) as route:
            self._kept = route
            try:
                yield route
            finally:
                with self._alone:  # a thread that writes now needs these leases
                    self._kept = None

    @contextmanager
    def held(self, run: Run, over: Callable[[], bool] = lambda: False) -> Iterator[Route]:
        """The right to write while nothing is replayed. Waits for this process's replay to rest; without a replay,
        takes the leases itself.

        Raises NoStandstillError if `over` becomes true first, LeaseHeldError when another process replays.
        """
        began = steady_s()
        with self._alone:
            if self._kept is not None:
                yield self._kept
                return
            try:
                route = self._await_rest(over)
            finally:
                self._waits.seconds = self.waited_s + steady_s() - began
            if route is None:
                with applying(run) as own:
                    yield own
                return
            try:
                yield route
            except (NoStandstillError, RunEndedError):
                raise
            except BaseException as error:
                self._doubt = error if may_be_under_way(error) else None
                raise
            finally:
                with self._changed:
                    self._still = False
                    self._changed.notify_all()

    @contextmanager
    def beside(self, run: Run) -> Iterator[Route]:
        """The right to make changes to the target that do not depend on the order of edits, while the replay goes on.
        Uses the replay's leases; without a replay, takes its own.

        Raises NoStandstillError while this process's replay waits for its leases, LeaseHeldError when another process
        replays.
        """
        with self._changed:
            replays, route = self._replays, self._route or self._kept
        if replays and route is None:
            raise NoStandstillError(
                "the replay is waiting for its leases; until it has them, nothing else may change the target"
            )
        if route is not None:
            yield route
            return
        with self._alone, applying(run) as own:
            yield own

    def _await_rest(self, over: Callable[[], bool]) -> Route | None:
        with self._changed:
            self._waiting = True
            try:
                while self._replays and not self._still and not over():
                    self._changed.wait(LOOK_SECONDS)
                if over():
                    self._still = False
                    raise NoStandstillError("rows may no longer be written beside the log: the replay goes on")
                return self._route if self._still else None
            finally:
                self._waiting = False
                self._changed.notify_all()

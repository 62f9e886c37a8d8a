"""How fast one process may send: two token buckets, and less for a while when the target says that it is busy.

A request is let through while there are tokens, whatever its size, and the debt is waited for before the next one: so
requests need not be cut, and the rate holds over any time that is long against one of them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from walferry.clock import steady_s

BURST_SECONDS = 0.25
"""what a process that sent nothing may send at once, in seconds of its rate"""
LEAST_BYTES = 64 << 10
"""per second, at least, however busy the target is: a run that stands still learns nothing of it"""
TOGETHER_SECONDS = 1.0
"""answers of a busy target within this time count as one: all lanes get them at once"""
RECOVERY_SECONDS = 10.0
"""from half of a rate to the whole of it"""
_MEASURED_SECONDS = 2.0


class _Bucket:
    """Tokens of one kind; `rate` per second, None: there is no limit."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._tokens = 0.0

    def set(self, rate: float | None) -> None:
        if rate is None:
            self._tokens = 0.0
        elif self.rate is None:
            self._tokens = rate * BURST_SECONDS
        self.rate = rate

    def fill(self, seconds: float) -> None:
        if self.rate is not None:
            self._tokens = min(self.rate * BURST_SECONDS, self._tokens + self.rate * seconds)

    def seconds_left(self) -> float:
        """Until there is a token; 0 if there is one."""
        if self.rate is None or self._tokens > 0:
            return 0.0
        return max(1e-3, -self._tokens / self.rate)

    def take(self, tokens: int) -> None:
        if self.rate is not None:
            self._tokens -= tokens


class Pace:
    """What one process may send: bytes and cells per second. Usable from several threads."""

    def __init__(self, clock: Callable[[], float] = steady_s) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes, self._cells = _Bucket(), _Bucket()
        self._allowed: float | None = None
        """bytes per second that the run allows this process"""
        self._own: float | None = None
        """bytes per second to which a busy target has brought it; None: it has not"""
        self._before = 0.0
        """the same, before it did"""
        self._recent = 0.0
        """bytes sent, of which older ones count less and less"""
        self._at = clock()
        self._slowed = -math.inf

    def allow(self, bytes_per_s: float | None, cells_per_s: float | None) -> None:
        """From now on, at most so much; None: there is no limit."""
        with self._lock:
            self._go_on()
            self._allowed = bytes_per_s
            self._cells.set(cells_per_s)
            self._set_bytes()

    def take(self, cells: int, size: int) -> float:
        """Send a request of so many cells and bytes now if that gives 0.0; otherwise ask again in so many seconds."""
        with self._lock:
            self._go_on()
            left = max(self._bytes.seconds_left(), self._cells.seconds_left())
            if not left:
                self._bytes.take(size)
                self._cells.take(cells)
                self._recent += size
            return left

    def slow_down(self) -> float | None:
        """The target is busy: send half as fast, and a little faster every second from then on.

        Returns the new rate in bytes per second; None if it was halved just now for another answer.
        """
        with self._lock:
            self._go_on()
            if self._at - self._slowed < TOGETHER_SECONDS:
                return None
            self._slowed = self._at
            measured = self._recent / _MEASURED_SECONDS
            rate = min(measured, self._own) if self._own is not None else measured
            self._before = max(rate, LEAST_BYTES)
            self._own = max(rate / 2, LEAST_BYTES)
            self._set_bytes()
            return self._own

    def _go_on(self) -> None:
        """Let the time pass since the last call."""
        now = self._clock()
        seconds, self._at = max(0.0, now - self._at), now
        self._recent *= math.exp(-seconds / _MEASURED_SECONDS)
        self._bytes.fill(seconds)
        self._cells.fill(seconds)
        if self._own is not None:
            self._own += self._before / 2 * seconds / RECOVERY_SECONDS
            if self._own >= 2 * self._before:
                self._own = None
            self._set_bytes()

    def _set_bytes(self) -> None:
        self._bytes.set(min((rate for rate in (self._allowed, self._own) if rate is not None), default=None))

"""How fast one process may send: two token buckets, and a lower rate for a while when the target says it is busy.

A request of any size goes through while there are tokens, and the next one waits until the debt is paid off. So
requests need not be cut, and the rate holds over any time that is long compared with one request.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from walferry.clock import steady_s

BURST_SECONDS = 0.25
"""what an idle process may send at once, in seconds of its rate"""
LEAST_BYTES = 64 << 10
"""lowest rate per second: a run that sends nothing cannot notice that the target is no longer busy"""
TOGETHER_SECONDS = 1.0
"""answers of a busy target within this time count as one, since all lanes get them at once"""
RECOVERY_SECONDS = 10.0
"""time for the rate to recover from half to full"""
_MEASURED_SECONDS = 2.0


class _Bucket:
    """Tokens of one kind; `rate` is per second, None for no limit."""

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
        """Seconds until there is a token; 0 if there is one."""
        if self.rate is None or self._tokens > 0:
            return 0.0
        return max(1e-3, -self._tokens / self.rate)

    def take(self, tokens: int) -> None:
        if self.rate is not None:
            self._tokens -= tokens


class Pace:
    """What one process may send: bytes and cells per second. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = steady_s) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes, self._cells = _Bucket(), _Bucket()
        self._allowed: float | None = None
        """bytes per second that the run allows this process"""
        self._own: float | None = None
        """bytes per second to which a busy target has slowed this process; None: not slowed"""
        self._before = 0.0
        """bytes per second just before the target slowed this process"""
        self._recent = 0.0
        """bytes sent; older ones count less and less"""
        self._at = clock()
        self._slowed = -math.inf

    def allow(self, bytes_per_s: float | None, cells_per_s: float | None) -> None:
        """Set the limits; None: no limit."""
        with self._lock:
            self._go_on()
            self._allowed = bytes_per_s
            self._cells.set(cells_per_s)
            self._set_bytes()

    def take(self, cells: int, size: int) -> float:
        """Ask to send a request of `cells` cells and `size` bytes. Returns 0.0 to send now, or seconds to ask again."""
        with self._lock:
            self._go_on()
            left = max(self._bytes.seconds_left(), self._cells.seconds_left())
            if not left:
                self._bytes.take(size)
                self._cells.take(cells)
                self._recent += size
            return left

    def slow_down(self) -> float | None:
        """The target is busy: halve the rate, then raise it a little every second.

        Returns the new rate in bytes per second; None if another answer has just halved it.
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
        """Account for the time that has passed since the last call."""
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

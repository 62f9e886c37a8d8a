"""The clocks: one for recorded times, one for deadlines."""

from __future__ import annotations

import time

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """Seconds since a fixed moment. On Linux, unlike `time.monotonic`, they go on while the machine sleeps."""
    return time.clock_gettime(_SINCE_BOOT)

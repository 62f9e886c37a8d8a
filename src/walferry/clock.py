"""The clocks: one for recorded times, one for deadlines."""

from __future__ import annotations

import time
from datetime import UTC, datetime

CLOCKS_APART_MS = 30_000
"""how far a region server's clock may be from ours. HBase refuses a server whose clock differs by more than this from
the master's clock (hbase.master.maxclockskew)."""
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def shown_utc(ms: int, day: str = "") -> str:
    """A recorded time for people: 09:41:07 UTC. `day`: a strftime format for the day, written before the time."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime(f"{day}%H:%M:%S UTC")


def iso(ms: int) -> str:
    """A recorded time as ISO 8601 text: 2026-11-25T09:41:07Z. Raises ValueError or OverflowError after 9999."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z"


def duration(seconds: float) -> str:
    """A duration for people: 59 s, 51 min 40 s, 23 h 59 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"


def steady_s() -> float:
    """Seconds since a fixed moment. On Linux, unlike `time.monotonic`, the clock continues while the machine sleeps."""
    return time.clock_gettime(_SINCE_BOOT)

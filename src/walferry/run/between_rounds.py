"""How much time passes between two rounds of a replay, or of a stream's account."""

from __future__ import annotations

PAUSE_SECONDS = (2.0, 60.0)
"""shortest and longest time between two rounds"""
BUSY_BYTES = 64 << 20
"""bytes of log in a round that make the next round begin soon: the source itself rolls a WAL at about this size"""


def pause_seconds(max_lag: int, applied_bytes: int = 0) -> float:
    """Seconds until the next round: a quarter of the spec's `max_lag`, within PAUSE_SECONDS; the shortest time after a
    round that has applied BUSY_BYTES."""
    least, most = PAUSE_SECONDS
    return least if applied_bytes >= BUSY_BYTES else min(most, max(least, max_lag / 4))

"""The phases of a run, as data."""

from __future__ import annotations

PHASES = (
    "plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy", "replay", "approve", "write_stop",
    "end_fence", "drain", "compare", "check_drain", "release",
)  # fmt: skip
"""In the order of a run."""
BY_TABLE = ("snapshot", "copy", "clone", "compare")
"""those that are done once a table"""
APPLIED_CUT = "applied_cut"
"""kept as a phase by the replay, and no step of a run"""

WINDOW_PHASES = ("replay_window",)
"""of a run that replays a time window"""

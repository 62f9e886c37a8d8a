"""What the newest look at a source's own replication has found, for the state of its run and the board."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from walferry.clock import now_ms, shown_utc
from walferry.ledger import RunLedger

_NOW, _LOOK, _PLAN, _CANARY, _UNSEEN = (
    "replication now", "replication queues", "replication plan", "replication canary", "replication not looked at",
)  # fmt: skip
WATCH = "watch"
"""the label of the heartbeat of a process that looks"""


@dataclass(frozen=True)
class Watched:
    """Whether edits arrive, as of one look."""

    looked_ms: int
    look_seconds: int
    """until the next look"""
    state: Literal["gap", "stuck", "catching up", "following"]
    since_ms: int
    """when the state began"""
    cause: str
    oldest_age_ms: int | None
    """of the oldest edit that was not shipped; 0: none waited; None: it could not be told"""
    unshipped_bytes: int
    awake_ms: int = 0
    """when the look ended, or, while the run was paused, when the watch last found it so"""

    @property
    def overdue_ms(self) -> int:
        """From when on the next look is overdue: after three more should have been."""
        return self.awake_ms + 1000 * max(180, 3 * self.look_seconds)


@dataclass(frozen=True)
class Unseen:
    """Why nothing can be looked at."""

    since_ms: int
    reason: str

    def describe(self) -> str:
        """The failures as a sentence."""
        return f"it cannot be looked at since {shown_utc(self.since_ms, '%Y-%m-%d ')}: {self.reason}"


def keep_watched(ledger: RunLedger, now: Watched, peers: list[dict[str, Any]]) -> None:
    """Keep what a look has found; `peers`: their queues, as plain values."""
    ledger.notes.keep(_NOW, asdict(now) | {"awake_ms": now_ms()}, also=ledger.notes.keeping(_LOOK, {"peers": peers}))
    ledger.notes.drop(_UNSEEN)


def keep_awake(ledger: RunLedger) -> None:
    """Keep that the watch goes on while the run is paused."""
    ledger.notes.change(_NOW, lambda kept: None if kept is None else kept | {"awake_ms": now_ms()})


def watched(ledger: RunLedger) -> Watched | None:
    """What the newest look has found; None before the first one."""
    note = ledger.notes.get(_NOW)
    return None if note is None else Watched(**note)


def watched_peers(ledger: RunLedger) -> list[dict[str, Any]]:
    """The peers with their queues as of the newest look, the worst first."""
    note = ledger.notes.get(_LOOK)
    return [] if note is None else list(note["peers"])


def keep_unseen(ledger: RunLedger, reason: str) -> None:
    """Keep that a look failed, and since when looks fail."""
    before = unseen(ledger)
    since_ms = now_ms() if before is None else before.since_ms
    ledger.notes.keep(_UNSEEN, {"since_ms": since_ms, "reason": reason})


def unseen(ledger: RunLedger) -> Unseen | None:
    """Why the last looks failed; None if the newest one did not."""
    note = ledger.notes.get(_UNSEEN)
    return None if note is None else Unseen(**note)


def keep_plan(ledger: RunLedger, facts: dict[str, Any]) -> None:
    """Keep what the newest look at the settings has found, as plain values with the time `at_ms`."""
    ledger.notes.keep(_PLAN, facts)


def kept_plan(ledger: RunLedger) -> dict[str, Any] | None:
    """What `keep_plan` kept last."""
    return ledger.notes.get(_PLAN)


def keep_canary(ledger: RunLedger, facts: dict[str, Any]) -> None:
    """Keep what became of the newest canaries, as plain values with the time `at_ms`."""
    ledger.notes.keep(_CANARY, facts)


def kept_canary(ledger: RunLedger) -> dict[str, Any] | None:
    """What `keep_canary` kept last."""
    return ledger.notes.get(_CANARY)

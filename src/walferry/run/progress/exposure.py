"""What keeps the source's log for a run, how much of the source's disk or of the folder that takes, and for how long.

HBase's cleaner may take a closed WAL once its time to live is over, counted from its close, unless a peer's queue names
it. So with a peer nothing is lost. With copies, whatever is closed and has no copy yet is lost after the time to live;
and what is closed right after the last look at the source, if nobody looks again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from walferry.amounts import amount
from walferry.clock import duration, iso
from walferry.ledger import RunLedger

_NOTE = "what keeps the log"
_STANDSTILL = "log not looked at"


@dataclass(frozen=True)
class Exposure:
    """What was found at the last look at the source."""

    kept_by: str
    """for display: the peer, or the folder"""
    kept_files: int
    """that exist only because of that: WALs at the source past their time to live, or copies"""
    kept_bytes: int
    pinned: bool
    """nothing is lost as long as the peer exists"""
    file: str | None
    """the first to be lost of those that are closed and have no copy"""
    lost_ms: int | None
    """when, at the earliest"""
    ttl_seconds: float
    ttl_assumed: bool
    """the time to live is HBase's default, because the source does not tell its setting"""
    at_ms: int
    """of the look"""

    def seconds_to_loss(self, now_ms: int) -> float | None:
        """Until the first unread WAL may be lost, 0 if it may be lost already; None while a peer keeps all of them."""
        if self.pinned:
            return None
        unseen_ms = self.at_ms + self.ttl_seconds * 1000  # closed just after the look
        return max(0.0, (min(unseen_ms, self.lost_ms or unseen_ms) - now_ms) / 1000)

    def is_late(self, now_ms: int) -> bool:
        """Whether less than half of the time to live is left: looks are much more frequent."""
        seconds = self.seconds_to_loss(now_ms)
        return seconds is not None and seconds < self.ttl_seconds / 2

    def describe(self, now_ms: int) -> str:
        """In a sentence."""
        files = amount(self.kept_files, "file")
        kept = f"the log is kept by {self.kept_by}: {files}, {self.kept_bytes / 1e6:.1f} MB"
        seconds = self.seconds_to_loss(now_ms)
        if seconds is None:
            return f"{kept} older than the time to live of {duration(self.ttl_seconds)}"
        assumed = ", assumed" if self.ttl_assumed else ""
        first = self.file or "what is closed from now on"
        lost = f"{first} may be lost in {duration(seconds)}"
        return f"{kept}; {lost} (time to live {duration(self.ttl_seconds)}{assumed})"


@dataclass(frozen=True)
class UnwatchedTime:
    """A time in which nobody looked at the source's log, longer than a closed file is kept there."""

    from_ms: int
    until_ms: int
    ttl_seconds: float

    def describe(self) -> str:
        """In a sentence."""
        return (
            f"nobody looked at the source's log from {iso(self.from_ms)} to {iso(self.until_ms)}, for longer than its "
            f"time to live of {duration(self.ttl_seconds)}: what was closed then may be lost. A gap or missing numbers "
            "show most losses, but not of a region's last edits, or of a region whose every edit was lost: trust only "
            "a comparison that began afterwards"
        )


def note_exposure(ledger: RunLedger, exposure: Exposure) -> UnwatchedTime | None:
    """Record a look at the source. If the one before was too long ago, records that for good, and returns it.

    Before the start fence nothing can be lost.
    """
    before, found = ledger.notes.get(_NOTE), None
    if before is not None and not exposure.pinned and ledger.log.fence("start"):
        found = UnwatchedTime(before["at_ms"], exposure.at_ms, min(before["ttl_seconds"], exposure.ttl_seconds))
        if found.until_ms - found.from_ms > found.ttl_seconds * 1000:
            ledger.notes.keep(_STANDSTILL, asdict(found), str(found.from_ms))
        else:
            found = None
    ledger.notes.keep(_NOTE, asdict(exposure))
    return found


def unwatched_times(ledger: RunLedger) -> list[UnwatchedTime]:
    """The times in which nobody looked at the source's log for too long, oldest first; also of a run that has ended."""
    found = [UnwatchedTime(**facts) for facts, _ in ledger.notes.named(_STANDSTILL).values()]
    return sorted(found, key=lambda time: time.from_ms)


def exposure_of(ledger: RunLedger) -> Exposure | None:
    """The last look at the source; None before the first, and when nothing is read any more."""
    kept = ledger.notes.get(_NOTE)
    if kept is None or ledger.record.state != "running" or ledger.phases.facts("check_drain") is not None:
        return None
    return Exposure(**kept)

"""What keeps the source's log for a run, how much space that takes at the source or in the folder, and for how long.

HBase's cleaner may delete a closed WAL once its time to live, counted from the close, is over, unless a peer's queue
names the WAL. So with a peer nothing is lost. With copies, a closed WAL without a copy is lost after its time to live.
If nobody looks at the source again, so is a WAL that is closed right after the last look.
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
    """The result of the last look at the source."""

    kept_by: str
    """for display: the peer, or the folder"""
    kept_files: int
    """how many files exist only because of it: WALs at the source past their time to live, or copies"""
    kept_bytes: int
    pinned: bool
    """a peer keeps the log: nothing is lost as long as the peer exists"""
    file: str | None
    """of the closed WALs without a copy, the one that will be lost first"""
    lost_ms: int | None
    """when `file` may be lost, at the earliest"""
    ttl_seconds: float
    ttl_assumed: bool
    """the time to live is HBase's default, because the source does not show its setting"""
    at_ms: int
    """time of the look"""

    def seconds_to_loss(self, now_ms: int) -> float | None:
        """Seconds until the first unread WAL may be lost; 0 if it may be lost already, None while a peer keeps all."""
        if self.pinned:
            return None
        unseen_ms = self.at_ms + self.ttl_seconds * 1000  # closed just after the look
        return max(0.0, (min(unseen_ms, self.lost_ms or unseen_ms) - now_ms) / 1000)

    def is_late(self, now_ms: int) -> bool:
        """Whether less than half of the time to live is left. Looks are much more frequent than that."""
        seconds = self.seconds_to_loss(now_ms)
        return seconds is not None and seconds < self.ttl_seconds / 2

    def describe(self, now_ms: int) -> str:
        """The exposure as a sentence."""
        files = amount(self.kept_files, "file")
        kept = f"the log is kept by {self.kept_by}: {files}, {self.kept_bytes / 1e6:.1f} MB"
        seconds = self.seconds_to_loss(now_ms)
        if seconds is None:
            return f"{kept} older than the time to live of {duration(self.ttl_seconds)}"
        assumed = ", assumed" if self.ttl_assumed else ""
        first = self.file or "a WAL closed from now on"
        lost = f"{first} may be lost in {duration(seconds)}"
        return f"{kept}; {lost} (time to live {duration(self.ttl_seconds)}{assumed})"


@dataclass(frozen=True)
class UnwatchedTime:
    """A time without a look at the source's log, longer than the source keeps a closed file."""

    from_ms: int
    until_ms: int
    ttl_seconds: float

    def describe(self) -> str:
        """The unwatched time as a sentence."""
        return (
            f"the source's log was not looked at from {iso(self.from_ms)} to {iso(self.until_ms)}, for longer than its "
            f"time to live of {duration(self.ttl_seconds)}: WALs closed in that time may be lost. Gaps and missing "
            "numbers show most losses, but not the loss of a region's last edits, or of all its edits: trust only a "
            "comparison that began afterwards"
        )


def note_exposure(ledger: RunLedger, exposure: Exposure) -> UnwatchedTime | None:
    """Record a look at the source. If the previous look was too long ago, record that for good too, and return it.

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
    """The times without a look at the source's log that were too long, oldest first; also for a run that has ended."""
    found = [UnwatchedTime(**facts) for facts, _ in ledger.notes.named(_STANDSTILL).values()]
    return sorted(found, key=lambda time: time.from_ms)


def exposure_of(ledger: RunLedger) -> Exposure | None:
    """The last look at the source; None before the first look, and once nobody reads the log any more."""
    kept = ledger.notes.get(_NOTE)
    if kept is None or ledger.record.state != "running" or ledger.phases.facts("check_drain") is not None:
        return None
    return Exposure(**kept)

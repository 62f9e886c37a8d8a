"""Snapshots of a stream's tables: those that people have asked for, and how far the one is that is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.ledger import RunLedger

_ASKED, _SENDING = "send again", "sending snapshot"


@dataclass(frozen=True)
class Request:
    """Somebody wants all rows of a table to be sent again."""

    by: str
    reason: str
    asked_ms: int


def ask_again(ledger: RunLedger, table: str, by: str, reason: str) -> None:
    """Ask for the rows of a table; the stream takes it up within seconds. A request that it has not taken up yet is
    replaced."""
    ledger.notes.keep(_ASKED, asdict(Request(by, reason, now_ms())), table)


def asked_again(ledger: RunLedger) -> Mapping[str, Request]:
    """What was asked for and not taken up yet, by table."""
    return {table: Request(**facts) for table, (facts, _) in ledger.notes.named(_ASKED).items()}


def take_request(ledger: RunLedger, table: str) -> None:
    """The stream has taken up a request."""
    ledger.notes.drop(_ASKED, table)


@dataclass(frozen=True)
class Progress:
    """How far the snapshot of a table was sent. Bytes: of store files."""

    since_ms: int
    """when this process began with it"""
    begun_bytes: int
    """done at that time"""
    done_bytes: int
    of_bytes: int
    done_regions: int
    of_regions: int
    rows: int

    def describe(self, table: str, now: int) -> str:
        """As a clause."""
        text = (
            f"{amount(self.rows, 'row')} of {table}, {self.done_regions} of {amount(self.of_regions, 'region')}, "
            f"{self.done_bytes / 1e6:.0f} of {self.of_bytes / 1e6:.0f} MB"
        )
        new = self.done_bytes - self.begun_bytes
        if new <= 0:
            return text
        left_s = (now - self.since_ms) / 1000 / new * (self.of_bytes - self.done_bytes)
        return f"{text}, about {left_s / 60:.0f} min left" if left_s > 90 else f"{text}, about {left_s:.0f} s left"


def keep_progress(ledger: RunLedger, table: str, progress: Progress) -> None:
    """Record how far it is."""
    ledger.notes.keep(_SENDING, asdict(progress), table)


def drop_progress(ledger: RunLedger, table: str) -> None:
    """All its rows were sent."""
    ledger.notes.drop(_SENDING, table)


def progress_of(ledger: RunLedger) -> Mapping[str, Progress]:
    """The snapshot that is sent now, by table."""
    return {table: Progress(**facts) for table, (facts, _) in ledger.notes.named(_SENDING).items()}


def sends_rows(ledger: RunLedger) -> str:
    """What is sent of snapshots now, as text; "" if nothing is."""
    found = progress_of(ledger).items()
    return "; ".join(f"first the rows that the table has: {one.describe(table, now_ms())}" for table, one in found)

"""Tables of the target that are being copied again from the source, as the ledger knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from walferry.clock import now_ms, shown_utc
from walferry.ledger import RunLedger

_NOTE, _DONE = "copying again", "copied again"

Range = tuple[bytes, bytes]
"""from a row to before another; b"" as the end: to the end of the table"""


@dataclass(frozen=True)
class Copying:
    """How far a table is."""

    by: str
    reason: str
    asked_ms: int
    nonce: tuple[int, int]
    """of the request that empties the target table: the master does not repeat what it did for the same one"""
    emptied: bool = False
    open: tuple[Range, ...] = ()
    """what is left of the regions that were begun"""
    rest: bytes | None = b""
    """the first row of those that were not; None: all were"""
    regions: int = 0
    """of the source, that were copied"""
    of: int = 0
    """all of them, when it last went on"""
    cells: int = 0
    size: int = 0
    """bytes of these"""
    fault: str = ""
    """why it did not go on when it was last tried"""

    @property
    def is_done(self) -> bool:
        """Whether all rows were copied."""
        return self.emptied and not self.open and self.rest is None

    def describe(self) -> str:
        """As a clause."""
        far = f"{self.regions} of {self.of} regions, {self.size / 1e6:.0f} MB are copied"
        if not self.emptied:
            far = "its target table is about to be emptied"
        return f"{far}; it did not go on: {self.fault}" if self.fault else far

    def keep(self, ledger: RunLedger, table: str) -> None:
        """Keep it in the ledger."""
        ranges = [[start.hex(), stop.hex()] for start, stop in self.open]
        rest = None if self.rest is None else self.rest.hex()
        ledger.notes.keep(_NOTE, asdict(self) | {"open": ranges, "rest": rest}, table)


def copying(ledger: RunLedger) -> dict[str, Copying]:
    """The source tables that are being copied again."""
    return {table: _of(kept) for table, (kept, _) in ledger.notes.named(_NOTE).items()}


@dataclass(frozen=True)
class Copied:
    """That a table was copied again."""

    by: str
    reason: str
    at_ms: int
    cells: int
    size: int
    """bytes of these"""

    def describe(self) -> str:
        """As a clause."""
        why = f": {self.reason}" if self.reason else ""
        much = f"{self.cells} cells, {self.size / 1e6:.1f} MB"
        return f"copied again until {shown_utc(self.at_ms)}, {much} ({self.by}{why})"


def end_copying(ledger: RunLedger, table: str, done: Copying) -> None:
    """All rows of a table were copied."""
    ended = Copied(done.by, done.reason, now_ms(), done.cells, done.size)
    ledger.notes.keep(_DONE, asdict(ended), table)
    ledger.notes.drop(_NOTE, table)


def copied(ledger: RunLedger) -> dict[str, Copied]:
    """The source tables that were copied again, each the last time."""
    return {table: Copied(**kept) for table, (kept, _) in ledger.notes.named(_DONE).items()}


def waits_for_copying(ledger: RunLedger) -> str:
    """Why nothing of these tables counts as equal now; "" if there are none."""
    return "; ".join(f"{table} is being copied again: {one.describe()}" for table, one in copying(ledger).items())


def _of(kept: Mapping[str, Any]) -> Copying:
    ranges = tuple((bytes.fromhex(start), bytes.fromhex(stop)) for start, stop in kept["open"])
    rest = None if kept["rest"] is None else bytes.fromhex(kept["rest"])
    group, number = kept["nonce"]
    return Copying(**{**kept, "open": ranges, "rest": rest, "nonce": (group, number)})

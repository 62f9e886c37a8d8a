"""The rows that source tables had before their edits are received, as far as they are copied (`receive.history`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from walferry.amounts import amount
from walferry.clock import duration
from walferry.hbase.descriptors import Range
from walferry.ledger import RunLedger
from walferry.ledger.batches import Change

_NOTE = "history"


@dataclass(frozen=True)
class History:
    """How much of what a table has already is at the target."""

    peer: str = ""
    """the source's peer that has kept the log since before the first row was read; "": copying has not begun"""
    created: int | None = None
    """`hbase.peers.peer_created` of that peer"""
    since_ms: int = 0
    """edits that were written before are not applied: the copy has them, and the peer may have a part of them only"""
    left: tuple[Range, ...] = ()
    """ranges of rows that are not copied yet"""
    regions: int = 0
    """how many ranges there were at first: the regions of the source table"""
    cells: int = 0
    size: int = 0
    """bytes of the copied cells"""
    seconds: float = 0.0
    """how long copying took, without the waits in between"""
    waits: str = ""
    """why copying does not go on"""
    waits_ms: int = 0
    """since when it does not"""

    @property
    def is_done(self) -> bool:
        """Whether all rows are copied."""
        return bool(self.peer) and not self.left

    def describe(self) -> str:
        """As a clause."""
        if self.waits:
            return f"copying what it has already waits: {self.waits}"
        if not self.peer:
            return "what it has already is not copied yet"
        much = f"{amount(self.cells, 'cell')}, {self.size / 1e6:.1f} MB"
        if self.is_done:
            return f"what it had already is copied, {much}"
        done = max(0, self.regions - len(self.left))
        eta = f", about {duration(self.seconds * len(self.left) / done)} left" if done else ""
        return f"what it has already is being copied: {done} of {amount(self.regions, 'region')}, {much}{eta}"

    def keep(self, ledger: RunLedger, table: str, lease_check: Change = lambda connection: None) -> None:
        """Record it for a source table. Raises what `lease_check` raises."""
        ranges = [[start.hex(), stop.hex()] for start, stop in self.left]
        ledger.notes.keep(_NOTE, asdict(self) | {"left": ranges}, table, lease_check)


def histories(ledger: RunLedger) -> dict[str, History]:
    """Those of all source tables of which something is recorded."""
    return {table: _of(kept) for table, (kept, _) in ledger.notes.named(_NOTE).items()}


def history_of(ledger: RunLedger, table: str) -> History:
    """That of a source table."""
    kept = ledger.notes.get(_NOTE, table)
    return History() if kept is None else _of(kept)


def _of(kept: Mapping[str, Any]) -> History:
    left = tuple((bytes.fromhex(start), bytes.fromhex(stop)) for start, stop in kept["left"])
    return History(**{**kept, "left": left})

"""Target tables that are being copied again from the source, as recorded in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from walferry.amounts import amount
from walferry.clock import now_ms, shown_utc
from walferry.errors import WalferryError
from walferry.hbase.descriptors import Range
from walferry.ledger import RunLedger
from walferry.ledger.batches import Change

_NOTE, _DONE, _GIVEN_UP, _REPLACED = "copying again", "copied again", "copying given up", "replaced"


@dataclass(frozen=True)
class Copying:
    """How much of a table was copied again."""

    by: str
    reason: str
    asked_ms: int
    nonce: tuple[int, int]
    """of the request that empties the target table: HBase's master does not repeat a request with the same nonce"""
    emptied: bool = False
    open: tuple[Range, ...] = ()
    """the ranges that are left of regions whose copy was started"""
    rest: bytes | None = b""
    """first row of the regions whose copy was not started; None: every region was started"""
    regions: int = 0
    """how many source regions were copied"""
    of: int = 0
    """how many regions the source table had when copying last continued"""
    cells: int = 0
    size: int = 0
    """bytes of these cells"""
    fault: str = ""
    """why the last attempt did not continue"""
    seconds: float = 0.0
    """how long copying took, without the waits in between"""
    request: str = ""
    """identifies the request, so that an Airflow task and its retry ask for the same copy"""

    @property
    def is_done(self) -> bool:
        """Whether all rows were copied."""
        return self.emptied and not self.open and self.rest is None

    def describe(self) -> str:
        """As a clause."""
        far = f"{self.regions} of {amount(self.of, 'region')}, {self.size / 1e6:.0f} MB are copied"
        if not self.emptied:
            far = "its target table is about to be emptied"
        return f"{far}; its last attempt failed: {self.fault}" if self.fault else far

    def begin(self, ledger: RunLedger, table: str) -> None:
        """Record that a table is to be copied again."""
        ledger.notes.keep(_NOTE, self._facts(), table)

    def advance(self, ledger: RunLedger, table: str, lease_check: Change = lambda connection: None) -> None:
        """Record the progress of the copy.

        Raises what `lease_check` raises, and GivenUpError if somebody has ended this copy, or requested another one.
        """
        _advance(ledger, table, self, self._facts(), lease_check)

    def _facts(self) -> dict[str, Any]:
        ranges = [[start.hex(), stop.hex()] for start, stop in self.open]
        return asdict(self) | {"open": ranges, "rest": None if self.rest is None else self.rest.hex()}


class GivenUpError(WalferryError):
    """A table is no longer to be copied again, or a newer request has replaced this one."""


def copying(ledger: RunLedger) -> dict[str, Copying]:
    """The source tables that are being copied again."""
    return {table: _of(kept) for table, (kept, _) in ledger.notes.named(_NOTE).items()}


@dataclass(frozen=True)
class Copied:
    """A table was copied again."""

    by: str
    reason: str
    at_ms: int
    cells: int
    size: int
    """bytes of these cells"""
    seconds: float = 0.0
    """how long copying took, without the waits in between; 0 if nobody has measured it"""
    request: str = ""
    """as in `Copying`"""

    def describe(self) -> str:
        """As a clause."""
        why = f": {self.reason}" if self.reason else ""
        much = f"{amount(self.cells, 'cell')}, {self.size / 1e6:.1f} MB"
        return f"copied again until {shown_utc(self.at_ms)}, {much} ({self.by}{why})"


def end_copying(ledger: RunLedger, table: str, done: Copying, lease_check: Change) -> None:
    """Record that all rows of a table were copied. Raises the errors of `Copying.advance`."""
    ended = Copied(done.by, done.reason, now_ms(), done.cells, done.size, round(done.seconds, 1), done.request)
    ledger.notes.keep(_DONE, asdict(ended), table)
    note_replaced(ledger, table)
    _advance(ledger, table, done, None, lease_check)


def give_up_copying(ledger: RunLedger, table: str) -> None:
    """Record that a table is no longer to be copied again."""
    note_replaced(ledger, table)
    if (now := copying(ledger).get(table)) is not None:
        ledger.notes.keep(_GIVEN_UP, {"request": now.request}, table)
    ledger.notes.drop(_NOTE, table)


def is_given_up(ledger: RunLedger, table: str, request: str) -> bool:
    """Whether somebody has ended the copy that a request asked for."""
    return ledger.notes.get(_GIVEN_UP, table) == {"request": request} and bool(request)


def note_replaced(ledger: RunLedger, table: str) -> None:
    """Record that the table's rows are replaced now: comparisons that began before this moment no longer count."""
    ledger.notes.keep(_REPLACED, {"at_ms": now_ms()}, table)


def replaced_ms(ledger: RunLedger, table: str) -> int | None:
    """When the table's rows were last replaced; None if they never were."""
    kept = ledger.notes.get(_REPLACED, table)
    return None if kept is None else int(kept["at_ms"])


def _advance(ledger: RunLedger, table: str, now: Copying, facts: dict[str, Any] | None, lease_check: Change) -> None:
    def same(connection: Connection, kept: dict[str, Any]) -> None:
        lease_check(connection)
        if kept["asked_ms"] != now.asked_ms:
            raise gone

    gone = GivenUpError(f"the request to copy {table} again was ended, or replaced by a newer one", table=table)
    if not ledger.notes.advance(_NOTE, facts, table, same):
        raise gone


def copied(ledger: RunLedger) -> dict[str, Copied]:
    """The last completed copy of each source table that was copied again."""
    return {table: Copied(**kept) for table, (kept, _) in ledger.notes.named(_DONE).items()}


def waits_for_copying(ledger: RunLedger) -> str:
    """Why tables that are being copied again do not count as equal now; "" if there are none."""
    return "; ".join(f"{table} is being copied again: {one.describe()}" for table, one in copying(ledger).items())


def _of(kept: Mapping[str, Any]) -> Copying:
    ranges = tuple((bytes.fromhex(start), bytes.fromhex(stop)) for start, stop in kept["open"])
    rest = None if kept["rest"] is None else bytes.fromhex(kept["rest"])
    group, number = kept["nonce"]
    return Copying(**{**kept, "open": ranges, "rest": rest, "nonce": (group, number)})

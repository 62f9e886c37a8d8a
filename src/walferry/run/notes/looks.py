"""The result of the last look at each table: which of the rows touched since its whole comparison differed."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from walferry.amounts import rows_differ
from walferry.hbase.rowkey import shown_row
from walferry.ledger import RunLedger
from walferry.ledger.comparisons import decision

_NOTE = "last look"
_SHOWN = 3


class Look(BaseModel):
    """One look at a table."""

    model_config = ConfigDict(frozen=True)

    at_ms: int
    rows: int
    """rows that were read"""
    read_bytes: int
    """bytes read on both sides"""
    under_way: int
    """of these rows, how many differ and will be read again"""
    suspected: int = 0
    """of the rows under way, how many have no explanation yet; the next look that reads the log decides"""
    unexamined: int = 0
    """of the rows under way, how many nobody has examined for a reason yet; these may differ for good"""
    left: int
    """of the rows read, how many differ and are neither under way, accepted nor repaired"""
    first: tuple[str, ...] = ()
    """some of the rows left, as shown to people, each with the reason why it is not repaired, if that is known"""

    def fault(self) -> str:
        """What is wrong with the table, as a clause; "" if nothing is."""
        if not self.left:
            return ""
        return f"{rows_differ(self.left)}, such as {'; '.join(self.first)}"


def note_look(
    ledger: RunLedger,
    table: str,
    at_ms: int,
    rows: int = 0,
    read_bytes: int = 0,
    differing: Mapping[bytes, str] | None = None,
    *,
    suspected: int = 0,
    unexamined: int = 0,
) -> None:
    """Keep the result of a look that began at `at_ms`.

    `differing`: the rows that still differ, each with the reason why it is not repaired, or "" if it will be read
    again.
    """
    left = {row: fault for row, fault in (differing or {}).items() if fault}
    first = tuple(f"row {shown_row(row)}: {fault}" for row, fault in list(left.items())[:_SHOWN])
    under_way = len(differing or {}) - len(left)
    look = Look(
        at_ms=at_ms, rows=rows, read_bytes=read_bytes, under_way=under_way, suspected=suspected,
        unexamined=unexamined, left=len(left), first=first,
    )  # fmt: skip
    ledger.notes.keep(_NOTE, look.model_dump(), table)


def last_look(ledger: RunLedger, table: str) -> Look | None:
    """The last look at a table; None before the first."""
    kept = ledger.notes.get(_NOTE, table)
    return None if kept is None else Look.model_validate(kept)


def fault_now(ledger: RunLedger, table: str, look: Look) -> str:
    """What is wrong with a table according to a look, as a clause; "" if nothing is, or if a person has accepted all
    rows that the look left."""
    looked, decided = ledger.comparisons.looked(table), ledger.comparisons.accepted().keys()
    accepted = len(looked) >= look.left and all(decision(item) in decided for item in looked)
    return "" if accepted else look.fault()

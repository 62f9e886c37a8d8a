"""The result of the second reader: rows that HBase's own Java client, behind Thrift, read from both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from walferry.amounts import amount
from walferry.ledger import ComparedTable, RunLedger
from walferry.ledger.comparisons import lacks_explanation
from walferry.ledger.rows import Purpose
from walferry.run.run import Run

_NOTES: Mapping[Purpose, str] = {"phase": "spot check", "verify": "spot check on demand"}
"""one note for each purpose, so that `walferry verify` does not replace the result that the last gate uses"""


class SpotCheck(BaseModel):
    """The spot check after one comparison of a table, or after a pass over it."""

    model_config = ConfigDict(frozen=True)

    comparison: int
    """number of the comparison, or of the pass"""
    rows: int = 0
    """rows that were read from both sides"""
    seconds: float = 0.0
    differing: tuple[str, ...] = ()
    """rows that differ although the comparison found them equal, as hex"""
    excused: int = 0
    """rows that differ and that the comparison names too, or that correct copies may show differently"""
    why: str = ""
    """why no row, or not every one, was read"""

    def facts(self) -> dict[str, Any]:
        """The result as plain values, without the rows."""
        counts = {"rows": self.rows, "differing": len(self.differing), "excused": self.excused}
        return counts | {"seconds": self.seconds, "why": self.why, "text": self.describe()}

    def describe(self) -> str:
        """The result as a clause."""
        if not self.rows:
            owed = f"; {len(self.differing)} that differed last time were not read" if self.differing else ""
            return f"no row was read by a second reader: {self.why or 'both sides have none'}{owed}"
        known = f", {self.excused} of them known from the comparison" if self.excused else ""
        found = f"{len(self.differing) + self.excused} differ{known}" if self.differing or self.excused else "all equal"
        left = f" ({self.why})" if self.why else ""
        rows = amount(self.rows, "row")
        return f"{rows} read by HBase's own Java client on both sides: {found}{left}"


def note_spot_check(ledger: RunLedger, table: str, found: SpotCheck, purpose: Purpose) -> None:
    """Keep the newest spot check of a table after a comparison made for this purpose."""
    ledger.notes.keep(_NOTES[purpose], found.model_dump(), table)


def last_spot_check(ledger: RunLedger, table: str) -> SpotCheck | None:
    """The newest spot check of a table; None before the first."""
    return max(_kept(ledger, table), key=lambda found: found.comparison, default=None)


def spot_check_of(ledger: RunLedger, made: ComparedTable) -> SpotCheck | None:
    """The spot check after a comparison; None if there was none, or if a newer one has replaced it."""
    return next((found for found in _kept(ledger, made.table) if found.comparison == made.attempt), None)


def only_second(ledger: RunLedger, made: ComparedTable) -> bool:
    """Whether a comparison has rows that differ only for the second reader and that nobody has accepted."""
    check = spot_check_of(ledger, made)
    if check is None or not check.differing:
        return False
    decided, rows = ledger.comparisons.accepted().keys(), set(check.differing)
    found = ledger.comparisons.differences([made])
    return any(item.row.hex() in rows and lacks_explanation(item, decided) for item in found)


def _kept(ledger: RunLedger, table: str) -> list[SpotCheck]:
    kept = [ledger.notes.get(name, table) for name in _NOTES.values()]
    return [SpotCheck.model_validate(one) for one in kept if one is not None]


def why_none(run: Run) -> str:
    """Why there can be no spot check; "" if there can."""
    if not run.spec.spot_check:
        return "the spec has `spot_check: 0`"
    sides = {"source": run.source_address(), "target": run.spec.target.address()}
    missing = [side for side, address in sides.items() if address.thrift is None]
    return f"no Thrift server of the {' and of the '.join(missing)} is known (`thrift`)" if missing else ""


def sampled(run: Run, regions: int) -> int:
    """How many cells of each region a comparison is to sample for the spot check."""
    return 0 if why_none(run) else max(1, run.spec.spot_check // 3 // max(1, regions))

"""What the second reader found: rows that HBase's own Java client, behind Thrift, read from both sides."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from walferry.ledger import ComparedTable, RunLedger
from walferry.run.run import Run

_NOTE = "spot check"


class SpotCheck(BaseModel):
    """The spot check after one comparison of a table."""

    model_config = ConfigDict(frozen=True)

    comparison: int
    """its number"""
    rows: int = 0
    """that were read from both sides"""
    seconds: float = 0.0
    differing: tuple[str, ...] = ()
    """those that differ although the comparison found them equal, as hex"""
    excused: int = 0
    """those that the comparison knows of, or that correct copies may show differently"""
    why: str = ""
    """why no row, or not every one, was read"""

    def describe(self) -> str:
        """The result as a clause."""
        if not self.rows:
            owed = f"; {len(self.differing)} that differed last time were not read" if self.differing else ""
            return f"no row was read by a second reader: {self.why or 'both sides have none'}{owed}"
        known = f", {self.excused} of which the comparison knows" if self.excused else ""
        found = f"{len(self.differing) + self.excused} differ{known}" if self.differing or self.excused else "all equal"
        left = f" ({self.why})" if self.why else ""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{rows} read by HBase's own Java client on both sides: {found}{left}"


def note_spot_check(ledger: RunLedger, table: str, found: SpotCheck) -> None:
    """Keep the newest spot check of a table."""
    ledger.notes.keep(_NOTE, found.model_dump(), table)


def last_spot_check(ledger: RunLedger, table: str) -> SpotCheck | None:
    """The newest spot check of a table; None before the first."""
    kept = ledger.notes.get(_NOTE, table)
    return None if kept is None else SpotCheck.model_validate(kept)


def spot_check_of(ledger: RunLedger, made: ComparedTable) -> SpotCheck | None:
    """The spot check after a comparison; None if there was none, or if a newer one has taken its place."""
    found = last_spot_check(ledger, made.table)
    return found if found is not None and found.comparison == made.attempt else None


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

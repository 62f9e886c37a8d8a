"""Estimates, from the run's own measurements, for making a table equal: by repairing rows or copying it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from walferry.clock import duration
from walferry.ledger import RunLedger
from walferry.run.notes.copying_again import copied
from walferry.run.progress.write_stop import comparing_seconds

_NOTE = "repairs measured"
UNKNOWN = "time unknown"
LEAST_BYTES = 64 << 20
"""bytes that must have been copied or compacted to compute a rate; with fewer, most of the time is overhead"""


@dataclass(frozen=True)
class Expected:
    """How long something will take; None while the run has no measurement for it."""

    seconds: float | None
    basis: str
    """what the estimate is based on, or which measurement is missing"""

    def describe(self) -> str:
        """The estimate as a clause."""
        if self.seconds is None:
            return f"{UNKNOWN} ({self.basis})"
        return f"about {duration(max(self.seconds, 1.0))} ({self.basis})"


@dataclass(frozen=True)
class Repaired:
    """What all repairs of a run have taken so far."""

    rows: int = 0
    row_seconds: float = 0.0
    """time to read the rows on both sides, send what they lack and read them again, once the replay stood still"""
    regions: int = 0
    """regions that were compacted"""
    region_bytes: int = 0
    region_seconds: float = 0.0
    """time to compact these regions and to send the source's markers again"""


def note_repaired(ledger: RunLedger, made: Repaired) -> None:
    """Add what a repair has taken. Only the holder of the leases repairs, so no two processes add at once."""
    if not (made.rows or made.regions):
        return
    before = repaired(ledger)
    ledger.notes.keep(_NOTE, {key: value + getattr(before, key) for key, value in asdict(made).items()})


def repaired(ledger: RunLedger) -> Repaired:
    """What the run's repairs have taken."""
    return Repaired(**(ledger.notes.get(_NOTE) or {}))


def expected_repair(ledger: RunLedger, table: str, rows: int, regions: int, region_bytes: int) -> Expected:
    """How long it takes to repair rows of a table, and to compact the target regions that this requires.

    Both estimates use the run's earlier repairs. Until enough was compacted, the estimate for large regions uses the
    rate of the table's first copy.
    """
    known = repaired(ledger)
    if not rows:
        return Expected(0.0, "nothing is to be repaired")
    seconds, basis = 0.0, ["estimated from this run's repairs"]
    if known.rows:
        seconds = rows * known.row_seconds / known.rows
    elif not regions:
        return Expected(None, "this run has repaired no row yet")
    if regions and known.region_bytes >= LEAST_BYTES:
        seconds += region_bytes * known.region_seconds / known.region_bytes
    elif regions and known.regions and region_bytes < LEAST_BYTES:
        seconds += regions * known.region_seconds / known.regions
    elif regions:
        rate = _copy_rate(ledger, table)
        if rate is None:
            return Expected(None, "this run has not compacted enough for an estimate")
        seconds += region_bytes / rate
        basis.append(f"compactions at the {rate / 1e6:.0f} MB/s of the table's first copy")
        if not known.rows:
            basis = [f"{basis[-1]}; the additional time for the rows is unknown"]
    return Expected(round(seconds, 1), "; ".join(basis))


def expected_copy_again(ledger: RunLedger, table: str, source_bytes: int) -> Expected:
    """How long it takes to copy a table again: as long as the last time. If it was never copied again, the longer of
    two estimates: by the rate of its first copy, and by its last comparison, which reads the same cells."""
    before = copied(ledger).get(table)
    if before is not None and before.seconds:
        return Expected(before.seconds, "as long as the last time")
    found = []
    if (rate := _copy_rate(ledger, table)) is not None:
        found.append(Expected(round(source_bytes / rate, 1), f"at the {rate / 1e6:.0f} MB/s of its first copy"))
    if (seconds := comparing_seconds(ledger, table)) is not None:
        found.append(Expected(seconds, "at least as long as its last comparison took to read it"))
    if not found:
        return Expected(None, "its first copy gives no rate, and it has not been compared in this run")
    return max(found, key=lambda one: one.seconds or 0.0)


def _copy_rate(ledger: RunLedger, table: str) -> float | None:
    """Bytes of store files per second in the first copy. None if there were too few bytes, or if the copy took several
    attempts: later attempts keep the files that earlier ones copied."""
    made = ledger.phases.find("copy", table)
    if made is None or made.state != "done" or made.attempts != 1 or made.finished_ms is None:
        return None
    size, took_ms = int(made.facts.get("bytes") or 0), made.finished_ms - made.started_ms
    return size / took_ms * 1000 if size >= LEAST_BYTES and took_ms > 0 else None

"""How long it takes to make a table equal, by what the run has measured: to repair rows, or to copy the table again."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from walferry.clock import duration
from walferry.ledger import RunLedger
from walferry.run.notes.copying_again import copied
from walferry.run.progress.write_stop import comparing_seconds

_NOTE = "repairs measured"
UNKNOWN = "time unknown"
LEAST_BYTES = 64 << 20
"""that were copied or compacted, from which on their rate tells something: fewer do not take most of the time"""


@dataclass(frozen=True)
class Expected:
    """How long something will take; None while the run has measured nothing that tells."""

    seconds: float | None
    basis: str
    """by what, or what is not measured yet"""

    def describe(self) -> str:
        """As a clause."""
        if self.seconds is None:
            return f"{UNKNOWN} ({self.basis})"
        return f"about {duration(max(self.seconds, 1.0))} ({self.basis})"


@dataclass(frozen=True)
class Repaired:
    """What the repairs of a run have taken so far, all in all."""

    rows: int = 0
    row_seconds: float = 0.0
    """to read them on both sides, to send what they lack, and to read them again, once the replay stood still"""
    regions: int = 0
    """that were compacted"""
    region_bytes: int = 0
    region_seconds: float = 0.0
    """to compact them, and to send the source's markers again"""


def note_repaired(ledger: RunLedger, made: Repaired) -> None:
    """Add what a repair has taken. Only whoever has the leases repairs."""
    if not (made.rows or made.regions):
        return
    before = repaired(ledger)
    ledger.notes.keep(_NOTE, {key: value + getattr(before, key) for key, value in asdict(made).items()})


def repaired(ledger: RunLedger) -> Repaired:
    """What its repairs have taken."""
    return Repaired(**(ledger.notes.get(_NOTE) or {}))


def expected_repair(ledger: RunLedger, table: str, rows: int, regions: int, region_bytes: int) -> Expected:
    """How long it takes to repair rows of a table, for which regions of the target have to be compacted.

    Both go by the run's repairs. Before enough was compacted, large regions go by the table's first copy.
    """
    known = repaired(ledger)
    if not rows:
        return Expected(0.0, "nothing is to be repaired")
    seconds, basis = 0.0, ["as repairs took in this run"]
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
            return Expected(None, "this run has not compacted enough to tell")
        seconds += region_bytes / rate
        basis.append(f"compactions at the {rate / 1e6:.0f} MB/s of the table's first copy")
        if not known.rows:
            basis = [f"{basis[-1]}; what comes on top for the rows is unknown"]
    return Expected(round(seconds, 1), "; ".join(basis))


def expected_copy_again(ledger: RunLedger, table: str, source_bytes: int) -> Expected:
    """How long it takes to copy a table again: what that took before. Otherwise the longer of what is known: by the
    rate of its first copy, and as long as it took to compare it, which reads the same cells."""
    before = copied(ledger).get(table)
    if before is not None and before.seconds:
        return Expected(before.seconds, "as it took the last time")
    found = []
    if (rate := _copy_rate(ledger, table)) is not None:
        found.append(Expected(round(source_bytes / rate, 1), f"at the {rate / 1e6:.0f} MB/s of its first copy"))
    if (seconds := comparing_seconds(ledger, table)) is not None:
        found.append(Expected(seconds, "at least what its last comparison took to read it"))
    if not found:
        return Expected(None, "its first copy tells no rate, and it has not been compared in this run")
    return max(found, key=lambda one: one.seconds or 0.0)


def _copy_rate(ledger: RunLedger, table: str) -> float | None:
    """Bytes of store files per second of the first copy; None if they were too few to tell, or if an attempt of it was
    repeated, since what the first one has copied is kept."""
    made = ledger.phases.find("copy", table)
    if made is None or made.state != "done" or made.attempts != 1 or made.finished_ms is None:
        return None
    size, took_ms = int(made.facts.get("bytes") or 0), made.finished_ms - made.started_ms
    return size / took_ms * 1000 if size >= LEAST_BYTES and took_ms > 0 else None

"""The fences of a run, from its ledger."""

from __future__ import annotations

from walferry.ledger import RunLedger
from walferry.ledger.rows import FenceKind
from walferry.wal.fences import Fences


def fences_of(ledger: RunLedger) -> Fences:
    """Where the run's part of the log begins and ends, as recorded so far."""

    def positions(kind: FenceKind) -> dict[str, tuple[int, int]]:
        return {p.group: (p.number, p.offset) for p in ledger.log.fence(kind) or []}

    end = positions("end")
    alive = [p.number for p in ledger.log.fence("start") or [] if p.file]  # no file: a group of a dead server
    return Fences(
        positions("start"), end, ledger.log.groups() if end else frozenset(), started_ms=min(alive, default=0)
    )

"""Tells once a minute what a run has received, and stops its process once the run has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from walferry.amounts import amount
from walferry.background import beside
from walferry.clock import now_ms, shown_utc, steady_s
from walferry.errors import WalferryError
from walferry.ledger import RunLedger
from walferry.run.notes.left_out import left_out

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
TELL_SECONDS = 60.0


@dataclass(frozen=True)
class Sums:
    """What all processes of a run have received until a moment."""

    at_ms: int
    entries: int
    calls: int
    refused: int
    newest_ms: dict[str, int | None]
    """the newest write time that was applied, by source table"""
    left_out: int = 0
    """entries that are older than what the run is to have"""

    @classmethod
    def of(cls, ledger: RunLedger) -> Sums:
        """The sums now."""
        totals, processes = ledger.received.totals(), ledger.received.receivers()
        return cls(
            now_ms(),
            sum(total.entries for total in totals),
            sum(total.calls for total in totals),
            sum(one.refused for one in processes),
            {total.table: total.newest_ms for total in totals},
            sum(one.entries for one in left_out(ledger).values()),
        )

    def since(self, before: Sums) -> dict[str, Any]:
        """What came since then, as plain values. Processes that were forgotten take their refusals with them."""
        seconds = max(1, self.at_ms - before.at_ms) / 1000
        return {
            "at_ms": self.at_ms,
            "entries_per_second": round((self.entries - before.entries) / seconds, 1),
            "calls": self.calls - before.calls,
            "refused": max(0, self.refused - before.refused),
            "left_out": self.left_out - before.left_out,
            "newest_ms": self.newest_ms,
        }


def as_line(came: dict[str, Any]) -> str:
    """What came since the last time, in one line."""
    tables = [
        f"{table}: newest write {shown_utc(newest)}"
        for table, newest in came["newest_ms"].items()
        if newest is not None
    ]
    told = [
        f"{came['entries_per_second']:.1f} entries/s in {amount(came['calls'], 'call')}",
        *([f"{came['refused']} refused"] if came["refused"] else []),
        *([f"{amount(came['left_out'], 'entry', 'entries')} left out as older"] if came["left_out"] else []),
        *(tables or ["nothing was applied yet"]),
    ]
    return f"{shown_utc(came['at_ms'])}  {'; '.join(told)}"


@contextmanager
def telling(ledger: RunLedger, stop: threading.Event, tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Until the block ends, call `tell` once a minute with what came, and set `stop` once the run has ended."""

    def go_on(ended: threading.Event) -> None:
        before, told_s = Sums.of(ledger), steady_s()
        while not ended.wait(LOOK_SECONDS):
            try:
                if ledger.record.state != "running":
                    stop.set()
                if steady_s() - told_s >= TELL_SECONDS:
                    now, told_s = Sums.of(ledger), steady_s()
                    tell(now.since(before))
                    before = now
            except WalferryError as error:
                log.warning("the ledger was not read: %s", error)

    with beside(go_on, "telling"):
        yield

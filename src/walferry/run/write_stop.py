"""The write stop: how long clients could not write."""

from __future__ import annotations

from dataclasses import dataclass

from walferry import clock
from walferry.ledger import RunLedger
from walferry.run.facts import write_stop_facts


@dataclass(frozen=True)
class WriteStop:
    """How long clients cannot write: from the operator's confirmation (or READONLY) to the end of the last check."""

    since_ms: int
    last_edit_ms: int | None
    """write time of the newest edit in the log: clients may have written nothing since then"""
    until_ms: int | None
    """None while it lasts"""

    def seconds(self) -> float:
        """Its length, so far or in total."""
        return round(((self.until_ms or clock.now_ms()) - self.since_ms) / 1000, 1)

    def seconds_since_last_edit(self) -> float | None:
        """Its length counted from the log's last edit."""
        if self.last_edit_ms is None:
            return None
        return round(((self.until_ms or clock.now_ms()) - self.last_edit_ms) / 1000, 1)


def write_stop_of(ledger: RunLedger) -> WriteStop | None:
    """The write stop of a run; None before it."""
    facts = write_stop_facts(ledger)
    if facts is None:
        return None
    checked = [p.finished_ms for p in ledger.phases.all() if p.phase == "check_drain" and p.state == "done"]
    return WriteStop(facts.at_ms, ledger.log.last_edit_ms(), checked[0] if checked else ledger.record.ended_ms)

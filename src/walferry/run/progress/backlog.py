"""The backlog: the WAL files that are not applied yet, and how long applying them will take."""

from __future__ import annotations

from collections.abc import Sequence

from walferry import clock
from walferry.ledger import RecordedFile, Round, RunLedger
from walferry.run.fences import fences_of
from walferry.run.recorded_spec import source_tables

RATE_SECONDS = 300
"""Rates are computed from the rounds that ended within this many seconds."""


def unapplied(ledger: RunLedger, also: Sequence[RecordedFile] = ()) -> list[RecordedFile]:
    """The known WAL files between the fences of an unfinished run that are not yet applied for every table.

    Known are the files that the run has seen, and those in `also`, which takes precedence. None are left after the
    drain.
    """
    run = ledger.record
    if run.state != "running" or not source_tables(run) or ledger.phases.facts("drain") is not None:
        return []
    applied = ledger.log.applied(file.name for file in also)
    known = {file.name: file for file in (*ledger.log.unapplied(), *also)}
    return [file for file in fences_of(ledger).within(known.values()) if file.name not in applied]


def eta_seconds(ledger: RunLedger, backlog_bytes: int) -> int | None:
    """Seconds until the known backlog is applied, at the rate of the latest rounds; None while that is unknown.

    Only a replay or drain has an estimate. It covers the time until the target has caught up, without waiting for a
    person's answer.
    """
    rounds = _recent(ledger)
    busy_ms = sum(made.finished_ms - made.started_ms for made in rounds)
    applied = sum(made.bytes for made in rounds)
    if not backlog_bytes or not applied or busy_ms <= 0:
        return None
    return round(backlog_bytes * busy_ms / applied / 1000)


def edits_per_second(ledger: RunLedger) -> float:
    """Cells applied, or sent, per second since the latest rounds began."""
    rounds = _recent(ledger)
    seconds = (clock.now_ms() - min((made.started_ms for made in rounds), default=0)) / 1000
    return sum(made.cells for made in rounds) / max(1.0, seconds)


def _recent(ledger: RunLedger) -> list[Round]:
    return ledger.rounds.since(clock.now_ms() - RATE_SECONDS * 1000)

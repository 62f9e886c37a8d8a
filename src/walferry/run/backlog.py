"""The backlog: what is not applied yet, and when it will be."""

from __future__ import annotations

from collections.abc import Sequence

from walferry import clock
from walferry.ledger import RunLedger, WalFile
from walferry.run.fences import fences_of

RATE_SECONDS = 300
"""Rates are those of the rounds that ended within this time."""


def unapplied(ledger: RunLedger, also: Sequence[WalFile] = ()) -> list[WalFile]:
    """The WAL files between the fences, known by now, that some table of an unfinished run does not have yet.

    Known are those that the run has seen, and `also` those that somebody else lists; `also` wins where both name a
    file. Nothing is left after the drain. Files outside of the fences are not the run's.
    """
    run = ledger.record
    if run.state != "running" or not run.spec["tables"] or ledger.phases.facts("drain") is not None:
        return []
    applied = ledger.log.applied_files()
    known = {file.name: file for file in (*ledger.log.files(), *also)}
    return [file for file in fences_of(ledger).within(known.values()) if file.name not in applied]


def eta_seconds(ledger: RunLedger) -> int | None:
    """When the known backlog will be applied at the rate of the latest rounds; None while that cannot be told.

    Only a replay or drain has one. It tells when the target has caught up, not when a person will answer.
    """
    waiting = sum(file.length for file in unapplied(ledger))
    now = clock.now_ms()
    rounds = [made for made in ledger.rounds.all() if now - made.finished_ms < RATE_SECONDS * 1000]
    busy_ms = sum(made.finished_ms - made.started_ms for made in rounds)
    applied = sum(made.bytes for made in rounds)
    if not waiting or not applied or busy_ms <= 0:
        return None
    return round(waiting * busy_ms / applied / 1000)

"""How far a run has come: lag, backlog, ETA and the length of the write stop, each in this one place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from walferry.ledger import Round, RunLedger, WalFile
from walferry.run.fences import fences_of
from walferry.run.phases import phases_of

DEFAULT_MAX_LAG = 30
RATE_SECONDS = 300
"""Rates are those of the rounds that ended within this time."""


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


# ------------------------------------------------------------------ lag


@dataclass(frozen=True)
class Lag:
    """How old the target is: `seconds` since the moment up to which everything is applied.

    `seconds` is None while nothing measures it, and `unknown` says why. `longest`: the most so far.
    """

    seconds: float | None
    unknown: str
    longest: float | None


def lag(ledger: RunLedger, oldest_waiting_ms: int | None = None) -> Lag:
    """The lag of a run now, from its rounds.

    A drain of sealed files rests while nothing is sealed, so the time since its last round says nothing: only who
    lists the source's log can tell its lag, and gives the write time of the oldest edit that waits
    (`oldest_waiting_ms`; the present moment when none does).
    """
    run, now = ledger.record, now_ms()
    rounds = ledger.rounds.all()
    longest = max(before for _, before, _ in ages(rounds)) / 1000 if rounds else None
    if run.state != "running":
        return Lag(None, "the run has ended", longest)
    if run.kind == "drain":
        if oldest_waiting_ms is None:
            return Lag(None, "hbase_wal_watch measures the lag of a drain", longest)
        return Lag(round(max(0, now - oldest_waiting_ms) / 1000, 1), "", longest)
    if not any(phase.name == "replay" for phase in phases_of(run.kind)):
        return Lag(None, f"a run of kind {run.kind} follows no log", longest)
    if ledger.phases.facts("drain") is not None:
        return Lag(None, "all is applied up to the end fence", longest)
    if not rounds:
        return Lag(None, "the first replay round has not ended yet", longest)
    return Lag(round((now - rounds[-1].covered_ms) / 1000, 1), "", longest)


def ages(rounds: Sequence[Round]) -> list[tuple[int, int, int]]:
    """Of each round: when it ended, how old the target was just before, and just after. Milliseconds.

    Just before a round ended, the target was as old as the cut of the round before.
    """
    found = []
    covered: int | None = None
    for made in rounds:
        before = made.lag_ms if covered is None else max(made.lag_ms, made.finished_ms - covered)
        covered = made.covered_ms
        found.append((made.finished_ms, before, made.lag_ms))
    return found


def max_lag(ledger: RunLedger) -> int:
    """The largest lag before a cutover that the run's spec allows, in seconds."""
    return int(ledger.record.spec.get("max_lag") or DEFAULT_MAX_LAG)


def caught_up(ledger: RunLedger) -> bool:
    """Whether the target is behind by no more than the spec allows, at this moment: a replay that stops falls back."""
    seconds = lag(ledger).seconds
    return seconds is not None and seconds <= max_lag(ledger)


# ------------------------------------------------------------------ backlog and ETA


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
    now = now_ms()
    rounds = [made for made in ledger.rounds.all() if now - made.finished_ms < RATE_SECONDS * 1000]
    busy_ms = sum(made.finished_ms - made.started_ms for made in rounds)
    applied = sum(made.bytes for made in rounds)
    if not waiting or not applied or busy_ms <= 0:
        return None
    return round(waiting * busy_ms / applied / 1000)


# ------------------------------------------------------------------ the write stop


@dataclass(frozen=True)
class WriteStop:
    """For how long clients cannot write: from the operator's word (or READONLY) to the end of the last check."""

    since_ms: int
    last_edit_ms: int | None
    """write time of the newest edit in the log: clients may have been quiet since then"""
    until_ms: int | None
    """None: they still wait"""

    def seconds(self) -> float:
        """So far, or in all."""
        return round(((self.until_ms or now_ms()) - self.since_ms) / 1000, 1)

    def seconds_since_last_edit(self) -> float | None:
        """The same, counted from the log's last edit."""
        if self.last_edit_ms is None:
            return None
        return round(((self.until_ms or now_ms()) - self.last_edit_ms) / 1000, 1)


def write_stop(ledger: RunLedger) -> WriteStop | None:
    """The write stop of a run; None before it."""
    facts = ledger.phases.facts("write_stop")
    if facts is None or "at_ms" not in facts:
        return None
    checked = [p.finished_ms for p in ledger.phases.all() if p.phase == "check_drain" and p.state == "done"]
    return WriteStop(int(facts["at_ms"]), ledger.log.last_edit_ms(), checked[0] if checked else ledger.record.ended_ms)

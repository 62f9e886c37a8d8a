"""Lag: how old the target is, now and after each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from walferry import clock
from walferry.ledger import Round, RunLedger
from walferry.run.phases import phases_of

DEFAULT_MAX_LAG = 30


@dataclass(frozen=True)
class Lag:
    """How old the target is: `seconds` since the moment up to which everything is applied.

    `seconds` is None while nothing measures it, and `unknown` says why. `longest`: the most so far.
    """

    seconds: float | None
    unknown: str
    longest: float | None


def lag_of(ledger: RunLedger, oldest_waiting_ms: int | None = None) -> Lag:
    """The lag of a run now, from its rounds.

    A drain of sealed files rests while nothing is sealed, so the time since its last round says nothing: only who
    lists the source's log can tell its lag, and gives the write time of the oldest edit that waits
    (`oldest_waiting_ms`; the present moment when none does).
    """
    run, now = ledger.record, clock.now_ms()
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
    seconds = lag_of(ledger).seconds
    return seconds is not None and seconds <= max_lag(ledger)

"""Lag: how far the target is behind the source, now and after each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from walferry import clock
from walferry.ledger import Round, RunLedger
from walferry.run.phases import phases_of
from walferry.run.spec import Spec


@dataclass(frozen=True)
class Lag:
    """How far the target is behind: `seconds` since the moment up to which everything is applied.

    `seconds` is None while nothing measures it, and `unknown` says why. `longest` is the longest so far.
    """

    seconds: float | None
    unknown: str
    longest: float | None


class Visible(BaseModel):
    """What was read of a log that was still being written: its first `end` bytes, the CRC-32 of the entries there, and
    the tables that they had edits of."""

    model_config = ConfigDict(frozen=True)

    end: int
    crc: int
    tables: tuple[str, ...]


class Ahead(BaseModel):
    """How far the target is ahead of what the ledger counts as applied, because open logs are followed."""

    model_config = ConfigDict(frozen=True)

    covered_ms: int = 0
    """the target has everything that was written before this moment; 0: not known"""
    longest_ms: int = 0
    """the longest lag since following began"""
    files: Mapping[str, Visible] = {}
    """open logs, by name, of which something was sent, or is about to be"""

    def covering(self, moment_ms: int, at_ms: int) -> Ahead:
        """The same once everything before a moment is applied, at `at_ms`."""
        before = self.covered_ms or moment_ms
        return self.model_copy(
            update={
                "covered_ms": max(self.covered_ms, moment_ms),
                "longest_ms": max(self.longest_ms, at_ms - before),
            }
        )

    def having(self, files: Mapping[str, Visible]) -> Ahead:
        """The same with these files."""
        return self.model_copy(update={"files": files})


_AHEAD = "ahead of the applied log"


def keep_ahead(ledger: RunLedger, ahead: Ahead) -> None:
    """Keep it in place of the previous one."""
    ledger.notes.keep(_AHEAD, ahead.model_dump())


def ahead_of(ledger: RunLedger) -> Ahead | None:
    """As it was kept; None if open logs were never followed."""
    kept = ledger.notes.get(_AHEAD)
    return None if kept is None else Ahead.model_validate(kept)


def covered_ms(ledger: RunLedger) -> int | None:
    """The moment before which everything is applied, by rounds or from open logs; None before the first round."""
    last, ahead = ledger.rounds.last(), ahead_of(ledger)
    return None if last is None else max(last.covered_ms, ahead.covered_ms if ahead else 0)


def lag_of(ledger: RunLedger, oldest_waiting_ms: int | None = None) -> Lag:
    """The lag of a run now, from its rounds.

    A drain of sealed files is idle while nothing is sealed, so the time since its last round means nothing. Its lag can
    only be measured by listing the source's log: `oldest_waiting_ms` is the write time of the oldest edit that waits,
    or the present moment when none does.
    """
    run, now = ledger.record, clock.now_ms()
    last = ledger.rounds.last()
    longest = ledger.rounds.totals().longest_lag_ms / 1000 if last else None
    ahead = ahead_of(ledger)
    if ahead is not None and ahead.covered_ms:  # rounds alone know nothing of open logs
        longest = ahead.longest_ms / 1000
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
    if last is None:
        return Lag(None, "the first replay round has not ended yet", longest)
    seconds = round((now - max(last.covered_ms, ahead.covered_ms if ahead else 0)) / 1000, 1)
    return Lag(seconds, "", max(longest or 0.0, seconds))


def ages(rounds: Sequence[Round]) -> list[tuple[int, int, int]]:
    """For each round: when it ended, the lag just before that, and the lag just after. Milliseconds.

    Just before a round ended, the target was as old as the previous round's cut.
    """
    found = []
    covered: int | None = None
    for made in rounds:
        before = made.lag_ms if covered is None else max(made.lag_ms, made.finished_ms - covered)
        covered = made.covered_ms
        found.append((made.finished_ms, before, made.lag_ms))
    return found


def max_lag(ledger: RunLedger) -> int:
    """The largest lag at which the run's spec allows a cutover, in seconds."""
    return int(ledger.record.spec.get("max_lag", Spec.model_fields["max_lag"].default))


def caught_up(ledger: RunLedger) -> bool:
    """Whether the lag is at most what the spec allows, at this moment: it grows again when replay stops."""
    seconds = lag_of(ledger).seconds
    return seconds is not None and seconds <= max_lag(ledger)

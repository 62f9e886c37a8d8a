"""Lag: how far the target is behind the source, now and after each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict

from walferry import clock
from walferry.ledger import Round, RunLedger
from walferry.run.notes.watched_replication import unseen, watched
from walferry.run.phases import phases_of
from walferry.run.recorded_spec import options_of


@dataclass(frozen=True)
class Lag:
    """The target has every edit that is older than `seconds`.

    `seconds` is None while nothing measures the lag; `unknown` then says why. `longest` is the longest lag so far.
    """

    seconds: float | None
    unknown: str
    longest: float | None


class TailProgress(BaseModel):
    """How far the open log of a WAL group has been followed, and how long the newest pass took to do it, in ms."""

    model_config = ConfigDict(frozen=True)

    server: str
    covered_ms: int = 0
    """everything written to the log before this moment is applied"""
    read_ms: int = 0
    apply_ms: int = 0
    sending_since_ms: int = 0
    """when sending of the log's edits began; 0: nothing is being sent"""
    shown_after_ms: int | None = None
    """in the newest pass that found edits: how old the oldest edit was when it was read, by the server's clock"""


class Ahead(BaseModel):
    """How far the target is ahead of what the ledger counts as applied, because open logs are followed."""

    model_config = ConfigDict(frozen=True)

    covered_ms: int = 0
    """the target has everything written before this moment; 0: not known"""
    longest_ms: int = 0
    """the longest lag since following began"""
    groups: Mapping[str, TailProgress] = {}
    """how far the open log of each WAL group is followed"""
    fault: str = ""
    """why no open log is followed until the next round"""

    def covering(self, moment_ms: int, at_ms: int) -> Ahead:
        """A copy as of `at_ms`, with everything before `moment_ms` applied."""
        before = self.covered_ms or moment_ms
        return self.model_copy(
            update={
                "covered_ms": max(self.covered_ms, moment_ms),
                "longest_ms": max(self.longest_ms, at_ms - before),
            }
        )

    def having(self, groups: Mapping[str, TailProgress]) -> Ahead:
        """A copy with these groups."""
        return self.model_copy(update={"groups": groups})


_AHEAD = "ahead of the applied log"
RECEIVED_MS = 60_000
"""edits that were received longer ago say nothing of the lag"""


def keep_ahead(ledger: RunLedger, ahead: Ahead) -> None:
    """Keep how far the target is ahead, in place of the previous value."""
    ledger.notes.keep(_AHEAD, ahead.model_dump())


def ahead_of(ledger: RunLedger) -> Ahead | None:
    """The value that `keep_ahead` kept last; None if open logs were never followed."""
    kept = ledger.notes.get(_AHEAD)
    return None if kept is None else Ahead.model_validate(kept)


def covered_ms(ledger: RunLedger) -> int | None:
    """The moment before which everything is applied, by rounds or from open logs; None before the first round."""
    last, ahead = ledger.rounds.last(), ahead_of(ledger)
    return None if last is None else max(last.covered_ms, ahead.covered_ms if ahead else 0)


def lag_of(ledger: RunLedger, oldest_waiting_ms: int | None = None) -> Lag:
    """The lag of a run now, from its rounds.

    A drain of sealed files is idle while nothing is sealed, so the time since its last round says nothing about its
    lag. That lag is measured by listing the source's log: `oldest_waiting_ms` is the write time of the oldest edit that
    waits, or the present moment if no edit waits.
    """
    run, now = ledger.record, clock.now_ms()
    last = ledger.rounds.last()
    longest = ledger.rounds.totals().longest_lag_ms / 1000 if last else None
    ahead = ahead_of(ledger)
    if ahead is not None and ahead.covered_ms:  # rounds do not count what was sent from open logs
        longest = ahead.longest_ms / 1000
    if run.state != "running":
        return Lag(None, "the run has ended", longest)
    if run.kind == "replication":
        return _replicated(ledger)
    if run.kind == "receive":
        return _received(ledger, now)
    if run.kind == "drain":
        if oldest_waiting_ms is None:
            return Lag(None, "hbase_wal_watch measures the lag of a drain", longest)
        return Lag(round(max(0, now - oldest_waiting_ms) / 1000, 1), "", longest)
    if not any(phase.name in ("replay", "stream") for phase in phases_of(run.kind)):
        return Lag(None, f"a run of kind {run.kind} follows no log", longest)
    if ledger.phases.facts("drain") is not None:
        return Lag(None, "all is applied up to the end fence", longest)
    if last is None and run.kind == "stream":
        return Lag(None, "the stream has not read the log yet", longest)
    if last is None:
        return Lag(None, "the first replay round has not ended yet", longest)
    seconds = round((now - max(last.covered_ms, ahead.covered_ms if ahead else 0)) / 1000, 1)
    return Lag(seconds, "", max(longest or 0.0, seconds))


def _received(ledger: RunLedger, now: int) -> Lag:
    """How old the newest edits were when they were applied, of the table that was the farthest behind. The source alone
    knows whether it has more to send."""
    ages = [
        total.at_ms - total.newest_ms
        for total in ledger.received.totals()
        if total.newest_ms is not None and total.at_ms is not None and now - total.at_ms <= RECEIVED_MS
    ]
    if not ages:
        return Lag(None, "no edit came within the last minute", None)
    return Lag(round(max(0, *ages) / 1000, 1), "", None)


def _replicated(ledger: RunLedger) -> Lag:
    """As of the newest look: the age of the oldest edit that HBase has not shipped."""
    now = watched(ledger)
    if now is None:
        return Lag(None, "nobody has looked yet", None)
    if ledger.record.paused or unseen(ledger) is not None or now.overdue_ms < clock.now_ms():
        return Lag(None, f"nobody has looked since {clock.shown_utc(now.looked_ms, '%Y-%m-%d ')}", None)
    if now.oldest_age_ms is None:
        return Lag(None, "how old the oldest edit is that waits, could not be told", None)
    return Lag(round(now.oldest_age_ms / 1000, 1), "", None)


@dataclass(frozen=True)
class LagSplit:
    """The three parts of a lag, in seconds; they add up to `seconds`.

    An edit waits for a pass that lists the log and looks at it (`discovery`), is read, and is applied. Waiting for a
    round counts as discovery.
    """

    server: str
    """host, port and start code"""
    group: str
    seconds: float
    discovery: float
    read: float
    apply: float
    shown_after: float | None
    """how old the oldest edit was, by the server's clock, when the newest pass that found edits read it"""

    def describe(self) -> str:
        """The three parts as a clause."""
        return f"{self.discovery:.1f} s until it is looked at, {self.read:.1f} s reading, {self.apply:.1f} s applying"


def lag_by_group(ledger: RunLedger, lag: Lag) -> list[LagSplit]:
    """The lag of each WAL group whose open log is followed, longest first; [] while the run's `lag` is not measured."""
    ahead, now = ahead_of(ledger) if lag.seconds is not None else None, clock.now_ms()
    groups = {} if ahead is None else ahead.groups
    found = [_of_group(group, one, now) for group, one in groups.items() if one.covered_ms]
    return sorted(found, key=lambda split: (-split.seconds, -split.apply - split.read, split.group))


def lag_split(lag: Lag, groups: Sequence[LagSplit]) -> LagSplit | None:
    """The lag of a run, split by the times measured for the first of its groups; None while the lag is not measured."""
    return None if lag.seconds is None or not groups else _split(groups[0], lag.seconds)


def _of_group(group: str, followed: TailProgress, now: int) -> LagSplit:
    sending = max(0, now - followed.sending_since_ms) if followed.sending_since_ms else 0
    shown = None if followed.shown_after_ms is None else followed.shown_after_ms / 1000
    read, apply = followed.read_ms / 1000, (followed.apply_ms + sending) / 1000
    measured = LagSplit(followed.server, group, 0.0, 0.0, read, apply, shown)
    return _split(measured, max(0, now - followed.covered_ms) / 1000)


def _split(measured: LagSplit, seconds: float) -> LagSplit:
    """A lag of `seconds`, split by the measured times for reading and applying; the rest is discovery."""
    apply = min(seconds, measured.apply)
    read = min(seconds - apply, measured.read)
    return replace(measured, seconds=seconds, discovery=round(seconds - apply - read, 3), read=read, apply=apply)


def ages(rounds: Sequence[Round]) -> list[tuple[int, int, int]]:
    """For each round, in milliseconds: when it ended, the lag just before that, and the lag just after.

    Just before a round ended, the target had everything up to the previous round's cut.
    """
    found = []
    covered: int | None = None
    for made in rounds:
        before = made.lag_ms if covered is None else max(made.lag_ms, made.finished_ms - covered)
        covered = made.covered_ms
        found.append((made.finished_ms, before, made.lag_ms))
    return found


def caught_up(ledger: RunLedger) -> bool:
    """Whether the lag is within the spec's limit now. The lag grows again when replay stops."""
    seconds = lag_of(ledger).seconds
    return seconds is not None and seconds <= options_of(ledger.record).max_lag

"""The write stop: how long clients could not write, and how long it is expected to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from walferry import clock
from walferry.ledger import PhaseRecord, RunLedger
from walferry.run.facts import opened_ms, write_stop_facts
from walferry.run.notes.last_comparison import counts_as_equal
from walferry.run.notes.newest import keeps_closed
from walferry.run.phases import phases_of
from walferry.run.recorded_spec import source_tables


@dataclass(frozen=True)
class WriteStop:
    """How long clients cannot write: from the operator's confirmation (or READONLY) until the target is open to them.

    The phase `open_target` opens the target; if it declines, the end of the last check does.
    """

    since_ms: int
    last_edit_ms: int | None
    """write time of the newest edit in the log: clients may have stopped writing then already"""
    until_ms: int | None
    """end of the write stop; None while it lasts"""

    def seconds(self) -> float:
        """Length of the write stop, so far or in total."""
        return round(((self.until_ms or clock.now_ms()) - self.since_ms) / 1000, 1)

    def seconds_since_last_edit(self) -> float | None:
        """Length of the write stop, counted from the log's last edit."""
        if self.last_edit_ms is None:
            return None
        return round(((self.until_ms or clock.now_ms()) - self.last_edit_ms) / 1000, 1)


def write_stop_of(ledger: RunLedger) -> WriteStop | None:
    """The write stop of a run; None before it."""
    facts = write_stop_facts(ledger)
    if facts is None:
        return None
    opened = opened_ms(ledger)
    if opened is not None:
        return WriteStop(facts.at_ms, ledger.log.last_edit_ms(), opened)
    checked = [p.finished_ms for p in ledger.phases.all() if p.phase == "check_drain" and p.state == "done"]
    return WriteStop(facts.at_ms, ledger.log.last_edit_ms(), checked[0] if checked else ledger.record.ended_ms)


@dataclass(frozen=True)
class ExpectedStop:
    """How long the write stop will take, from the times of similar steps in this run; None while that is unknown."""

    seconds: float | None
    least: float | None
    most: float | None
    unknown: str
    """why there is no estimate"""

    def describe(self) -> str:
        """The estimate as a clause."""
        if self.seconds is None:
            return f"unknown: {self.unknown}"
        return (
            f"about {self.seconds:.0f} s ({self.least:.0f} to {self.most:.0f} s), estimated from its steps in this run"
        )


_COMPARING = "comparing took"
_ROUNDS = 10
_STEPS = 3
"""phases of the write stop besides the comparisons: end_fence, drain, and open_target or check_drain"""


def expected_write_stop(ledger: RunLedger, rereads: Sequence[str] = ()) -> ExpectedStop:
    """Estimate the write stop from similar steps of this run.

    The estimate adds up the start fence, a round and the times between two phases. If a table has no clean comparison
    yet, it adds the copy's gate and the comparisons: one after the other, or all at once for the lower bound.

    `rereads`: clean tables whose rows are read again during the stop; this takes at most as long as their comparison.
    """
    phases = [phase for phase in ledger.phases.all() if phase.state == "done" and phase.finished_ms is not None]
    fences, gates = (_seconds(phases, name) for name in ("fence", "check_copy"))
    rounds = [(made.finished_ms - made.started_ms) / 1000 for made in ledger.rounds.latest(_ROUNDS)]
    compared = {table: facts["seconds"] for table, (facts, _) in ledger.notes.named(_COMPARING).items()}
    tables = source_tables(ledger.record)
    for known, what in ((fences and gates, "the copy is not checked yet"), (rounds, "no round has ended yet")):
        if not known:
            return ExpectedStop(None, None, None, what)
    at_ms = clock.now_ms()
    tables = [t for t in tables if not counts_as_equal(ledger, t) or keeps_closed(ledger, t, at_ms)]
    if missing := [table for table in tables if table not in compared]:
        verify = f"`walferry verify {ledger.record.name}` measures it"
        return ExpectedStop(None, None, None, f"{missing[0]} has not been compared in this run; {verify}")
    again = sum(compared.get(table, 0.0) for table in rereads if table not in tables)
    between = _between(phases) or [0.0]
    each = [compared[table] for table in tables]
    steps = _STEPS + len(tables)
    fixed = fences[-1] + (gates[-1] if tables else 0.0)
    return ExpectedStop(
        round(fixed + median(rounds) + sum(each) + steps * median(between), 1),
        round(fixed + min(rounds) + max(each, default=0.0) + _STEPS * min(between), 1),
        round(fixed + max(rounds) + sum(each) + steps * max(between) + again, 1),
        "",
    )


def note_comparing(ledger: RunLedger, table: str, seconds: float) -> None:
    """Keep how long it took to compare both sides of a table, without the time to explain rows that differ."""
    ledger.notes.keep(_COMPARING, {"seconds": round(seconds, 3)}, table)


def comparing_seconds(ledger: RunLedger, table: str) -> float | None:
    """How long the last comparison of a table took; None if the table was not compared in this run."""
    kept = ledger.notes.get(_COMPARING, table)
    return None if kept is None else float(kept["seconds"])


def _seconds(phases: Sequence[PhaseRecord], name: str) -> list[float]:
    return [
        (phase.finished_ms - phase.started_ms) / 1000 for phase in phases if phase.phase == name and phase.finished_ms
    ]


def _between(phases: Sequence[PhaseRecord]) -> list[float]:
    """Seconds from the end of each phase to the start of the next one, for the phases before the replay."""
    names = [phase.name for phase in phases_of("migration")]
    alone = sorted((p for p in phases if p.phase in names[: names.index("replay")]), key=lambda p: p.started_ms)
    return [
        (later.started_ms - earlier.finished_ms) / 1000
        for earlier, later in pairwise(alone)
        if earlier.finished_ms is not None and later.started_ms >= earlier.finished_ms
    ]

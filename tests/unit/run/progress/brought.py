"""Runs that are brought to a state by what the ledger says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unit.migration.filled_ledger import FILE, GROUP, compared
from unit.migration.pair_ledger import differs, one_pass
from unit.run.progress.received_ledger import receive
from walferry import clock
from walferry.errors import TransientError
from walferry.ledger import (
    Difference,
    PhaseRecord,
    QuarantineItem,
    RangeComparison,
    Round,
    RunLedger,
    SeenFile,
)
from walferry.ledger.phases import Phases
from walferry.run import heartbeat
from walferry.run.heartbeat import NOTE
from walferry.run.notes.failing import FEW, Attempts, Work
from walferry.run.notes.kept_moments import CopiedEnds, note_ends
from walferry.run.phases import phases_of
from walferry.run.progress.state import state_of
from walferry.run.progress.states import State, StateName

TABLE = "shop:orders"
UP_TO_COPY = ("plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy")
NOT_IN_LOG = Difference(TABLE, b"k", "not-in-log", "no WAL holds it", "1f")


def finish(run: RunLedger, *phases: str) -> None:
    by_table = {phase.name for phase in phases_of(run.record.kind) if phase.by_table}
    for phase in phases:
        subject = TABLE if phase in by_table else ""
        run.phases.start(phase, subject)
        run.phases.finish(phase, {"at_ms": clock.now_ms(), "how": "confirm"}, subject)


def work_on(run: RunLedger, phase: str, subject: str = "") -> None:
    """Let a phase be at work, with a fresh sign of life."""
    run.phases.start(phase, subject)
    run.notes.keep(NOTE, {}, f"{phase} {subject}".strip())


def fail(run: RunLedger, phase: str, error: str) -> None:
    run.phases.start(phase)
    run.phases.fail(phase, error)


def end_round(run: RunLedger, lag_seconds: float) -> None:
    now = clock.now_ms()
    number = len(run.rounds.all()) + 1
    run.rounds.record(Round(number, now - 1_000, now, 1, 1_000, 3, 7, int(lag_seconds * 1000), 0))


def follow(run: RunLedger, lag_seconds: float) -> None:
    """Up to the replay, which is at work, `lag_seconds` behind."""
    finish(run, *UP_TO_COPY)
    work_on(run, "replay")
    end_round(run, lag_seconds)


def be_exposed(run: RunLedger) -> None:
    """A run of kind `keep` whose copies are five minutes old."""
    finish(run, "plan", "protect")
    now = clock.now_ms()
    note_ends(run, CopiedEnds(covered_ms=now - 300_000, at_ms=now, files=1, bytes=1))
    work_on(run, "keep")


def lack_a_file(run: RunLedger) -> None:
    """A run that follows, and of whose log a file is gone."""
    follow(run, 1)
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 1_000, sealed=True)])
    run.log.mark_missing(FILE)


def differ(run: RunLedger) -> None:
    """A run whose last check has found a row that differs for a known reason."""
    finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain", "compare")
    region = RangeComparison(TABLE, "r1", b"", b"", 1, 1, "aa", 1, 1, "bb", {})
    of_phase = compared(TABLE, 1, purpose="phase", phase_attempt=1, drain_attempt=1)
    run.comparisons.record(of_phase, [region], [NOT_IN_LOG])
    fail(run, "check_drain", "DecisionNeededError: source and target differ by rows that the log does not hold")


def be_stuck(run: RunLedger, work: Work) -> None:
    """A run that follows, and whose log could not be kept, or not be cut, several times."""
    follow(run, 1)
    attempts = Attempts(run, work)
    for _ in range(FEW):
        attempts.failed(TransientError("the folder does not answer"))


def lack_a_ticket(run: RunLedger) -> None:
    """A run whose process could not renew its Kerberos ticket."""
    work_on(run, "plan")
    run.notes.keep(NOTE, {"tickets": {"ferry@OLD": "the ticket of ferry@OLD ends at 02:00"}}, "plan")


def brought_to(run: RunLedger, name: StateName) -> State:
    """The state of the run after it was brought to the state of that name."""
    match name:
        case "not started":
            pass
        case "working":
            finish(run, "plan", "protect", "fence", "snapshot")
            work_on(run, "copy", TABLE)
        case "between phases":
            finish(run, "plan")
        case "catching up":
            follow(run, 300)
        case "following":
            follow(run, 1)
        case "waiting for approval":
            follow(run, 1)
            work_on(run, "approve")
        case "waiting for the write stop":
            follow(run, 1)
            finish(run, "approve")
            work_on(run, "write_stop")
        case "waiting for a decision":
            differ(run)
        case "draining":
            finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence")
            work_on(run, "drain")
        case "comparing":
            finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain")
            work_on(run, "compare", TABLE)
        case "paused":
            follow(run, 1)
            run.whole.set_paused(run.run_id, True, "kim")
        case "held":
            follow(run, 1)
            run.quarantine.put([QuarantineItem(FILE, 5, 7, TABLE, "r1", 4, "damaged cell", b"\x00")])
        case "gate shut":
            finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain", "compare")
            fail(run, "check_drain", "GateShutError: 3 edits came after writes were declared stopped")
        case "ticket ending":
            lack_a_ticket(run)
        case "stuck":
            be_stuck(run, "keeping")
        case "gap":
            lack_a_file(run)
        case "failed":
            finish(run, "plan")
            fail(run, "protect", "UsageError: replication is off")
        case "interrupted":
            finish(run, "plan")
            run.phases.start("protect")  # and nobody works on it
        case "exposed":
            be_exposed(run)
        case "differing":
            finish(run, "pass")
            one_pass(run, differs(b"a"))
        case "copying" | "receiving" | "idle" | "refusing" | "no receiver":
            receive(run, name)
        case "done" | "aborted":
            run.end(name, "kim", "because")
    return state_of(run)


def after_reading_phases(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> list[None]:
    """Let `change` happen once, just after phases were read for the first time. Returns one item for each reading, also
    of those to come."""
    read, readings = Phases.all, list[None]()

    def read_and_change(phases: Phases) -> list[PhaseRecord]:
        found = read(phases)
        readings.append(None)
        if len(readings) == 1:
            change()
        return found

    monkeypatch.setattr(Phases, "all", read_and_change)
    return readings


def end_with_process(run: RunLedger, phase: str, monkeypatch: pytest.MonkeyPatch, error: str = "") -> None:
    """The phase ends, and then its process: whoever still reads its note finds it gone."""
    if error:
        run.phases.fail(phase, error)
    else:
        run.phases.finish(phase, {})
    run.notes.drop(NOTE, phase)
    monkeypatch.setattr(heartbeat, "gone", lambda process: True)

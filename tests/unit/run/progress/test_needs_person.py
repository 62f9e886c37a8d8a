"""A run that needs a person says whom, for what, and how to go on."""

from __future__ import annotations

import pytest

from unit.migration.filled_ledger import FILE, GROUP, SPEC, compared
from unit.run.progress.brought import (
    NOT_IN_LOG,
    TABLE,
    UP_TO_COPY,
    be_stuck,
    brought_to,
    end_round,
    fail,
    finish,
    follow,
    work_on,
)
from walferry import clock
from walferry.ledger import (
    Ledger,
    LogPosition,
    NumberGap,
    QuarantineItem,
    RangeComparison,
    RunLedger,
    SeenFile,
    notes,
)
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.run.notes.failing import Attempts
from walferry.run.notes.shut_gate import note_shut_gate, shut_gate_noted
from walferry.run.progress.missing_numbers import faults
from walferry.run.progress.state import state_of
from walferry.run.progress.status import status, status_line


@pytest.mark.parametrize(
    ("owner", "approve", "stop"),
    [
        ("cli kim", "terminal", "terminal"),
        ("airflow manual__1", "task `approve_cutover`", "task `confirm_writes_stopped`"),
    ],
)
def test_a_question_says_whom_it_waits_for_and_for_which_answer(
    book: Ledger, owner: str, approve: str, stop: str
) -> None:
    run = book.of(book.open_run("move", owner, SPEC, "kim").run_id)
    follow(run, 1)  # in Airflow no phase is recorded while the question waits
    asked = state_of(run)
    assert (asked.name, asked.waits_for) == ("waiting for approval", "approval")
    assert approve in asked.whom
    finish(run, "approve")
    asked = state_of(run)
    assert (asked.name, asked.waits_for) == ("waiting for the write stop", "write stop")
    assert stop in asked.next_step
    assert asked.next_step.startswith("stop the writers")


@pytest.mark.usefixtures("still")
def test_while_a_question_waits_lag_and_backlog_are_those_of_the_replay(run: RunLedger) -> None:
    follow(run, 7)
    work_on(run, "approve")
    run.log.set_fence("start", [LogPosition(GROUP, FILE, 10, 0)])
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 5_000, sealed=True)])
    facts = status(run)
    assert facts.backlog_bytes == 5_000
    assert facts.lag_seconds == pytest.approx(7, abs=2)
    assert "replay goes on: lag 7 s" in facts.cause


def test_a_backlog_names_the_logs_whose_length_nobody_knows_yet(run: RunLedger) -> None:
    run.log.set_fence("start", [LogPosition(GROUP, FILE, 10, 0)])
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 0, sealed=False)])
    facts = status(run)
    assert (facts.backlog_bytes, facts.open_logs) == (0, 1)
    assert "Backlog: 0.0MB and 1 open log; " in status_line(facts)


def test_a_table_that_began_anew_leaves_but_one_way_on(run: RunLedger) -> None:
    follow(run, 1)
    run.quarantine.put([QuarantineItem(FILE, 5, 7, TABLE, ANY_REGION, 4, "restored", b"", RefusalKind.LINEAGE)])
    assert state_of(run).next_step.startswith("`walferry abort move --reason …`")
    finish(run, "open_target")
    assert "the target, which is open to clients, stays as it is" in state_of(run).next_step


def test_with_readonly_nobody_is_asked_whether_writes_have_stopped(book: Ledger) -> None:
    run = book.of(book.open_run("move", "cli kim", SPEC | {"write_stop": "readonly"}, "kim").run_id)
    follow(run, 1)
    finish(run, "approve")
    assert (state_of(run).name, state_of(run).waits_for) == ("working", None)


def test_a_no_is_no_failure(run: RunLedger) -> None:
    follow(run, 1)
    fail(run, "approve", "NotApprovedError: kim answered no")
    assert state_of(run).name == "waiting for approval"


def lose_numbers(run: RunLedger, *, only_count: bool = False) -> None:
    gap = NumberGap(TABLE, "abc", 11, 14, "file.1", "file.2", 1)
    run.log.set_ranges([], None, run.numbers.change([], [gap], [], only_count=only_count))


MISSING = f"region abc of {TABLE} has no entries 11 to 14 (4) between the WAL files file.1 and file.2"


@pytest.mark.parametrize("done", [(), ("approve",)], ids=["before the approval", "before the write stop"])
def test_while_numbers_are_missing_the_gate_is_shut_and_nobody_is_asked(run: RunLedger, done: tuple[str, ...]) -> None:
    follow(run, 1)
    finish(run, *done)
    asked = state_of(run).name
    lose_numbers(run)
    shut = state_of(run)
    assert (shut.name, shut.waits_for, shut.whom) == ("gate shut", "decision", "an operator, in the shell")
    assert shut.cause.startswith(f"the gate is shut, replay goes on: {MISSING}. Known causes: a WAL was deleted")
    assert (
        f"if no WAL was lost: `walferry accept-numbers move --table {TABLE} --reason …`; otherwise `walferry abort"
        in (shut.next_step)
    )
    facts = status(run)
    assert (facts.state, facts.cause, facts.next_step) == (shut.name, shut.cause, shut.next_step)
    assert "State: gate shut; " in status_line(facts)
    run.numbers.accept(TABLE, "skips the log", "kim")
    assert state_of(run).name == asked


def test_numbers_that_are_only_counted_shut_nothing_and_are_shown(run: RunLedger) -> None:
    follow(run, 1)
    assert status(run).counted_numbers == ()
    lose_numbers(run, only_count=True)
    assert state_of(run).name == "waiting for approval"
    (row,) = status(run).counted_numbers
    assert (row.table, row.places, row.numbers, row.accepted_by) == (TABLE, 1, 4, None)


def test_a_last_check_that_failed_for_missing_numbers_says_how_to_go_on(run: RunLedger) -> None:
    finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain", "compare")
    lose_numbers(run)
    fail(run, "check_drain", f"GateShutError: the gate is shut: {MISSING}")
    state = state_of(run)
    assert state.name == "gate shut"
    assert f"`walferry accept-numbers move --table {TABLE} --reason …`" in state.next_step
    assert state.next_step.endswith("then `walferry resume move`")


# ---- failures


def test_a_check_that_failed_is_no_running_run(run: RunLedger) -> None:
    """A run whose check_drain failed was shown as running."""
    state = brought_to(run, "gate shut")
    assert "3 edits came after" in state.cause
    assert state.next_step.endswith("`walferry resume move`")


def test_sides_that_differ_shut_the_gate_and_keep_clients_out(run: RunLedger) -> None:
    finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain", "compare")
    run.phases.reopen("compare", TABLE)  # as check_drain does before it fails
    fail(run, "check_drain", "SidesDifferError: source and target differ")
    state = state_of(run)
    assert (state.name, state.cause) == ("gate shut", "check_drain: source and target differ"), "no class of an error"
    assert (state.error, state.error_class) == ("source and target differ", "SidesDifferError")
    assert state.next_step.startswith("do not let clients in; `walferry report move` shows the rows")
    assert "`walferry repair move` makes them equal, or `walferry withdraw move` lets the writers" in state.next_step


ONLY_BEFORE = ("do not let clients in", "drop the target", "withdraw", "start over", "abort", "makes them equal")
"""advice that is wrong once clients use the target"""


def open_to_clients(run: RunLedger, *done: str) -> None:
    """Up to the open target, and what follows it."""
    finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain", "open_target", *done)


def test_once_the_target_is_open_rows_without_an_explanation_have_a_way_on(run: RunLedger) -> None:
    """Hole: `do not let clients in` to an operator whose clients were in, and a repair that is refused then."""
    open_to_clients(run, "compare")
    fail(run, "check_drain", "SidesDifferError: source and target differ")
    step = state_of(run).next_step
    assert step.startswith("the target has been open to clients since ")
    assert "makes rows equal that no client has written to and that need no compaction" in step
    assert "`walferry accept move --table TABLE --row ROW --reason …` leaves a row as it is" in step
    assert step.endswith("then `walferry resume move`")
    assert not [text for text in ONLY_BEFORE if text in step]


def test_once_the_target_is_open_rows_with_a_reason_have_a_way_on(run: RunLedger) -> None:
    open_to_clients(run, "compare")
    region = RangeComparison(TABLE, "r1", b"", b"", 1, 1, "aa", 1, 1, "bb", {})
    of_phase = compared(TABLE, 1, purpose="phase", phase_attempt=1, drain_attempt=1)
    run.comparisons.record(of_phase, [region], [NOT_IN_LOG])
    fail(run, "check_drain", "DecisionNeededError: source and target differ by rows that the log does not hold")
    state = state_of(run)
    assert state.name == "waiting for a decision"
    assert "`walferry accept move --table shop:orders --all --reason …` leaves them as they are" in state.next_step
    assert not [text for text in ONLY_BEFORE if text in state.next_step]


def test_once_the_target_is_open_what_the_log_lacks_is_no_reason_to_start_over(run: RunLedger) -> None:
    open_to_clients(run, "compare")
    lose_numbers(run)
    fail(run, "check_drain", f"GateShutError: the gate is shut: {MISSING}")
    told = [state_of(run).next_step, *faults(run)]
    assert all(f"`walferry accept-numbers move --table {TABLE} --reason …`" in text for text in told)
    run.phases.start("drain")  # again, for late edits
    run.phases.fail("drain", "GapError: WAL file x is missing; if it is lost, abort this run and start over")
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 1_000, sealed=True)])
    run.log.mark_missing(FILE)
    state = state_of(run)
    assert state.name == "gap"
    for text in (*told, state.cause, state.next_step):
        assert not [one for one in ONLY_BEFORE if one in text], text


def test_a_failure_that_somebody_works_past_is_over(run: RunLedger) -> None:
    brought_to(run, "gate shut")
    work_on(run, "drain")
    assert state_of(run).name == "draining"


def test_a_gate_that_shuts_at_the_approval_is_told_although_replay_goes_on(book: Ledger) -> None:
    run = book.of(book.open_run("move", "airflow manual__1", SPEC, "kim").run_id)
    follow(run, 1)
    fail(run, "approve", "GateShutError: the gate is shut: the lag is above 30 s")
    state = state_of(run)
    assert state.name == "gate shut"
    assert "clear the task `how_to_stop_writes`" in state.next_step


def test_one_table_that_failed_is_told_although_another_goes_on(book: Ledger) -> None:
    two = SPEC | {"tables": [{"source": table, "target": table} for table in ("a", "b")]}
    run = book.of(book.open_run("move", "airflow manual__1", two, "kim").run_id)
    finish(run, "plan", "protect", "fence")
    run.phases.start("snapshot", "a")
    run.phases.fail("snapshot", "TransientError: no", "a")
    work_on(run, "snapshot", "b")
    state = state_of(run)
    assert (state.name, state.phase) == ("failed", "snapshot a")


def test_a_replay_that_met_a_gap_is_final(run: RunLedger) -> None:
    finish(run, *UP_TO_COPY)
    fail(run, "replay", "GapError: WAL file x is missing")
    assert state_of(run).name == "gap"
    assert "abort" in state_of(run).next_step


def test_a_gate_that_nobody_asks_any_more_is_not_shown_as_shut_for_ever(
    run: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: `walferry ready` found it shut while a person was asked for the approval; nobody looked again, the cause
    went, and the state still hid the question."""
    follow(run, 1)
    began = clock.now_ms()

    def at(seconds: int) -> None:
        monkeypatch.setattr(clock, "now_ms", lambda: began + seconds * 1000)
        monkeypatch.setattr(notes, "now_ms", clock.now_ms)

    for seconds in range(0, 1_200, 15):  # as a sensor asks
        at(seconds)
        note_shut_gate(run, ["family f is only at the source"])
        assert shut_gate_noted(run)
    for seconds, name in ((1_700, "gate shut"), (1_800, "waiting for approval")):
        at(seconds)
        work_on(run, "replay")
        end_round(run, 1)
        assert state_of(run).name == name


def test_a_log_that_cannot_be_kept_nor_cut_is_told_in_place_of_the_question_until_it_can(run: RunLedger) -> None:
    """Hole: the state only asked for the approval."""
    be_stuck(run, "keeping")
    be_stuck(run, "cut")
    work_on(run, "approve")
    state = state_of(run)
    assert (state.name, state.waits_for) == ("stuck", None)
    for said in ("keeping the source's log has failed since", "cutting the source's log has failed since"):
        assert said in state.cause
    assert "the folder does not answer" in state.cause
    assert "before the source deletes logs without a copy (`walferry status move` tells when)" in state.next_step
    run.whole.set_paused(run.run_id, True, "kim")
    assert "cutting" not in state_of(run).cause, "a paused run cuts nothing"
    Attempts(run, "keeping").succeeded()
    assert state_of(run).name == "paused"
    run.whole.set_paused(run.run_id, False, "kim")
    Attempts(run, "cut").succeeded()
    assert state_of(run).name == "waiting for approval"


def test_who_presses_control_c_interrupted_the_run(run: RunLedger) -> None:
    finish(run, "plan")
    fail(run, "protect", "KeyboardInterrupt: ")
    state = state_of(run)
    assert (state.name, state.next_step) == ("interrupted", "`walferry resume move`")

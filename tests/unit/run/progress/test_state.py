"""Each state that a run can be in has a name, a colour, a cause and a next step, from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from unit.migration.filled_ledger import CLUSTER, FILE, GROUP, SPEC, compared
from unit.migration.pair_ledger import differs, one_pass
from walferry import clock
from walferry.ledger import (
    Difference,
    Ledger,
    LogPosition,
    NumberGap,
    QuarantineItem,
    RangeComparison,
    Round,
    RunLedger,
    SeenFile,
    notes,
)
from walferry.ledger.rows import RunKind
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.run import heartbeat
from walferry.run.heartbeat import NOTE, beating, note_submitted
from walferry.run.notes.shut_gate import note_shut_gate, shut_gate_noted
from walferry.run.phases import phases_of
from walferry.run.progress.lag import lag_of
from walferry.run.progress.missing_numbers import faults
from walferry.run.progress.state import STATES, State, StateName, state_of
from walferry.run.progress.status import status, status_line

TABLE = "shop:orders"
UP_TO_COPY = ("plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy")


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger


@pytest.fixture
def run(book: Ledger) -> RunLedger:
    """A run from the shell."""
    return book.of(book.open_run("move", "cli kim", SPEC, "kim").run_id)


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


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so that a lag is the same when it is looked at twice on a slow machine."""
    now = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now)


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
            finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain", "compare")
            region = RangeComparison(TABLE, "r1", b"", b"", 1, 1, "aa", 1, 1, "bb", {})
            of_phase = compared(TABLE, 1, purpose="phase", phase_attempt=1, drain_attempt=1)
            run.comparisons.record(of_phase, [region], [NOT_IN_LOG])
            fail(run, "check_drain", "DecisionNeededError: source and target differ by rows that the log does not hold")
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
        case "gap":
            follow(run, 1)
            run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 1_000, sealed=True)])
            run.log.mark_missing(FILE)
        case "failed":
            finish(run, "plan")
            fail(run, "protect", "UsageError: replication is off")
        case "interrupted":
            finish(run, "plan")
            run.phases.start("protect")  # and nobody works on it
        case "differing":
            finish(run, "pass")
            one_pass(run, differs(b"a"))
        case "done" | "aborted":
            run.end(name, "kim", "because")
    return state_of(run)


def test_rows_that_wait_for_accept_wait_for_a_person_by_the_command_that_decides(run: RunLedger) -> None:
    state = brought_to(run, "waiting for a decision")
    assert (state.colour, state.waits_for, state.whom) == ("amber", "decision", "an operator, in the shell")
    assert "`walferry accept move --table shop:orders --all --reason …`" in state.next_step
    assert "1 row of shop:orders differs and waits for a decision" in state.cause
    facts = status(run)
    assert (facts["waits_for"], facts["whom"]) == ("decision", "an operator, in the shell")
    run.comparisons.record(compared(TABLE), [RangeComparison(TABLE, "r1", b"", b"", 1, 1, "aa", 1, 1, "aa", {})], [])
    assert "1 row of shop:orders differs and waits for a decision" in state_of(run).cause, (
        "a verify by hand changes nothing for the gate"
    )
    run.comparisons.accept([NOT_IN_LOG], "a cache", "kim")
    state = state_of(run)
    assert (state.name, state.next_step) == ("waiting for a decision", "`walferry resume move`")
    assert "are accepted; the last check has not been repeated" in state.cause
    work_on(run, "check_drain")
    assert state_of(run).name == "comparing"


def test_a_run_that_is_done_names_rows_that_differ_for_a_known_cause(run: RunLedger) -> None:
    finish(run, *UP_TO_COPY, "approve", "write_stop", "replay", "end_fence", "drain", "compare")
    attempts = {"purpose": "phase", "phase_attempt": 1, "drain_attempt": 1}
    run.comparisons.record(compared(TABLE, 2, **attempts), [], [])
    run.end("done", "kim", "cut over; nothing unexplained")
    state = state_of(run)
    assert (state.name, state.colour) == ("done", "green")
    assert state.next_step.startswith("read `walferry report move`: 2 rows differ, for the reasons")


STANDBY: set[StateName] = {"following"}
"""states of a run that nobody cuts over"""


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("name", get_args(StateName))
def test_each_state_is_told_with_its_colour_cause_and_next_step(book: Ledger, name: StateName) -> None:
    kind: RunKind = "pair" if name == "differing" else "standby" if name in STANDBY else "migration"
    run = book.of(book.open_run("move", "cli kim", SPEC, "kim", kind).run_id)
    state = brought_to(run, name)
    assert (state.name, state.colour) == (name, STATES[name].colour)
    assert state.cause
    assert state.next_step
    assert "NAME" not in state.next_step  # the run's own
    facts = status(run)
    assert (facts["state"], facts["colour"], facts["cause"], facts["next_step"]) == (
        name, state.colour, state.cause, state.next_step,
    )  # fmt: skip
    assert f"State: {name}; " in status_line(facts)


def test_a_pair_follows_while_its_sides_are_equal_and_says_how_to_repeat_a_pass_that_failed(book: Ledger) -> None:
    run = book.of(book.open_run("shop", "pair", SPEC, "kim", "pair").run_id)
    finish(run, "pass")
    one_pass(run)
    state = state_of(run)
    assert (state.name, state.cause, state.next_step) == ("following", "pass 1: both sides are equal", "none")
    one_pass(run, differs(b"a"), differs(b"w", state="under way"))
    cause = "pass 2: 1 row differs; 1 more were under way each time that they were read"
    assert (state_of(run).name, state_of(run).cause) == ("differing", cause)
    fail(run, "pass", "TransientError: the NameNode does not answer")
    state = state_of(run)
    assert state.name == "failed"
    assert "`walferry verify --pair SPEC`" in state.next_step
    work_on(run, "pass")
    assert state_of(run).name == "working"


def test_every_state_has_its_kind() -> None:
    assert tuple(STATES) == get_args(StateName)


def test_the_docs_table_of_states_is_the_codes() -> None:
    lines = (Path(__file__).parents[4] / "docs" / "board.md").read_text(encoding="utf-8").splitlines()
    rows = [f"| {name} | {kind.colour} | {kind.cause} | {kind.next_step} |" for name, kind in STATES.items()]
    first = lines.index("| state | colour | cause | next step |") + 2
    assert lines[first : lines.index("", first)] == rows


# ---- a person is waited for


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
    assert facts["backlog_bytes"] == 5_000
    assert facts["lag_seconds"] == pytest.approx(7, abs=2)
    assert "replay goes on: lag 7 s" in facts["cause"]


def test_a_backlog_names_the_logs_whose_length_nobody_knows_yet(run: RunLedger) -> None:
    run.log.set_fence("start", [LogPosition(GROUP, FILE, 10, 0)])
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 0, sealed=False)])
    facts = status(run)
    assert (facts["backlog_bytes"], facts["open_logs"]) == (0, 1)
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
    assert (facts["state"], facts["cause"], facts["next_step"]) == (shut.name, shut.cause, shut.next_step)
    assert "State: gate shut; " in status_line(facts)
    run.numbers.accept(TABLE, "skips the log", "kim")
    assert state_of(run).name == asked


def test_numbers_that_are_only_counted_shut_nothing_and_are_shown(run: RunLedger) -> None:
    follow(run, 1)
    assert status(run)["counted_numbers"] == []
    lose_numbers(run, only_count=True)
    assert state_of(run).name == "waiting for approval"
    (row,) = status(run)["counted_numbers"]
    assert (row["table"], row["places"], row["numbers"], row["accepted_by"]) == (TABLE, 1, 4, None)


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
    assert "makes those equal that no client has written to and that need no compaction" in step
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


def test_who_presses_control_c_interrupted_the_run(run: RunLedger) -> None:
    finish(run, "plan")
    fail(run, "protect", "KeyboardInterrupt: ")
    state = state_of(run)
    assert (state.name, state.next_step) == ("interrupted", "`walferry resume move`")


# ---- signs of life


def test_a_process_that_is_gone_shows_within_seconds(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9: the phase stays recorded as running, its note is renewed no more."""
    follow(run, 1)
    assert state_of(run).name == "waiting for approval"
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0)
    state = state_of(run)
    assert (state.name, state.next_step) == ("interrupted", "`walferry resume move`")


def test_a_phase_gives_signs_of_life_until_it_ends(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    with beating(run, "plan", "kim"):
        first = run.notes.named(NOTE)["plan"][1]
        while run.notes.named(NOTE)["plan"][1] == first:
            pass
    assert run.notes.named(NOTE) == {}


def test_a_shell_between_two_phases_is_at_work(run: RunLedger) -> None:
    finish(run, "plan")
    assert state_of(run).name == "between phases"
    run.notes.keep(NOTE, {}, "")
    assert state_of(run).name == "working"


@pytest.mark.parametrize("ended", ["killed", "failed", "gap"])
def test_a_command_that_was_resumed_is_at_work_until_it_repeats_the_phase(
    run: RunLedger, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(run, "plan")
    run.phases.start("protect")
    if ended != "killed":
        run.phases.fail("protect", "GapError: a WAL" if ended == "gap" else "TransientError: no answer")
    before = state_of(run)
    now = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now + 1000)
    with beating(run, "", "kim"):
        state = state_of(run)
    assert before.next_step.endswith("`walferry resume move`") or before.name == "gap"
    assert (state.name, state.next_step) == ("working", "wait")
    assert "protect" in state.cause


@pytest.mark.parametrize("lives", [True, False])
def test_a_command_that_ended_before_its_first_phase_is_interrupted(
    run: RunLedger, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert state_of(run).name == "not started"
    monkeypatch.setattr("walferry.run.progress.state.BETWEEN_SECONDS", -1)
    if lives:
        run.notes.keep(NOTE, {}, "")
    state = state_of(run)
    assert (state.name == "not started") == lives
    assert ("`walferry resume move`" in state.next_step) != lives


@pytest.mark.parametrize("before", ["nothing", "failed", "killed"])
def test_while_spark_starts_for_a_phase_the_run_is_at_work(
    run: RunLedger, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(run, "plan", "protect", "fence", "snapshot")
    if before != "nothing":
        run.phases.start("copy", TABLE)
    if before == "failed":
        run.phases.fail("copy", "TransientError: no answer", TABLE)
    now = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now + 1000)
    note_submitted(run, f"copy {TABLE}")
    monkeypatch.setattr(clock, "now_ms", lambda: now + 41_000)
    state = state_of(run)
    assert (state.name, state.next_step) == ("working", "wait")
    assert state.cause == f"Spark is starting for copy {TABLE}, for 40 s so far"
    monkeypatch.setattr(heartbeat, "gone", lambda process: True)
    assert state_of(run).name == {"nothing": "between phases", "failed": "failed", "killed": "interrupted"}[before]


def test_a_phase_that_has_begun_is_not_starting(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(run, "plan", "protect", "fence", "snapshot")
    note_submitted(run, f"copy {TABLE}")
    now = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now + 1000)
    finish(run, "copy")
    assert "Spark is starting" not in state_of(run).cause


def test_what_fails_while_the_command_goes_on_is_told(run: RunLedger) -> None:
    with beating(run, "", "kim"):
        fail(run, "plan", "UsageError: no such table")
        assert state_of(run).name == "failed"


def test_a_shell_that_vanished_between_two_phases_is_interrupted(
    run: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(run, "plan")
    later = clock.now_ms() + 600_000
    monkeypatch.setattr(clock, "now_ms", lambda: later)
    state = state_of(run)
    assert (state.name, state.next_step) == ("interrupted", "`walferry resume move`")


def test_in_a_shell_nobody_but_a_new_command_does_again_what_is_to_be_done_again(run: RunLedger) -> None:
    """Hole: after `walferry withdraw` the state said to wait a minute, and to look at the DAG run."""
    finish(run, *UP_TO_COPY, "replay", "approve", "write_stop")
    run.phases.reopen("approve")
    state = state_of(run)
    assert (state.name, state.next_step) == ("interrupted", "`walferry resume move`")
    assert state.cause.endswith("and no process works on the run")


def test_while_the_log_is_followed_a_shut_gate_asks_for_no_other_command(run: RunLedger) -> None:
    """Hole: `walferry resume` was the next step, and refused."""
    follow(run, 1)
    run.phases.start("approve")
    run.phases.fail("approve", "GateShutError: the gate is shut: rows differ")
    state = state_of(run)
    assert state.name == "gate shut"
    assert "resume" not in state.next_step
    assert "`walferry ready move` shows every reason" in state.next_step


def test_in_airflow_a_phase_that_does_not_begin_is_named(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after somebody marked the task of `fence` as success: the ledger does not have it, nothing after it begins."""
    run = book.of(book.open_run("move", "airflow manual", SPEC, "kim").run_id)
    finish(run, "plan", "protect")
    assert state_of(run).cause.endswith("s ago, and fence has not begun")
    later = clock.now_ms() + 600_000
    monkeypatch.setattr(clock, "now_ms", lambda: later)
    state = state_of(run)
    assert (state.name, "task for fence" in state.next_step) == ("between phases", True)


def test_a_drain_rests_between_its_rounds(book: Ledger) -> None:
    run = book.of(book.open_run("drained", "airflow hbase_wal_drain", SPEC, "kim", "drain").run_id)
    finish(run, "protect", "fence", "drain_sealed")
    assert state_of(run).name == "following"


def test_the_watch_follows_its_source(book: Ledger) -> None:
    run = book.open_run("watch", "hbase_wal_watch", {"source": CLUSTER, "tables": []}, "w", "watch")
    assert state_of(book.of(run.run_id)).name == "following"


# ---- lag, backlog, ETA


def test_a_lag_that_nothing_measures_is_none_and_says_why(book: Ledger, run: RunLedger) -> None:
    finish(run, *UP_TO_COPY)
    work_on(run, "replay")
    assert (status(run)["lag_seconds"], status(run)["lag_unknown"]) == (
        None,
        "the first replay round has not ended yet",
    )
    end_round(run, 4)
    assert status(run)["lag_unknown"] == ""
    finish(run, "replay", "approve", "write_stop", "end_fence", "drain")
    facts = status(run)
    assert (facts["lag_seconds"], facts["lag_unknown"]) == (None, "all is applied up to the end fence")  # not 0.0
    assert "Lag: N/A (all is applied up to the end fence)" in status_line(facts)
    window = book.of(book.open_run("hour", "cli kim", SPEC, "kim", "window").run_id)
    assert status(window)["lag_unknown"] == "a run of kind window follows no log"


def test_an_end_is_told_by_the_backlog_and_the_rate_only(run: RunLedger) -> None:
    follow(run, 300)
    assert status(run)["eta_seconds"] is None  # nothing is known to wait
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 60_000, sealed=True)])
    assert status(run)["eta_seconds"] == 60  # 1,000 bytes took a second


def test_no_end_is_promised_while_a_person_decides(run: RunLedger) -> None:
    follow(run, 1)
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 60_000, sealed=True)])
    assert status(run)["waits_for"] == "approval"
    assert status(run)["eta_seconds"] is None


@pytest.mark.usefixtures("still")
def test_the_longest_lag_is_the_one_just_before_a_round_ended_or_that_of_now(run: RunLedger) -> None:
    assert lag_of(run).longest is None
    start = clock.now_ms() - 40_000
    run.rounds.record(Round(1, start, start + 10_000, 1, 1, 1, 1, 3_000, 0))
    run.rounds.record(Round(2, start + 10_000, start + 40_000, 1, 1, 1, 1, 2_000, 0))
    assert lag_of(run).longest == 33.0  # 40 - (10 - 3)
    assert lag_of(run).seconds == 2.0
    run.rounds.record(Round(3, start - 90_000, start - 80_000, 1, 1, 1, 1, 0, 0))
    assert lag_of(run).longest == lag_of(run).seconds == 120.0

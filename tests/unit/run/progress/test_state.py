"""Each state that a run can be in has a name, a colour, a cause and a next step, from the ledger alone."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from unit.migration.filled_ledger import FILE, GROUP, SPEC, compared
from unit.migration.pair_ledger import differs, one_pass
from unit.run.progress.brought import (
    NOT_IN_LOG,
    TABLE,
    UP_TO_COPY,
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
    RangeComparison,
    Round,
    RunLedger,
    SeenFile,
)
from walferry.ledger.rows import RunKind
from walferry.run.progress.lag import lag_of
from walferry.run.progress.state import state_of
from walferry.run.progress.states import STATES, StateName
from walferry.run.progress.status import status, status_line


def test_rows_that_wait_for_accept_wait_for_a_person_by_the_command_that_decides(run: RunLedger) -> None:
    state = brought_to(run, "waiting for a decision")
    assert (state.colour, state.waits_for, state.whom) == ("amber", "decision", "an operator, in the shell")
    assert "`walferry accept move --table shop:orders --all --reason …`" in state.next_step
    assert "1 row of shop:orders differs and waits for a decision" in state.cause
    facts = status(run)
    assert (facts.waits_for, facts.whom) == ("decision", "an operator, in the shell")
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


OF_KIND: dict[StateName, RunKind] = {
    "differing": "pair", "following": "standby", "exposed": "keep", "copying": "receive", "receiving": "receive",
    "idle": "receive", "refusing": "receive", "no receiver": "receive",
}  # fmt: skip
"""states that a migration does not have"""


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("name", get_args(StateName))
def test_each_state_is_told_with_its_colour_cause_and_next_step(book: Ledger, name: StateName) -> None:
    kind: RunKind = OF_KIND.get(name, "migration")
    more = {"receive": {"path": None, "history": "scan"}} if name == "copying" else {}
    run = book.of(book.open_run("move", "cli kim", SPEC | more, "kim", kind).run_id)
    state = brought_to(run, name)
    assert (state.name, state.colour) == (name, STATES[name].colour)
    assert state.cause
    assert state.next_step
    assert "NAME" not in state.next_step  # the run's own
    facts = status(run)
    assert (facts.state, facts.colour, facts.cause, facts.next_step) == (
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
    cause = "pass 2: 1 row differs; 1 more were under way at every reading"
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


def test_a_lag_that_nothing_measures_is_none_and_says_why(book: Ledger, run: RunLedger) -> None:
    finish(run, *UP_TO_COPY)
    work_on(run, "replay")
    assert (status(run).lag_seconds, status(run).lag_unknown) == (
        None,
        "the first replay round has not ended yet",
    )
    end_round(run, 4)
    assert status(run).lag_unknown == ""
    finish(run, "replay", "approve", "write_stop", "end_fence", "drain")
    facts = status(run)
    assert (facts.lag_seconds, facts.lag_unknown) == (None, "all is applied up to the end fence")  # not 0.0
    assert "Lag: N/A (all is applied up to the end fence)" in status_line(facts)
    window = book.of(book.open_run("hour", "cli kim", SPEC, "kim", "window").run_id)
    assert status(window).lag_unknown == "a run of kind window follows no log"


def test_an_end_is_told_by_the_backlog_and_the_rate_only(run: RunLedger) -> None:
    follow(run, 300)
    assert status(run).eta_seconds is None  # nothing is known to wait
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 60_000, sealed=True)])
    assert status(run).eta_seconds == 60  # 1,000 bytes took a second


def test_no_end_is_promised_while_a_person_decides(run: RunLedger) -> None:
    follow(run, 1)
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/{FILE}", 60_000, sealed=True)])
    assert status(run).waits_for == "approval"
    assert status(run).eta_seconds is None


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

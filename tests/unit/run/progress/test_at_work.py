"""A process that works on a run is seen by its signs of life, and missed within seconds."""

from __future__ import annotations

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from unit.run.progress.brought import (
    TABLE,
    UP_TO_COPY,
    fail,
    finish,
    follow,
)
from walferry import clock
from walferry.ledger import (
    Ledger,
    RunLedger,
)
from walferry.run import heartbeat
from walferry.run.heartbeat import NOTE, beating, note_submitted
from walferry.run.progress.state import state_of


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
    monkeypatch.setattr("walferry.run.progress.at_work.BETWEEN_SECONDS", -1)
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

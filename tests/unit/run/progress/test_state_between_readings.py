"""A state needs two readings, of the phases and of the heartbeats: what changes in between is no loss of a process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unit.run.progress.brought import after_reading_phases, end_with_process, finish, work_on
from walferry.ledger import RunLedger
from walferry.run import heartbeat
from walferry.run.progress.state import phases_and_signs, state_of
from walferry.run.progress.status import status

Look = Callable[[RunLedger], str]


def by_state(run: RunLedger) -> str:
    return state_of(run).name


def by_status(run: RunLedger) -> str:
    """Within one moment, in which a second reading of the ledger shows what the first one showed."""
    return status(run).state


@pytest.fixture(params=[by_state, by_status])
def look(request: pytest.FixtureRequest) -> Look:
    found: Look = request.param
    return found


@pytest.mark.parametrize(("error", "shown"), [("", "between phases"), ("TransientError: no answer", "failed")])
def test_a_phase_that_ends_with_its_process_while_one_looks_is_shown_as_it_ended(
    run: RunLedger, look: Look, error: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_on(run, "plan")
    after_reading_phases(monkeypatch, lambda: end_with_process(run, "plan", monkeypatch, error))
    assert look(run) == shown


@pytest.mark.parametrize("following", ["protect", "plan"])
def test_what_begins_while_one_looks_is_at_work_the_next_phase_or_another_attempt(
    run: RunLedger, look: Look, following: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_and_begin() -> None:
        end_with_process(run, "plan", monkeypatch)
        run.phases.start(following)  # its first heartbeat comes after those that are read

    work_on(run, "plan")
    after_reading_phases(monkeypatch, end_and_begin)
    assert look(run) == "working"


def test_a_phase_whose_process_was_killed_is_lost_though_another_phase_ends_while_one_looks(
    run: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_on(run, "copy", "a")
    monkeypatch.setattr(heartbeat, "gone", lambda process: True)
    after_reading_phases(monkeypatch, lambda: finish(run, "plan"))
    phases, signs = phases_and_signs(run)
    assert [(phase.phase, phase.state) for phase in phases] == [("copy", "running"), ("plan", "done")]
    assert signs == set()


@pytest.mark.parametrize(("killed", "times"), [(False, 1), (True, 2)])
def test_phases_are_read_a_second_time_only_if_one_seems_lost(
    run: RunLedger, killed: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(run, "plan")
    work_on(run, "protect")
    monkeypatch.setattr(heartbeat, "gone", lambda process: killed)
    readings = after_reading_phases(monkeypatch, lambda: None)
    phases_and_signs(run)
    assert len(readings) == times
    assert state_of(run).name == ("interrupted" if killed else "working")

"""A phase is done once: not again when it is done, and anew when it was not (R7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.errors import GapError, TransientError, UsageError, WalferryError, is_transient
from walferry.ledger import Ledger
from walferry.ledger.phases import SupersededError
from walferry.ledger.rows import RunKind
from walferry.request_meter import RequestRates
from walferry.run.heartbeat import alive
from walferry.run.phases import Phase, phase_of, phases_of, steps
from walferry.run.progress.state import state_of
from walferry.run.run import PhaseNotReadyError, Run

TABLE = "shop:orders"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)


def finished(run: Run, *phases: str) -> None:
    """Let the ledger have these phases as done, for each table where they go by table."""
    for phase, subject in steps(run.record.kind, [pair.source for pair in run.tables]):
        if phase.name in phases:
            run.ledger.phases.start(phase.name, subject)
            run.ledger.phases.finish(phase.name, {}, subject)


def counted(done: list[int]) -> Callable[[], dict[str, Any]]:
    """Work whose facts tell the how-manieth time it was done."""

    def work() -> dict[str, Any]:
        done.append(len(done) + 1)
        return {"time": done[-1]}

    return work


def test_a_phase_that_is_done_is_not_repeated_and_tells_what_it_told_before(run: Run) -> None:
    done: list[int] = []
    again = Run(run.ledger.whole, run.run_id)
    assert run.once("plan", counted(done)) == again.once("plan", counted(done)) == {"time": 1}
    finished(run, "fence")
    for number, table in enumerate((TABLE, "other"), 2):  # of each table, a phase of its own
        assert again.once("snapshot", counted(done), table) == {"time": number}


@pytest.mark.parametrize("end", [ZeroDivisionError, KeyboardInterrupt], ids=["failed", "interrupted"])
def test_a_phase_that_did_not_come_to_its_end_is_done_anew(run: Run, end: type[BaseException]) -> None:
    def stopped() -> dict[str, Any]:
        raise end

    with pytest.raises(end):
        run.once("plan", stopped)
    assert run.ledger.phases.facts("plan") is None
    assert run.once("plan", counted([])) == {"time": 1}


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (TransientError("busy"), True),
        (GapError("gone"), False),
        (ZeroDivisionError(), True),
        (KeyboardInterrupt(), True),
    ],
    ids=["may pass", "final", "a bug", "interrupted"],
)
def test_a_failure_is_recorded_with_whether_another_attempt_may_succeed(
    run: Run, error: BaseException, transient: bool
) -> None:
    def failing() -> dict[str, Any]:
        raise error

    with pytest.raises(type(error)):
        run.once("plan", failing)
    failed = run.ledger.phases.find("plan")
    assert failed is not None
    assert (failed.state, failed.transient) == ("failed", transient)


def test_a_phase_that_repeats_is_done_each_time_and_is_always_due(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("drain", "test", SPEC, "test", "drain").run_id)
        finished(run, "protect", "fence")
        done: list[int] = []
        for time in (1, 2):
            assert run.is_due("drain_sealed")
            assert run.once("drain_sealed", counted(done)) == {"time": time}
        assert not run.is_due("fence")


def test_a_phase_that_was_killed_in_its_midst_is_done_anew(run: Run) -> None:
    run.ledger.phases.start("plan")  # and nothing more was written
    assert run.once("plan", counted([])) == {"time": 1}
    assert run.done("plan") == {"time": 1}


@pytest.mark.parametrize("phase", [phase for phase in phases_of("migration") if phase.needs], ids=lambda p: p.name)
def test_no_phase_starts_before_those_that_it_needs_are_done_in_the_ledger(run: Run, phase: Phase) -> None:
    """Whatever Airflow says: marking `check_drain` as success there must not lead to `release`."""
    done: list[int] = []
    subject = TABLE if phase.by_table else ""
    with pytest.raises(PhaseNotReadyError, match=f"{phase.needs[0]}.* not done in the ledger"):
        run.once(phase.name, counted(done), subject)
    assert done == []
    finished(run, *phase.needs)
    assert run.once(phase.name, counted(done), subject) == {"time": 1}


def test_a_phase_by_table_needs_its_own_table_only_and_a_phase_of_the_run_needs_all(tmp_path: Path) -> None:
    two = SPEC | {"tables": [{"source": table, "target": table} for table in ("a", "b")]}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("two", "test", two, "test").run_id)
        finished(run, "fence")
        run.once("snapshot", counted([]), "a")
        run.once("copy", counted([]), "a")
        run.once("clone", counted([]), "a")
        with pytest.raises(PhaseNotReadyError, match="copy b of run two-1 cannot start: snapshot b"):
            run.once("copy", counted([]), "b")
        with pytest.raises(PhaseNotReadyError, match="clone b is not done"):
            run.once("check_copy", counted([]))


def test_each_need_is_a_phase_that_comes_earlier() -> None:
    kind: RunKind
    for kind in get_args(RunKind):
        names = [phase.name for phase in phases_of(kind)]
        for phase in phases_of(kind):
            assert set(phase.needs) <= set(names[: names.index(phase.name)]), (kind, phase.name)
            assert phase_of(kind, phase.name) is phase


def test_what_a_superseded_attempt_found_is_not_recorded(run: Run) -> None:
    """Airflow gave a task up and began it again: the older one must not open a gate that the newer one found shut."""

    def overtaken() -> dict[str, Any]:
        with pytest.raises(ZeroDivisionError):
            run.once("plan", failing)
        return {"from": "the older attempt"}

    def failing() -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(WalferryError, match="attempt 1 at plan of run move-1 was superseded by attempt 2"):
        run.once("plan", overtaken)
    assert run.ledger.phases.facts("plan") is None


def test_two_processes_do_not_supersede_each_other_for_ever(run: Run) -> None:
    def overtaken() -> dict[str, Any]:
        run.ledger.phases.start("plan")  # by another process, which is at work
        return {}

    with pytest.raises(WalferryError, match="was superseded by attempt 2") as caught:
        run.once("plan", overtaken)
    assert not is_transient(caught.value)


def test_an_attempt_whose_basis_changed_meanwhile_records_nothing_and_is_repeated(run: Run) -> None:
    found = ["an old basis", "a new one"]

    def work() -> dict[str, Any]:
        if len(found) == 2:
            run.ledger.phases.reopen("plan", reason="late edits are to be applied")
            assert state_of(run.ledger).name == "working", "its process is at work, and nobody has to look at it"
        return {"from": found.pop(0)}

    with pytest.raises(SupersededError, match="attempt 1 at plan of run move-1 was superseded by attempt 2") as caught:
        run.once("plan", work)
    assert is_transient(caught.value)
    assert run.ledger.phases.facts("plan") is None
    assert run.once("plan", work) == {"from": "a new one"}


def test_a_killed_attempt_whose_basis_changed_is_to_be_done_again_and_no_failure_that_stays(run: Run) -> None:
    run.ledger.phases.start("plan")
    run.ledger.phases.reopen("plan", reason="late edits are to be applied")
    known = run.ledger.phases.find("plan")
    assert known is not None
    assert (known.state, known.transient, known.message) == ("failed", True, "late edits are to be applied")
    assert run.once("plan", dict) == {}


@pytest.mark.parametrize("before", ["not started", "interrupted"])
@pytest.mark.parametrize("after", ["between phases", "failed"])
def test_whoever_looks_as_a_phase_begins_and_ends_sees_its_process_at_work(
    run: Run, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the first heartbeat came after the start, and the last before the end: in between, it was interrupted."""
    if before == "interrupted":
        run.ledger.phases.start("plan")  # by a process that was killed
    shown: list[str] = []

    def look() -> None:
        if shown[-1:] != [name := state_of(run.ledger).name]:
            shown.append(name)

    def work() -> dict[str, Any]:
        look()
        if after == "failed":
            raise ZeroDivisionError
        return {}

    look_around(run, look, monkeypatch)
    with suppress(ZeroDivisionError):
        run.once("plan", work)
    assert shown == [before, "working", after]
    assert alive(run.ledger) == set()


def look_around(run: Run, look: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Look before and after each change of a phase or of a heartbeat."""

    def looked_at(change: Callable[..., Any]) -> Callable[..., Any]:
        def between(*args: Any, **kwargs: Any) -> Any:
            look()
            try:
                return change(*args, **kwargs)
            finally:
                look()

        return between

    for part, changes in ((run.ledger.phases, ("start", "finish", "fail")), (run.ledger.notes, ("keep", "drop_if"))):
        for name in changes:
            monkeypatch.setattr(part, name, looked_at(getattr(part, name)))


def test_a_process_that_may_not_begin_a_phase_any_more_leaves_no_sign_of_life(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    start = run.ledger.phases.start

    def start_after_abort(phase: str, subject: str) -> int:
        assert alive(run.ledger) == {"plan"}
        run.ledger.end("aborted", "another process")
        return start(phase, subject)

    monkeypatch.setattr(run.ledger.phases, "start", start_after_abort)
    with pytest.raises(UsageError, match="aborted"):
        run.once("plan", counted(done))
    assert (alive(run.ledger), run.ledger.phases.all(), done) == (set(), [], [])


def test_driver_and_workers_together_keep_to_the_requests_that_the_spec_allows(tmp_path: Path) -> None:
    spec = SPEC | {"source_requests": {"namenode": 40, "region_servers": 10}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        driver, worker = run.source.address.rates, run.log_spec.source_address(workers=4).rates
        assert driver == RequestRates(namenode=20, region_servers=5)
        assert worker == RequestRates(namenode=5, region_servers=1.25)
        assert run.target.address.rates == RequestRates()


def test_a_runs_sessions_of_zookeeper_end_when_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_ZOOKEEPER_SESSION_SECONDS", "7")
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        addresses = run.source_address(workers=4), run.target_address(), run.source.address, run.target.address
    assert {address.session_seconds for address in addresses} == {7.0}

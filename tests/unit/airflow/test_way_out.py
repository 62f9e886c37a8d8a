"""How to go on after a gate that stays shut: asked of a person, done, and continued by another run of the DAG."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from unit.migration.filled_ledger import SPEC
from walferry.airflow.dags import migrate
from walferry.airflow.operators import approved_by
from walferry.airflow.questions import NEXT_DAG_RUN, AskOperator, WayOutOperator
from walferry.errors import TransientError, UsageError
from walferry.ledger import Ledger, RunLedger
from walferry.process import open_ledger
from walferry.run.heartbeat import RunBusyError, beating
from walferry.run.progress.state import state_of
from walferry.run.start import continue_run, start_run

DAG_RUN = "manual__1"
PARAMS = {"name": "move", "tables": ["shop:orders"]}
GIVEN = PARAMS | {"source": SPEC["source"], "target": SPEC["target"]}


def no_connections(name: str) -> Any:
    raise AssertionError(name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLedger]:
    """Writes have stopped, and the last check did not pass."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("WALFERRY_LEDGER", url)
    with Ledger.open(url, actor="test") as ledger:
        run = ledger.of(start_run(ledger, GIVEN, no_connections, f"airflow {DAG_RUN}"))
        for phase in ("check_copy", "approve", "write_stop"):
            run.phases.start(phase)
            run.phases.finish(phase, {"at_ms": 1, "by": "airflow ann"})
        attempt = run.phases.start("check_drain")
        run.phases.fail("check_drain", "GateShutError: the gate is shut: a reason", attempt=attempt)
        yield run


class Try:
    """One try of the task `way_out`."""

    def __init__(self, run: RunLedger | None, dag_run: str = DAG_RUN) -> None:
        self.task = WayOutOperator(task_id="way_out", run=run and run.run_id)
        self.pushed: dict[str, Any] = {}
        self.skipped: list[Any] = []
        instance = SimpleNamespace(id="1", xcom_push=lambda key, value: self.pushed.update({key: value}))
        after = SimpleNamespace(get_direct_relatives=lambda upstream: ["go_on"])
        self.context: Any = {
            "run_id": dag_run, "params": PARAMS | {"rows": [], "reason": ""}, "task_instance": instance,
            "ti": instance, "task": after,
        }  # fmt: skip
        self.task.skip = lambda ti, tasks: self.skipped.extend(tasks)  # type: ignore[method-assign]

    def ask(self) -> Any:
        return self.task.execute(self.context)

    def answer(self, way: str, reason: str = "", rows: list[str] | None = None) -> Any:
        return self.task.execute_complete(
            self.context,
            {"chosen_options": [way], "params_input": {"rows": rows or [], "reason": reason},
             "responded_at": datetime(2026, 11, 25, tzinfo=UTC), "responded_by_user": {"id": "7", "name": "ann"}},
        )  # fmt: skip


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """What was asked: the options and the text."""
    found: list[tuple[list[str], str]] = []
    monkeypatch.setattr(HITLOperator, "execute", lambda self, _: found.append((self.options, self.body)))
    monkeypatch.setattr(ApprovalOperator, "execute", lambda self, _: found.append(([self.task_id], "")))
    return found


def test_it_asks_with_the_cause_and_what_is_possible(run: RunLedger, asked: list[tuple[list[str], str]]) -> None:
    Try(run).ask()
    [(options, text)] = asked
    assert options == ["Check again", "Repair, check again", "Accept, check again", "Withdraw", "Abort"]
    assert "**gate shut**: check_drain: the gate is shut: a reason" in text
    assert "*Withdraw*: writers go on" in text
    run.notes.keep("opened", {"at_ms": 5})
    Try(run).ask()


def test_it_is_skipped_where_nothing_is_to_be_decided(run: RunLedger, asked: list[Any]) -> None:
    with pytest.raises(AirflowSkipException, match="its plan failed"):
        Try(None).ask()
    with pytest.raises(AirflowSkipException, match="move-1 is continued by airflow manual__1"):
        Try(run, "another").ask()
    run.phases.reopen("write_stop")
    with pytest.raises(AirflowSkipException, match="no gate is shut"):
        Try(run).ask()
    assert not asked


def test_an_answer_is_carried_out_and_the_next_run_of_the_dag_continues_the_run(run: RunLedger) -> None:
    first = Try(run)
    assert first.answer("Withdraw", "it takes too long") == PARAMS | {"continues": "move-1"}
    assert first.pushed == {NEXT_DAG_RUN: "move-1__continued_1"}
    assert not first.skipped
    assert run.phases.facts("write_stop") is None
    assert "airflow ann" in [line.actor for line in run.audit_trail() if line.action == "withdraw the cutover"]


def test_a_try_that_is_killed_before_or_after_it_has_done_what_was_chosen_is_followed_by_one_that_does_it(
    run: RunLedger, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a withdrawal was done, the retry found nothing to ask about, and nobody followed the log any more."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for place in ("walferry.cutover.ways_out.take", "walferry.airflow.questions.note_refused"):
        with monkeypatch.context() as patch:
            patch.setattr(place, killed)
            with pytest.raises(KeyboardInterrupt):
                Try(run).answer("Withdraw")
        assert (run.phases.facts("write_stop") is None) == place.endswith("note_refused")
        if place.endswith("note_refused"):
            assert Try(run).ask() == PARAMS | {"continues": "move-1"}
    assert not asked


def test_a_choice_is_asked_for_again_once_a_check_has_failed_again(run: RunLedger, asked: list[Any]) -> None:
    """Hole: whoever cleared the check in the same run of the DAG was told that they had chosen already."""
    Try(run).answer("Check again")
    time.sleep(0.002)
    attempt = run.phases.start("check_drain")
    run.phases.fail("check_drain", "GateShutError: the gate is shut: another reason", attempt=attempt)
    Try(run).ask()
    assert len(asked) == 1
    again = Try(run)
    again.answer("Check again")
    assert again.pushed == {NEXT_DAG_RUN: "move-1__continued_2"}


def test_an_abort_whose_clean_up_fails_is_repeated(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: the run had ended, so nothing was asked any more, and the peer stayed."""
    calls: list[int] = []

    def release(*_: Any, **__: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise TransientError("ZooKeeper does not answer")
        return {"removed": [], "left": []}

    monkeypatch.setattr("walferry.cutover.ways_out.objects.release", release)
    with pytest.raises(AirflowException, match="ZooKeeper"):
        Try(run).answer("Abort")
    last = Try(run)
    last.ask()
    assert len(calls) == 2
    assert last.skipped == ["go_on"]


def test_a_try_after_one_that_was_lost_goes_on_with_what_was_done(run: RunLedger, asked: list[Any]) -> None:
    Try(run).answer("Withdraw")
    again = Try(run)
    assert again.ask() == PARAMS | {"continues": "move-1"}
    assert again.pushed == {NEXT_DAG_RUN: "move-1__continued_1"}
    assert not asked


def test_what_cannot_be_done_is_asked_again_and_told_until_something_can(run: RunLedger, asked: list[Any]) -> None:
    with pytest.raises(AirflowException, match="no comparison of 'shop:orders'") as error:
        Try(run).answer("Accept, check again", "we know", ["shop:orders r1"])
    assert not isinstance(error.value, AirflowFailException), "the retry asks again"
    Try(run).ask()
    assert len(asked) == 1
    assert state_of(run).cause.startswith("Accept, check again was not possible: run move-1 has no comparison of")
    Try(run).answer("Check again")
    assert "not possible" not in state_of(run).cause


def test_after_an_abort_nothing_is_continued(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walferry.replay.keeping.objects.restore", lambda *_, **__: ([], []))
    monkeypatch.setattr("walferry.cutover.ways_out.objects.release", lambda *_, **__: {"removed": [], "left": []})
    last = Try(run)
    last.answer("Abort", "the copy is not worth it")
    assert last.skipped == ["go_on"]
    assert run.record.state == "aborted"


def test_the_state_names_the_question(run: RunLedger) -> None:
    assert state_of(run).next_step.startswith("`way_out` asks in Airflow how to go on; or ")
    run.whole.adopt_run(run.run_id, "kim@host", "kim")
    assert "way_out" not in state_of(run).next_step


def test_after_a_withdrawal_the_run_does_not_count_as_failed(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: what is to be done again was shown as failed, although replay went on."""
    Try(run).answer("Withdraw", "it takes too long")
    state = state_of(run)
    assert (state.name, "the writers go on" in state.cause) == ("between phases", True)
    attempt = run.phases.start("replay")
    with beating(run, "replay", "airflow"):
        assert state_of(run).name == "catching up"
    run.phases.fail("replay", "TransientError: no answer", attempt=attempt)
    assert state_of(run).name == "failed"


# ------------------------------------------------------------------ the run of the DAG that continues


def continued(run_id: str = "move-1", owner: str = "airflow next", **keys: Any) -> str:
    with open_ledger() as ledger:
        return continue_run(ledger, run_id, GIVEN | keys, no_connections, owner)


def test_it_takes_the_run_over_unless_somebody_works_on_it_or_the_spec_is_another(run: RunLedger) -> None:
    with beating(run, "drain", "kim"), pytest.raises(RunBusyError, match="has been working on move-1"):
        continued()
    with pytest.raises(UsageError, match="cannot be continued as 'other'"):
        continued(name="other")
    with pytest.raises(UsageError, match=r"with another spec \(.*\) than this one"):
        continued(tables=["shop:others"])
    assert run.record.owner == f"airflow {DAG_RUN}"
    assert continued() == "move-1"
    assert run.record.owner == "airflow next"
    with beating(run, "drain", "kim"):
        assert continued() == "move-1", "a retry of its own plan"
    run.end("aborted", "kim", "enough")
    with pytest.raises(UsageError, match=r"run move-1 \(aborted\) cannot be continued"):
        continued()


def test_what_was_approved_before_is_not_asked_again(run: RunLedger, asked: list[Any]) -> None:
    task = AskOperator(task_id="approve_cutover", run=run.run_id, phase="approve", subject="?", fail_on_reject=True)
    answer = task.execute({"task_instance": SimpleNamespace(id="2")})  # type: ignore[typeddict-item]
    assert approved_by(answer) == "ann"
    assert not asked
    assert migrate.wait_until_ready.function(run.run_id), "whatever the gate says by now"

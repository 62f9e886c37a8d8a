"""A person's answer is in the ledger until it is used, whichever task or try Airflow loses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType, TaskDeferred
from airflow.sdk.execution_time.comms import ErrorResponse

from unit.migration.filled_ledger import SPEC
from walferry.airflow import triggers
from walferry.airflow.dags import migrate
from walferry.airflow.operators import answered_ms, approved_by
from walferry.airflow.questions import AskOperator, HearAnswersOperator
from walferry.airflow.triggers import AnswerTrigger, note_asked, use_answer
from walferry.ledger import Ledger, RunLedger
from walferry.run.notes.answers import word_of

AT = datetime(2026, 11, 24, 23, 0, 1, 500_000, UTC)
TRIES = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLedger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("WALFERRY_LEDGER", url)
    with Ledger.open(url, actor="test") as ledger:
        yield ledger.of(ledger.open_run("move", "airflow manual__1", SPEC, "test").run_id)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tries that asked a person."""
    tries: list[str] = []
    monkeypatch.setattr(ApprovalOperator, "execute", lambda self, context: tries.append(context["task_instance"].id))
    return tries


def ask(run: RunLedger, number: int, phase: str = "approve") -> Any:
    """What a try of the task gives to the next one; None if it asks."""
    task = AskOperator(task_id="approve_cutover", run=run.run_id, phase=phase, subject="?", fail_on_reject=True)
    return task.execute({"task_instance": SimpleNamespace(id=TRIES[number])})  # type: ignore[typeddict-item]


def resume(run: RunLedger, option: str = "Approve", phase: str = "approve") -> Any:
    """What Airflow does with the try that asked, once a person has answered."""
    task = AskOperator(task_id="approve_cutover", run=run.run_id, phase=phase, subject="?", fail_on_reject=True)
    event = {"chosen_options": [option], "params_input": {}, "responded_at": AT,
             "responded_by_user": {"id": "7", "name": "ann"}}  # fmt: skip
    return task.execute_complete({}, event)


def hears(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
    """Airflow has these answers, by task instance; others it does not know."""
    monkeypatch.setattr(triggers, "ANSWER_SECONDS", 0.01)

    def look(ti_id: Any) -> Any:
        if (given := answers.get(str(ti_id))) is None:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 404}))
        return given

    monkeypatch.setattr(triggers, "get_hitl_detail_content_detail", look)


def given(*options: str) -> Any:
    person = SimpleNamespace(name="ann")
    return SimpleNamespace(
        response_received=bool(options), chosen_options=list(options), responded_by_user=person, responded_at=AT
    )


def listen(run: RunLedger, seconds: float = 0.5) -> str | None:
    """What the trigger fires with; None if it does not within some time."""

    async def first() -> Any:
        return await asyncio.wait_for(anext(AnswerTrigger(run.run_id).run()), seconds)

    try:
        return str(asyncio.run(first()).payload)
    except TimeoutError:
        return None


def test_a_try_after_one_that_was_lost_takes_the_answer_that_the_trigger_has_heard(
    run: RunLedger, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the try that Airflow resumed was killed before it ran; the next one asked again, and waited for ever."""
    assert ask(run, 0) is None
    hears(monkeypatch, {TRIES[0]: given("Approve")})
    assert listen(run) is None, "the other answer is still to come"
    answer = ask(run, 1)
    assert asked == [TRIES[0]]
    assert (approved_by(answer), answered_ms(answer)) == ("ann", round(AT.timestamp() * 1000))


def test_a_try_that_is_killed_after_it_heard_the_answer_is_followed_by_one_that_has_it(
    run: RunLedger, asked: list[str]
) -> None:
    ask(run, 0)
    assert resume(run) == ask(run, 1) | {"responded_by_user": {"id": "7", "name": "ann"}}
    assert asked == [TRIES[0]]


def test_a_rejection_is_asked_about_again(run: RunLedger, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ask(run, 0)
    hears(monkeypatch, {TRIES[0]: given("Reject")})
    assert listen(run, 0.1) is None
    with pytest.raises(HITLRejectException):
        resume(run, "Reject")
    assert ask(run, 1) is None
    assert asked == list(TRIES)


def test_an_answer_that_the_next_task_has_is_not_taken_by_whoever_asks_again(
    run: RunLedger, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody clears both tasks, to be asked again; a triggerer that was away looks at the old answer only now."""
    ask(run, 0)
    resume(run)
    use_answer(run, "approve")
    hears(monkeypatch, {TRIES[0]: given("Approve")})
    assert listen(run, 0.1) is None
    assert ask(run, 1) is None
    assert asked == list(TRIES)


def test_the_task_after_the_approval_uses_it_even_if_the_gate_has_shut(run: RunLedger, asked: list[str]) -> None:
    ask(run, 0)
    answer = resume(run)
    task = migrate.how_to_stop_writes.function
    with pytest.raises(Exception, match="approve of run move-1 cannot start: check_copy is not done"):
        task(run.run_id, answer)
    assert word_of(run, "approve") is None


def test_the_trigger_fires_once_it_has_the_word_that_writes_have_stopped(
    run: RunLedger, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(run, 0)
    ask(run, 1, "write_stop")
    hears(monkeypatch, {TRIES[1]: given("Approve")})  # the try that asked for the approval no longer exists
    assert listen(run, 10) == "at 23:00:01 UTC ann said that writes have stopped; the ledger has it"
    word = word_of(run, "write_stop")
    assert word is not None
    assert (word.by, word.said_ms) == ("airflow ann", round(AT.timestamp() * 1000))
    assert word_of(run, "approve") is None


@pytest.mark.parametrize("over", ["write_stop", "abort", "approve with readonly"])
def test_the_trigger_fires_when_nobody_waits_for_an_answer(
    over: str, run: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    hears(monkeypatch, {})
    if over == "abort":
        run.end("aborted", "kim", "enough")
    else:
        ledger = run.whole
        if over != "write_stop":
            run = ledger.of(ledger.open_run("other", "kim", SPEC | {"write_stop": "readonly"}, "kim").run_id)
        phase = over.partition(" ")[0]
        run.phases.start(phase)
        run.phases.finish(phase, {"by": "kim"})
    note_asked(run, "write_stop", TRIES[0])
    assert listen(run, 10) == "the run no longer waits for an answer"


def test_the_trigger_is_made_again_from_what_it_tells() -> None:
    path, kwargs = AnswerTrigger("move-1").serialize()
    assert path == f"{AnswerTrigger.__module__}.AnswerTrigger"
    assert AnswerTrigger(**kwargs).run_id == "move-1"


@pytest.mark.parametrize(
    ("health", "why"),
    [
        ({"triggerer": {"status": "healthy"}}, ""),
        ({"triggerer": {"status": None}}, "no triggerer runs"),
        ({"triggerer": {"status": "unhealthy"}}, "says unhealthy"),
        ({"detail": "what is this?"}, ""),
        (None, ""),
    ],
    ids=["one runs", "none ever did", "it has ended", "no Airflow", "no answer"],
)
def test_the_task_that_hears_answers_says_when_nobody_would_hear_them(
    health: object, why: str, run: RunLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hole: it was deferred for ever, and writers stood still while a person had answered."""

    def get(url: str, timeout: float) -> httpx.Response:
        assert url.endswith("/api/v2/monitor/health")
        if health is None:
            raise httpx.ConnectError("connection refused")
        return httpx.Response(200, json=health)

    monkeypatch.setattr(httpx, "get", get)
    with pytest.raises(TaskDeferred):
        HearAnswersOperator(task_id="hear_answers", run=run.run_id).execute({})
    assert (why in caplog.text) if why else "triggerer" not in caplog.text

"""The DAG hbase_repair: it does what the shell's verbs do, and ends as they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from unit.migration.filled_ledger import SPEC
from walferry.airflow.dags import hbase_repair, repair
from walferry.errors import TransientError
from walferry.ledger import RepairedRow, RunLedger
from walferry.migration.repairing import asked_repairs
from walferry.migration.repairing import copy_again as copy_again_module
from walferry.process import open_ledger
from walferry.run.notes.copying_again import Copied, Copying, GivenUpError, copied, copying, end_copying
from walferry.run.run import Run

TABLE = "shop:orders"
Task = Callable[..., dict[str, Any]]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLedger]:
    """A run that follows its log."""
    monkeypatch.setenv("WALFERRY_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    with open_ledger(actor="test") as book:
        run = book.of(book.open_run("move", "test", SPEC, "test").run_id)
        run.phases.start("check_copy")
        run.phases.finish("check_copy", {})
        yield run


@pytest.fixture
def pushed() -> dict[str, Any]:
    """What the task leaves for others before it ends."""
    return {}


@pytest.fixture
def task(ledger: RunLedger, pushed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Task:
    """One try of the task, with these values in the form."""

    def one_try(**params: Any) -> dict[str, Any]:
        form = {key: param.value for key, param in repair.PARAMS.items() if key != "run"}
        context = {
            "params": form | {"run": "move"} | params, "run_id": "manual__1",
            "dag_run": SimpleNamespace(triggering_user_name="ann"),
            "ti": SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value})),
        }  # fmt: skip
        monkeypatch.setattr(repair, "get_current_context", lambda: context)
        facts: dict[str, Any] = repair.repair.function()
        return facts

    return one_try


def row(fault: str = "") -> RepairedRow:
    return RepairedRow(TABLE, b"r\x00", "unexplained", "send 1 cell", 1, fault, 5)


def test_it_is_a_dry_run_unless_somebody_says_otherwise_and_nothing_schedules_it() -> None:
    made = hbase_repair()
    assert made.task_dict.keys() == {"repair"}
    assert made.schedule is None
    assert (made.params["dry_run"], made.params["way"]) == (True, "rows")
    assert made.params.get_param("way").schema["enum"] == ["rows", "copy again"]
    assert made.params.keys() == {"run", "table", "way", "reason", "dry_run"}


def test_a_dry_run_returns_what_the_verb_prints_and_changes_nothing(
    task: Task, ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asked: list[Any] = []

    def plans(run: Run, wanted: Any) -> tuple[list[RepairedRow], list[Any]]:
        asked.append(wanted)
        return [row("refused")], []

    monkeypatch.setattr(asked_repairs, "plans", plans)
    before = len(ledger.audit_trail())
    facts = task()
    assert asked == [{TABLE: {}}]
    assert (facts["run"], facts["dry_run"], facts["all_rows"]) == ("move-1", True, 1)
    assert facts["rows"][0]["row"] == r"r\x00"
    assert r"would repair shop:orders r\x00 (unexplained): NOT REPAIRED: refused" in caplog.text
    assert len(ledger.audit_trail()) == before


def test_rows_are_repaired_as_the_verb_does_with_the_persons_name_and_reason_in_the_audit_trail(
    task: Task, ledger: RunLedger, pushed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def repair_now(run: Run, wanted: Any) -> list[RepairedRow]:
        made.append(run.actor)
        return [row()]

    monkeypatch.setattr(asked_repairs, "repair_now", repair_now)
    assert task(dry_run=False, reason="it was spoilt")["all_rows"] == 1
    assert made == ["airflow ann"]
    (line,) = [line for line in ledger.audit_trail() if line.action == "ask for a repair"]
    assert (line.actor, line.inputs["reason"]) == ("airflow ann", "it was spoilt")
    monkeypatch.setattr(asked_repairs, "repair_now", lambda run, wanted: [row("the target refuses its cells")])
    with pytest.raises(AirflowFailException, match="1 row of move-1 cannot be repaired now"):
        task(dry_run=False, reason="it was spoilt")
    assert pushed["repaired"]["rows"][0]["fault"] == "the target refuses its cells"


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"run": "other"}, "knows no run 'other'"),
        ({"table": "nothing"}, "has no table 'nothing'"),
        ({"way": "copy again", "table": "nothing"}, "has no table 'nothing'"),
        ({"way": "copy again"}, "name the table that is to be copied again"),
        ({"dry_run": False}, "give a reason"),
        ({"dry_run": False, "reason": " "}, "give a reason"),
    ],
)
def test_what_a_person_has_to_mend_fails_at_once_in_one_line(task: Task, params: dict[str, Any], why: str) -> None:
    with pytest.raises(AirflowFailException, match=why) as error:
        task(**params)
    assert "\n" not in str(error.value)
    assert error.value.__suppress_context__, "no traceback"


def test_once_the_target_is_open_copying_again_is_refused_for_good(task: Task, ledger: RunLedger) -> None:
    for phase in ("approve", "open_target"):
        ledger.phases.start(phase)
        ledger.phases.finish(phase, {"at_ms": 1})
    for dry_run in (True, False):
        with pytest.raises(AirflowFailException, match="would lose what clients have written to it"):
            task(way="copy again", table=TABLE, reason="too much differs", dry_run=dry_run)
    assert not copying(ledger)
    ledger.end("done", "kim")
    with pytest.raises(AirflowFailException, match="only rows of an unfinished migration are repaired"):
        task()


def test_a_dry_run_of_copying_again_returns_its_plan(
    task: Task, ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    side = SimpleNamespace(regions=lambda table: [1, 2], held_bytes=lambda: {TABLE: 5_000_000}, close=lambda: None)
    monkeypatch.setattr(Run, "source", side)
    monkeypatch.setattr(Run, "target", side)
    facts = task(way="copy again", table=TABLE)
    assert (facts["regions"], facts["source_bytes"], facts["seconds"]) == (2, 5_000_000, None)
    assert "would copy 2 regions of shop:orders again: 5 MB as they are stored, time unknown" in caplog.text
    assert not copying(ledger)


def finished(ledger: RunLedger) -> Copying:
    now = copying(ledger)[TABLE]
    done = Copying(now.by, now.reason, now.asked_ms, now.nonce, True, rest=None, cells=7, size=9, request=now.request)
    end_copying(ledger, TABLE, done, lambda connection: None)
    return done


def test_a_try_that_is_lost_is_followed_by_one_that_goes_on_and_does_nothing_twice(
    task: Task, ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def go_on(run: Run, *_: Any) -> Copying:
        begun.append(copying(run.ledger)[TABLE].asked_ms)
        if len(begun) < 3:
            raise TransientError("the target does not answer")
        return finished(run.ledger)

    monkeypatch.setattr(copy_again_module, "go_on", go_on)
    form = {"way": "copy again", "table": TABLE, "dry_run": False, "reason": "too much differs"}
    for _ in range(2):
        with pytest.raises(TransientError) as error:
            task(**form)
        assert not isinstance(error.value, AirflowFailException), "Airflow tries again"
    assert task(**form) == {"run": "move-1", "dry_run": False, "table": TABLE, "cells": 7, "bytes": 9}
    assert len(set(begun)) == 1, "the table is emptied once"
    assert copied(ledger)[TABLE].by == "airflow ann"
    assert isinstance(copied(ledger)[TABLE], Copied)
    task(**form)
    assert len(begun) == 3, "a try after the one that had done it"


def test_a_try_after_somebody_has_ended_the_copying_does_not_begin_it_anew(
    task: Task, ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(run: Run, *_: Any) -> Copying:
        copy_again_module.give_up(run, TABLE, "enough")
        raise GivenUpError("somebody has ended it")

    monkeypatch.setattr(copy_again_module, "go_on", ended)
    form = {"way": "copy again", "table": TABLE, "dry_run": False, "reason": "too much differs"}
    for why in ("somebody has ended it", "that this request had started"):
        with pytest.raises(AirflowFailException, match=why):
            task(**form)
    assert not copying(ledger)

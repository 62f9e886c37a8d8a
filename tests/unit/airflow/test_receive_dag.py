"""The DAG hbase_receive: it watches processes that serve elsewhere until a person ends their run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from unit.airflow.dag_ledger import book as book
from unit.receive.two_clusters import KEYS
from unit.run.progress.received_ledger import come, receiver, refuses
from walferry.airflow import watch_alerts
from walferry.airflow.dags import hbase_receive
from walferry.airflow.dags import receive as dag_module
from walferry.airflow.sensors import ReceiveSensor
from walferry.airflow.triggers import NextLookTrigger
from walferry.ledger import Ledger
from walferry.receive import watching


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is told; the webhook has taken all of it."""
    told: list[dict[str, Any]] = []

    def send(message: dict[str, Any]) -> bool:
        told.append(message)
        return True

    monkeypatch.setattr(watch_alerts, "send", send)
    return told


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The task `find` of a DAG run with this name in its form."""

    def of(name: str = "east") -> str:
        monkeypatch.setattr(dag_module, "get_current_context", lambda: {"params": {"name": name}})
        return str(dag_module.find.function())

    return of


@pytest.fixture
def run(book: Ledger) -> str:
    return book.open_run("east", "kim", KEYS, "kim", "receive").run_id


def looks(run: str, tolerated: float | str = 120, **kwargs: Any) -> Any:
    """One look of the task `watch`."""
    return ReceiveSensor(task_id="watch", run=run, look_seconds="30", tolerated_seconds=tolerated).look({}, **kwargs)


def looked(run: str, tolerated: float | str = 120, **kwargs: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as waits:
        looks(run, tolerated, **kwargs)
    return waits.value


def test_it_is_started_by_a_person_and_looks_on_whatever_kills_it() -> None:
    made = hbase_receive()
    assert list(made.task_dict) == ["find", "watch"]
    assert made.schedule is None
    assert made.get_task("watch").upstream_task_ids == {"find"}
    assert made.get_task("watch").retries == 1_000_000
    assert DagSerialization.to_dict(made)["dag"]["dag_id"] == "hbase_receive"


def test_the_run_is_found_by_its_name_or_id(run: str, find: Callable[..., str]) -> None:
    assert (find("east"), find("east-1")) == (run, run)


def test_an_unknown_name_and_a_run_of_another_kind_fail_for_good_in_one_line(
    book: Ledger, run: str, find: Callable[..., str]
) -> None:
    with pytest.raises(AirflowFailException, match="knows no run 'west'; its newest are east-1"):
        find("west")
    book.open_run("west", "kim", KEYS | {"name": "west"}, "kim")
    with pytest.raises(AirflowFailException, match="west-1 is a run of kind migration: name a run of `walferry rec"):
        find("west")


def test_without_a_ledger_the_task_makes_none(
    find: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_LEDGER", f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(AirflowFailException, match="no ledger"):
        find()
    assert not (tmp_path / "none.db").exists()


def test_between_two_looks_the_task_waits_without_a_worker(book: Ledger, run: str) -> None:
    book.of(run).received.beat(receiver())
    waits = looked(run)
    assert isinstance(waits.trigger, NextLookTrigger)
    assert (waits.method_name, waits.trigger.seconds, waits.trigger.run_id) == ("look", 30.0, run)
    assert waits.kwargs == {"before": "idle"}


def test_a_state_is_logged_when_it_changes(book: Ledger, run: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "walferry.airflow.sensors")
    book.of(run).received.beat(receiver())
    before = looked(run).kwargs
    looked(run, **(before or {}))
    assert [record.message for record in caplog.records] == ["idle: the source has sent nothing yet"]


def test_each_trouble_is_told_once_until_it_has_passed_whoever_looks(
    book: Ledger, run: str, messages: list[dict[str, Any]]
) -> None:
    received = book.of(run).received
    received.beat(receiver(ago_s=119))
    looked(run, "120")
    assert messages == []
    received.beat(receiver(ago_s=121))
    looked(run, "120")
    looked(run, "120")
    received.beat(receiver())
    looked(run, "120")
    received.beat(receiver(ago_s=121))
    looked(run, "120")
    assert [(one["event"], one["run"], one["what"]) for one in messages] == [("receive", run, ["no receiver"])] * 2
    assert "no process serves" in messages[0]["message"]


def test_refusals_and_a_lag_are_told_side_by_side(book: Ledger, run: str, messages: list[dict[str, Any]]) -> None:
    book.of(run).received.beat(refuses())
    come(book.of(run), age_s=40)
    looked(run, 0)
    assert [(one["event"], one["what"]) for one in messages] == [("receive", ["refusing"]), ("lag", ["lag"])]


def test_what_the_webhook_has_not_taken_is_sent_with_the_next_look(
    book: Ledger, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter([False, True])
    monkeypatch.setattr(watch_alerts, "send", lambda message: next(taken))
    looked(run, 0)
    looked(run, 0)
    assert next(taken, None) is None
    looked(run, 0)


def test_each_look_sends_its_gauges(book: Ledger, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, float] = {}

    def gauge(name: str, value: float, tags: dict[str, str]) -> None:
        assert tags == {"run": run}
        sent[name] = value

    monkeypatch.setattr("walferry.airflow.metrics.stats.gauge", gauge)
    book.of(run).received.beat(refuses())
    looked(run)
    assert sent == {"walferry.receive_processes": 1, "walferry.receive_refused": 2}
    come(book.of(run))
    looked(run)
    assert 1 <= sent["walferry.receive_lag_seconds"] < 30


def test_the_task_ends_with_the_run_and_says_how_it_ended(book: Ledger, run: str) -> None:
    book.of(run).end("aborted", "kim", "moved on")
    assert looks(run) == {"run": run, "state": "aborted", "outcome": "moved on"}


def test_a_person_may_end_the_run_while_it_is_looked_at(
    book: Ledger, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = watching.look

    def ended(ledger: Any, tolerated: float) -> Any:
        seen = look(ledger, tolerated)
        book.of(run).end("aborted", "kim", "moved on")
        return seen

    monkeypatch.setattr(watching, "look", ended)
    assert looks(run)["state"] == "aborted"

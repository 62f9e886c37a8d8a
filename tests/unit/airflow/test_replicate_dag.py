"""The DAG hbase_replicate: its form is the spec's, and its tasks look until a person ends the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from unit.airflow.dag_ledger import book as book
from unit.replication.watch_ledger import SERVER, STOP, Clusters, peer, waiting
from unit.replication.watch_ledger import clusters as clusters
from walferry.airflow import metrics, watch_alerts
from walferry.airflow.dags import hbase_replicate
from walferry.airflow.dags import replicate as dag_module
from walferry.airflow.sensors import ReplicationSensor
from walferry.airflow.triggers import NextLookTrigger
from walferry.ledger import Ledger
from walferry.replication import watching
from walferry.replication.spec import ReplicateSpec
from walferry.run.progress.state import state_of


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
def plan(book: Ledger, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The task `plan` of a DAG run, with these values in its form."""

    def of(run_id: str = "manual__1", **params: Any) -> str:
        form = {key: param.value for key, param in dag_module.PARAMS.items()}
        context = {"params": form | params, "run_id": run_id}
        monkeypatch.setattr(dag_module, "get_current_context", lambda: context)
        return str(dag_module.plan.function())

    return of


def looks(run: str, dag_run: str = "manual__1") -> Any:
    """The task `watch` of a DAG run."""
    return ReplicationSensor(task_id="watch", run=run).execute({"run_id": dag_run})


def looked(run: str) -> float:
    """Look once; the seconds until the next look."""
    with pytest.raises(TaskDeferred) as waits:
        looks(run)
    assert waits.value.method_name == "look"
    trigger = waits.value.trigger
    assert isinstance(trigger, NextLookTrigger)
    return trigger.seconds


def test_each_key_of_the_spec_has_its_field_with_the_models_words() -> None:
    assert dag_module.PARAMS.keys() == ReplicateSpec.model_fields.keys()
    for key, model in ReplicateSpec.model_fields.items():
        field = dag_module.PARAMS[key]
        assert field.schema["title"] == model.title
        assert (field.description or "").startswith(model.description or "")


def test_it_is_started_by_a_person_and_looks_on_whatever_kills_it() -> None:
    made = hbase_replicate()
    assert list(made.task_dict) == ["plan", "watch"]
    assert made.schedule is None
    assert made.get_task("watch").upstream_task_ids == {"plan"}
    assert made.get_task("watch").retries == 1_000_000
    assert DagSerialization.to_dict(made)["dag"]["dag_id"] == "hbase_replicate"


def test_a_look_is_recorded_and_the_task_waits_without_a_worker(
    book: Ledger, plan: Callable[..., str], clusters: Clusters
) -> None:
    run = plan(look_seconds=30)
    assert clusters.plans == 1
    assert looked(run) == 30
    assert state_of(book.of(run)).name == "following"
    assert clusters.plans == 1


def test_what_the_plan_finds_does_not_fail_the_task_and_a_form_again_looks_at_once(
    book: Ledger, plan: Callable[..., str], clusters: Clusters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clusters.findings = [STOP]
    run = plan()
    assert f"stop: {STOP.subject}: {STOP.message}" in caplog.text
    assert plan("manual__2", tables=["audit:*"]) == run
    assert clusters.plans == 2
    assert f"{run} is taken over from airflow manual__1; changed: replicated: ['*'] -> ['audit:*']" in caplog.text


def test_a_form_that_cannot_be_used_fails_for_good(plan: Callable[..., str]) -> None:
    with pytest.raises(AirflowFailException, match="system tables are not replicated"):
        plan(tables=["hbase:meta"])


def test_each_trouble_is_told_once_until_it_has_passed(
    plan: Callable[..., str], clusters: Clusters, messages: list[dict[str, Any]]
) -> None:
    run = plan()
    for queue in (waiting(301), waiting(361), waiting(3), waiting(302)):
        clusters.peers = (peer(queue),)
        looked(run)
    assert [(one["event"], one["run"]) for one in messages] == [("replication", run)] * 2
    assert "an edit of shop:orders has not been shipped for 5 min 01 s" in messages[0]["message"]


def test_a_source_that_does_not_answer_is_told_and_the_next_look_follows(
    plan: Callable[..., str], clusters: Clusters, messages: list[dict[str, Any]]
) -> None:
    run = plan()
    clusters.fault = "ZooKeeper at zk:2181 does not answer"
    looked(run)
    looked(run)
    assert [(one["event"], one["what"]) for one in messages] == [("unwatched", ["queues"])]
    assert clusters.fault in messages[0]["message"]


def test_a_look_that_fails_ends_no_trouble_and_a_new_one_is_told_alone(
    plan: Callable[..., str], clusters: Clusters, messages: list[dict[str, Any]]
) -> None:
    run = plan()
    clusters.peers = (peer(waiting(301)),)
    looked(run)
    clusters.fault = "ZooKeeper at zk:2181 does not answer"
    looked(run)
    clusters.fault = ""
    clusters.peers = (peer(waiting(361), replace(waiting(400), server="rs2,16020,2", writer="rs2,16020,2")),)
    looked(run)
    assert [one["event"] for one in messages] == ["replication", "unwatched", "replication"]
    assert "rs2,16020,2" in messages[2]["message"]
    assert SERVER not in messages[2]["message"]


def test_a_person_may_end_the_run_while_it_is_looked_at(
    book: Ledger, plan: Callable[..., str], clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plan()

    def look(*_: Any) -> Any:
        book.of(run).end("aborted", "kim", "no longer needed")
        return clusters.status()

    monkeypatch.setattr(watching, "look", look)
    assert looks(run) == "aborted: no longer needed"


def test_while_the_run_is_paused_nobody_looks(
    book: Ledger, plan: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plan()
    book.set_paused(run, True, "kim")
    monkeypatch.setattr(metrics, "emit_replication", lambda *_: pytest.fail("it has looked"))
    looked(run)
    assert state_of(book.of(run)).name == "paused"


def test_the_task_ends_with_the_run_and_is_skipped_if_another_dag_run_goes_on(
    book: Ledger, plan: Callable[..., str]
) -> None:
    run = plan()
    plan("manual__2")
    with pytest.raises(AirflowSkipException, match="belongs to airflow manual__2"):
        looks(run)
    book.of(run).end("aborted", "kim", "no longer needed")
    assert looks(run, "manual__2") == "aborted: no longer needed"

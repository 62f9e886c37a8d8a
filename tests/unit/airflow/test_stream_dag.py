"""The DAG hbase_stream: its form is the spec's, its connections are Airflow's, and its tasks end as the run does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NoReturn

import jsonschema
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from unit.airflow.dag_ledger import book as book
from unit.run.progress.brought import finish
from unit.streams.stream_ledger import PARAMS, TABLES
from walferry.airflow.dags import hbase_history, hbase_stream
from walferry.airflow.dags import history as history_module
from walferry.airflow.dags import stream as dag_module
from walferry.airflow.kafka import KafkaHook
from walferry.airflow.secret_connection import secret_connection
from walferry.errors import TransientError, UsageError
from walferry.ledger import Ledger
from walferry.run.heartbeat import NOTE
from walferry.run.phases import phases_of
from walferry.run.run import RunEndedError
from walferry.run.turn import Turn
from walferry.streams import stream as following
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.start import start_stream
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import ONLY_KAFKA, StreamSpec, catalog_settings, parse_stream_spec

Act = Callable[[StreamRun], None]


@pytest.fixture
def dag_run(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let tasks be those of a DAG run, with these values in its form."""

    def of(run_id: str, **params: Any) -> None:
        form = {key: param.value for key, param in dag_module.PARAMS.items()} | PARAMS
        context = {"params": form | params, "run_id": run_id}
        monkeypatch.setattr(dag_module, "get_current_context", lambda: context)

    of("manual__1")
    return of


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phase `plan` finds nothing in the way."""
    monkeypatch.setitem(following.WORK, "plan", lambda run: run.once("plan", dict))


@pytest.fixture
def follows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Let something happen while the phase `stream` is at work."""

    def while_following(act: Act) -> None:
        def follow(run: StreamRun) -> NoReturn:
            act(run)
            raise RunEndedError(f"run {run.run_id} has ended")

        monkeypatch.setattr(following, "follow", follow)

    return while_following


@pytest.mark.parametrize("dag", [hbase_stream, hbase_history])
def test_each_phase_is_a_task_and_the_stream_goes_on_whatever_kills_it(dag: Callable[[], DAG]) -> None:
    made = dag()
    names = [phase.name for phase in phases_of("stream")]
    assert list(made.task_dict) == names
    for before, after in pairwise(names):
        assert made.get_task(after).upstream_task_ids == {before}
    assert made.get_task("stream").retries == 1_000_000
    assert made.schedule is None
    assert made.max_active_runs == made.max_active_tasks == 100, "each stream is a run of its own"


def test_each_key_of_the_spec_has_its_field_with_the_models_words() -> None:
    of_history = history_module.params()
    assert dag_module.PARAMS.keys() == StreamSpec.model_fields.keys() - {"parquet"}
    assert of_history.keys() == StreamSpec.model_fields.keys() - set(ONLY_KAFKA)
    for key, model in StreamSpec.model_fields.items():
        field = of_history[key] if key in of_history else dag_module.PARAMS[key]
        assert field.schema["title"] == model.title
        assert (field.description or "").startswith(model.description or "")


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("name", "changes", "Changes"),
        ("source", "hbase_old", {"zookeeper": "zk:2181"}),
        ("kafka", "kafka_other", {"bootstrap": "broker:9092"}),
        ("tables", ["shop:*", "t"], []),
        ("topic", "all", 5),
        ("create_topics", {"partitions": 3}, {"replication": 2}),
        ("create_topics", None, 3),
        ("bytes_as", "utf8", "text"),
        ("rows", [{"start": "a"}], ["a"]),
        ("decode", "my.module:decode", "my.module.decode"),
        ("decode", None, 5),
        ("positions", None, 5),
        ("epoch", 2, 0),
        ("max_lag", 1, 0),
        ("source_requests", {"namenode": 10.5}, {"namenode": 9}),
    ],
)
def test_the_form_takes_and_refuses_what_the_spec_does(key: str, good: Any, bad: Any) -> None:
    field = dag_module.PARAMS[key].schema
    jsonschema.validate(good, field)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, field)


def test_what_is_left_empty_is_as_the_spec_has_it(book: Ledger, dag_run: Any, planned: None) -> None:
    run = book.run(dag_module.plan.function())
    recorded = dict(run.spec)
    assert (run.run_id, run.kind, run.owner) == ("changes-1", "stream", "airflow manual__1")
    assert recorded.pop("source")["zookeeper"] == "127.0.0.1:1"
    spec = parse_stream_spec({"name": "changes", "tables": TABLES}, origin="test").model_dump(mode="json")
    assert recorded == {key: value for key, value in spec.items() if key != "source"}


def test_a_history_needs_a_folder_and_neither_kafkas_client_nor_its_connection(
    book: Ledger, monkeypatch: pytest.MonkeyPatch, planned: None
) -> None:
    def triggered(**given: Any) -> str:
        form = {key: param.value for key, param in history_module.params().items()} | {"tables": TABLES} | given
        monkeypatch.setattr(dag_module, "get_current_context", lambda: {"params": form, "run_id": "manual__1"})
        run_id: str = dag_module.plan.function()
        return run_id

    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(AirflowFailException, match="parquet: give a folder"):
        triggered()
    recorded = book.run(triggered(parquet={"folder": "/history", "commit_seconds": 5})).spec
    assert recorded["parquet"] == {
        "folder": "/history",
        "commit_seconds": 5.0,
        "commit_bytes": 64_000_000,
        "iceberg": None,
    }
    assert recorded["max_lag"] == 35


def test_a_key_that_no_spec_has_fails_at_once(dag_run: Any, planned: None) -> None:
    dag_run("manual__1", target="hbase_target")
    with pytest.raises(AirflowFailException, match="target: this key does not belong here"):
        dag_module.plan.function()


def test_another_dag_run_goes_on_with_the_stream_and_may_give_it_more_tables(
    book: Ledger, dag_run: Any, planned: None
) -> None:
    run_id = dag_module.plan.function()
    dag_run("manual__2", tables=[*TABLES, "more"])
    book.of(run_id).notes.keep(NOTE, {"by": "airflow"}, "stream")
    with pytest.raises(AirflowException, match="has been working on changes-1") as busy:
        dag_module.plan.function()
    assert not isinstance(busy.value, AirflowFailException), "it may end within seconds"
    book.of(run_id).notes.drop(NOTE, "stream")
    assert dag_module.plan.function() == run_id
    assert (book.run(run_id).owner, book.run(run_id).spec["tables"]) == ("airflow manual__2", [*TABLES, "more"])
    dag_run("manual__1")
    with pytest.raises(AirflowSkipException, match="changes-1 belongs to airflow manual__2, which goes on with it"):
        dag_module.stream.function(run_id)


def test_the_task_succeeds_once_a_person_has_ended_the_stream(
    book: Ledger, dag_run: Any, planned: None, follows: Any
) -> None:
    run_id = dag_module.plan.function()
    follows(lambda run: book.of(run_id).end("aborted", "kim", "no longer needed"))
    assert dag_module.stream.function(run_id) == "no longer needed"


def test_a_task_whose_run_was_aborted_before_is_skipped(book: Ledger, dag_run: Any, planned: None) -> None:
    run_id = dag_module.plan.function()
    book.of(run_id).end("aborted", "kim", "no longer needed")
    with pytest.raises(AirflowSkipException, match="changes-1 was aborted: no longer needed"):
        dag_module.do.function(run_id, "protect")
    with pytest.raises(AirflowSkipException, match="changes-1 was aborted: no longer needed"):
        dag_module.stream.function(run_id)


def test_a_task_whose_stream_another_process_has_taken_over_is_skipped_and_not_tried_again(
    book: Ledger, dag_run: Any, planned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(run: StreamRun, turn: Turn) -> None:
        book.of(run.run_id).phases.start("stream")
        turn.require()

    run_id = dag_module.plan.function()
    finish(book.of(run_id), "protect", "fence")
    monkeypatch.setattr(following, "_follow", overtaken)
    with pytest.raises(AirflowSkipException, match="another process has taken over changes-1"):
        dag_module.stream.function(run_id)
    assert book.run(run_id).state == "running"
    phase = book.of(run_id).phases.find("stream")
    assert phase is not None
    assert (phase.state, phase.attempts) == ("running", 2), "it is the other's"


def test_a_task_whose_run_has_failed_fails(dag_run: Any, planned: None, follows: Any) -> None:
    run_id = dag_module.plan.function()
    follows(lambda run: run.ledger.end("failed", "kim", "it was"))
    with pytest.raises(AirflowFailException, match="run changes-1 has ended"):
        dag_module.stream.function(run_id)


# ------------------------------------------------------------------ Kafka's connection


def test_kafka_is_reached_by_airflows_connection_whose_secrets_are_nowhere_else(
    book: Ledger, dag_run: Any, planned: None, follows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"security.protocol": "SASL_SSL", "group.id": "of-consumers", "ssl.key.password": "hush-2"}
    fields = {"conn_type": "kafka", "host": "k1,k2:9094", "port": 9093, "login": "kim", "password": "hush-1"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(fields | {"extra": extra}))
    seen: list[KafkaSettings] = []

    def look(run: StreamRun) -> None:
        seen.append(run.kafka())
        run.ledger.end("aborted", "kim", "seen")

    run_id = dag_module.plan.function()
    follows(look)
    dag_module.stream.function(run_id)
    assert seen[0].client_settings() == {
        "bootstrap.servers": "k1:9093,k2:9094", "security.protocol": "SASL_SSL", "sasl.username": "kim",
        "sasl.password": "hush-1", "ssl.key.password": "hush-2",
    }  # fmt: skip
    texts = [repr(seen[0]), str(seen[0].model_dump()), repr(secret_connection("kafka_default")), str(book.run(run_id))]
    texts += [str(line) for line in book.of(run_id).audit_trail()]
    assert [text for text in texts if "hush" in text] == []


def test_an_iceberg_catalogue_is_reached_by_airflows_connection_whose_secrets_are_nowhere_else(
    book: Ledger, dag_run: Any, planned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"conn_type": "generic", "login": "kim", "password": "hush-1", "extra": {"uri": "postgresql://db/lake"}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))
    parquet = {"folder": "/history", "iceberg": {"catalog": "lake", "namespace": "shop"}}
    form = {key: param.value for key, param in history_module.params().items()} | {"tables": TABLES, "parquet": parquet}
    monkeypatch.setattr(dag_module, "get_current_context", lambda: {"params": form, "run_id": "manual__1"})
    run_id = dag_module.plan.function()
    with dag_module.stream_step(run_id) as run:
        found = catalog_settings(run.spec, run.secrets)
    assert found.properties["uri"] == "postgresql://kim:hush-1@db/lake"
    texts = [repr(found), str(book.run(run_id)), *(str(line) for line in book.of(run_id).audit_trail())]
    assert [text for text in texts if "hush" in text] == []


def test_a_connection_that_airflow_does_not_give_may_be_there_later(dag_run: Any) -> None:
    with pytest.raises(TransientError, match="Airflow does not give the connection kafka_none: add it, or look"):
        secret_connection("kafka_none")


def test_the_forms_test_says_in_one_line_why_kafka_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from walferry.airflow import kafka

    monkeypatch.setattr(kafka, "TEST_SECONDS", 1.0)
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({"conn_type": "kafka", "host": "127.0.0.1", "port": 1}))
    reached, message = KafkaHook("tried").test_connection()
    assert not reached
    assert message.startswith("Kafka at 127.0.0.1:1, listing topics: ")
    assert "\n" not in message
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({"conn_type": "kafka", "extra": {"acks": "1"}}))
    reached, message = KafkaHook("tried").test_connection()
    assert message.startswith("the connection: bootstrap: must be ")


def test_a_stream_of_the_shell_is_not_taken_from_a_live_process(book: Ledger) -> None:
    from walferry.airflow.hook import airflow_connection

    run_id = start_stream(book, PARAMS, airflow_connection, "cli kim")
    book.of(run_id).notes.keep(NOTE, {"by": "kim@desk"}, "")
    with pytest.raises(UsageError, match="kim@desk"):
        start_stream(book, PARAMS, airflow_connection, "airflow manual__1")
    assert book.run(run_id).owner == "cli kim"

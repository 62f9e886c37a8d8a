"""What is told, to a real webhook on this machine, and what never is."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.callback import PAYLOAD_STATUS_KEY, CallbackTrigger
from airflow.utils.state import CallbackState

from walferry.airflow.notifiers import WalferryNotifier, alert_of, kind_of, send
from walferry.airflow.operators import final_errors
from walferry.airflow.watch_alerts import alert_once
from walferry.errors import GapError, GateShutError, UsageError
from walferry.ledger import Ledger
from walferry.run.spec import Cluster
from walferry.watch.watch import RunFacts, watch_run

TOKEN = "a-token-nobody-may-see"


class Webhook:
    """Keeps what is posted to it; answers with `code`."""

    def __init__(self) -> None:
        self.code = 200
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                hook.headers.append(dict(self.headers))
                hook.paths.append(self.path)
                self.send_response(hook.code)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    hook = Webhook()
    connection = {
        "conn_type": "http", "schema": "http", "host": "127.0.0.1", "port": hook.server.server_port,
        "password": TOKEN, "extra": {"path": "/alerts"},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_WALFERRY_WEBHOOK", json.dumps(connection))
    thread = threading.Thread(target=hook.server.serve_forever, args=[0.01])
    thread.start()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
    thread.join()


def ended_by(error: Exception) -> BaseException:
    """The error that Airflow sees when a task's work raises this one."""
    with pytest.raises(Exception) as caught, final_errors():
        raise error
    return caught.value


def context(error: BaseException) -> dict[str, Any]:
    instance = SimpleNamespace(dag_id="hbase_migrate", run_id="manual__1", task_id="check_drain")
    return {"exception": error, "task_instance": instance, "task": SimpleNamespace(), "dag_run": None}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GateShutError("the gate is shut: 1 item", reasons=["1 item"]), "gate"),
        (GapError("WAL file x is missing", file="x", start=0, end=None), "gap"),
        (UsageError("unknown key"), "failure"),
    ],
)
def test_the_error_behind_a_failed_task_says_what_it_is_told_as(error: Exception, kind: str) -> None:
    seen = ended_by(error)
    assert isinstance(seen, AirflowFailException)
    assert kind_of(seen) == kind


def test_an_error_that_is_its_own_cause_has_a_kind() -> None:
    error = OSError("reset")
    error.__cause__ = error
    assert kind_of(error) == "failure"


def test_a_failed_spark_app_is_told_by_the_phase_that_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("WALFERRY_LEDGER", url)
    with Ledger.open(url) as ledger:
        run = ledger.open_run("move", "me", {"tables": ["t"]}, "me")
        ledger.of(run.run_id).phases.start("replay")
        ledger.of(run.run_id).phases.fail("replay", "GapError: WAL file x is missing")
    task = SimpleNamespace(run=run.run_id, phase="replay")
    assert kind_of(AirflowFailException("WAL file x is missing"), task) == "gap"
    assert kind_of(AirflowFailException("no ledger"), SimpleNamespace(run="unknown-1", phase="replay")) == "failure"


def test_a_failure_reaches_the_webhook_as_one_json_object(webhook: Webhook) -> None:
    WalferryNotifier()(context(ended_by(GateShutError("the gate is shut: 1 item", reasons=["1 item"]))))
    assert webhook.messages == [
        {
            "event": "gate", "dag": "hbase_migrate", "dag_run": "manual__1", "task": "check_drain", "run": None,
            "message": "the gate is shut: 1 item",
        }
    ]  # fmt: skip
    assert webhook.paths == ["/alerts"]
    assert webhook.headers[0]["Authorization"] == f"Bearer {TOKEN}"


def test_a_missed_deadline_is_told_with_its_own_words() -> None:
    message = alert_of({"dag_run": {"dag_id": "hbase_wal_drain", "dag_run_id": "asset__1"}}, "lag", "not in time")
    assert message["event"] == "lag"
    assert (message["dag"], message["dag_run"]) == ("hbase_wal_drain", "asset__1")
    assert message["message"] == "not in time"


def test_a_webhook_that_refuses_or_is_gone_is_logged_without_its_secret(
    webhook: Webhook, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    webhook.code = 500
    assert not send({"event": "gap"})
    free = {"conn_type": "http", "schema": "http", "host": "127.0.0.1", "port": 1, "password": TOKEN}
    monkeypatch.setenv("AIRFLOW_CONN_WALFERRY_WEBHOOK", json.dumps(free))
    assert not send({"event": "gap"})
    assert "refused a message: 500" in caplog.text
    assert "did not accept a message" in caplog.text
    assert TOKEN not in caplog.text


def test_without_a_webhook_the_message_is_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_WALFERRY_WEBHOOK", raising=False)
    assert send({"event": "gap", "message": "a file is gone"})
    assert "a file is gone" in caplog.text


def test_the_watch_tells_each_thing_once_and_again_when_the_webhook_was_away(webhook: Webhook, tmp_path: Path) -> None:
    facts = RunFacts("move-1", 400.0, None, (), 0, 0.0, {}, 1, 1, None, None, max_lag=30, lost=("file.3",), held=(7,))
    cluster = Cluster(zookeeper="zk:2181", webhdfs="http://nn:9870", rootdir="hdfs://nn:8020/hbase")
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        watch = watch_run(ledger, "hbase_source", cluster)
        webhook.code = 500
        alert_once(ledger, watch, "hbase_source", facts)
        webhook.code = 200
        webhook.messages.clear()
        alert_once(ledger, watch, "hbase_source", facts)
        assert [(m["event"], m["what"]) for m in webhook.messages] == [
            ("gap", ["file.3"]), ("quarantine", ["7"]), ("lag", ["late"])
        ]  # fmt: skip
        webhook.messages.clear()
        alert_once(ledger, watch, "hbase_source", facts)
        assert webhook.messages == []
        alert_once(ledger, watch, "hbase_source", replace(facts, lag_seconds=20.0, held=(7, 8)))
        alert_once(ledger, watch, "hbase_source", replace(facts, held=(7, 8)))
        assert [(m["event"], m["what"]) for m in webhook.messages] == [("quarantine", ["8"]), ("lag", ["late"])]


def test_airflow_calls_it_for_a_missed_deadline(webhook: Webhook) -> None:
    context = {"dag_run": {"dag_id": "hbase_wal_drain", "dag_run_id": "asset__1"}, "deadline": {"id": "1"}}
    kwargs = {"event": "lag", "message": "sealed edits were not applied", "context": context}
    trigger = CallbackTrigger("walferry.airflow.notifiers.WalferryNotifier", kwargs)

    async def states() -> list[Any]:
        return [event.payload[PAYLOAD_STATUS_KEY] async for event in trigger.run()]

    assert asyncio.run(states())[-1] == CallbackState.SUCCESS
    assert [(m["event"], m["dag"], m["message"]) for m in webhook.messages] == [
        ("lag", "hbase_wal_drain", "sealed edits were not applied")
    ]

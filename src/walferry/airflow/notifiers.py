"""Alerts for events that need a person: a gap, an item in quarantine, a shut gate, a growing lag, any other failure.

A message is one JSON object. It is POSTed to the Airflow connection `walferry_webhook` (type http: schema, host, port;
extra `path`; password, if any, as Bearer token), or logged when there is no such connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import requests
from airflow.sdk import BaseHook, BaseNotifier, Connection
from airflow.sdk.exceptions import AirflowException

from walferry.errors import WalferryError, causes
from walferry.process import open_ledger

log = logging.getLogger(__name__)

CONNECTION = "walferry_webhook"
TIMEOUT_SECONDS = 10.0
KINDS = {
    "GapError": "gap",
    "PeerChangedError": "gap",
    "GateShutError": "gate",
    "SidesDifferError": "gate",
    "DecisionNeededError": "gate",
    "DamagedInputError": "quarantine",
}
"""Class of the error that ended a task -> kind of the alert; other errors are a `failure`."""


class WalferryNotifier(BaseNotifier):
    """For `on_failure_callback` and deadlines. `event` is the kind of the alert if the context holds no error."""

    template_fields = ("message",)

    def __init__(self, event: str = "failure", message: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.event = event
        self.message = message

    def notify(self, context: Any) -> None:
        """Send the message for the context; a webhook's failure is logged, never raised."""
        send(alert_of(context, self.event, self.message))

    async def async_notify(self, context: Any) -> None:
        """The same in the triggerer, for deadlines: callbacks in an executor may not read connections."""
        message = alert_of(context, self.event, self.message)
        try:
            connection = await BaseHook.aget_connection(CONNECTION)
        except AirflowException:
            connection = None
        await asyncio.to_thread(_post, connection, message)


def alert_of(context: Mapping[str, Any], event: str = "failure", message: str = "") -> dict[str, Any]:
    """The message for a task (or a DAG run) that failed or was late."""
    error = context.get("exception")
    instance = context.get("task_instance") or context.get("ti")
    dag_run = context.get("dag_run")
    return {
        "event": kind_of(error, context.get("task")) if isinstance(error, BaseException) else event,
        "dag": _field(instance, "dag_id") or _field(dag_run, "dag_id"),
        "dag_run": _field(instance, "run_id") or _field(dag_run, "run_id") or _field(dag_run, "dag_run_id"),
        "task": _field(instance, "task_id"),
        "run": _field(context.get("task"), "run"),
        "message": message or str(error or ""),
    }


def _field(thing: Any, name: str) -> Any:
    """A field of an object (callback of a task) or a mapping (callback of a deadline)."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def kind_of(error: BaseException, task: Any = None) -> str:
    """The kind of alert for an error, from the walferry error that caused it or the one that a Spark app recorded."""
    for cause in causes(error):
        for kind in type(cause).__mro__:
            if isinstance(cause, WalferryError) and kind.__name__ in KINDS:
                return KINDS[kind.__name__]
    return KINDS.get(_failed_phase(task), "failure")


def _failed_phase(task: Any) -> str:
    """The error class that the ledger has for the task's phase; "" when there is none."""
    run, phase = getattr(task, "run", None), getattr(task, "phase", None)
    if not run or not phase:
        return ""
    try:
        with open_ledger(create=False) as ledger:
            failed = [p for p in ledger.of(run).phases.all() if p.phase == phase and p.state == "failed"]
    except WalferryError:
        return ""
    return failed[-1].error_class if failed else ""


def send(message: Mapping[str, Any]) -> bool:
    """POST the message, or log it if there is no webhook. Returns whether it was accepted; never logs URL or token."""
    # Airflow itself logs an unknown connection as an error before it raises.
    try:
        return _post(BaseHook.get_connection(CONNECTION), message)
    except AirflowException:
        return _post(None, message)


def _post(connection: Connection | None, message: Mapping[str, Any]) -> bool:
    if connection is None:
        log.warning("walferry %s: %s", message.get("event"), dict(message))
        return True
    port = f":{connection.port}" if connection.port else ""
    path = str(connection.extra_dejson.get("path", "")).lstrip("/")
    url = f"{connection.schema or 'https'}://{connection.host}{port}/{path}"
    headers = {"Authorization": f"Bearer {connection.password}"} if connection.password else {}
    try:
        answer = requests.post(url, json=dict(message), headers=headers, timeout=TIMEOUT_SECONDS)
    except (requests.RequestException, ValueError) as error:
        # The error's own text quotes the URL.
        log.error("the webhook of connection %s did not accept a message: %s", CONNECTION, type(error).__name__)
        return False
    if not answer.ok:
        log.error("the webhook of connection %s refused a message: %d", CONNECTION, answer.status_code)
    return bool(answer.ok)

"""Parts shared by walferry's DAGs: forms made from the spec, a spec made from form and Variable, default arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from pydantic import BaseModel

from walferry.airflow.notifiers import WalferryNotifier
from walferry.airflow.operators import ACTOR, final_errors
from walferry.errors import UsageError, WalferryError
from walferry.ledger import Ledger
from walferry.process import open_ledger
from walferry.run.heartbeat import RunBusyError
from walferry.run.run import LogRun, RunEndedError
from walferry.run.spec import Cluster, Spec, TimeWindow, unknown_key
from walferry.run.turn import TakenOverError
from walferry.streams.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

AnyRun = TypeVar("AnyRun", bound=LogRun)

TASK_DEFAULTS: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=10),
    "on_failure_callback": WalferryNotifier(),
}
"""`default_args` of a DAG"""

MOST_RUNS = 100
"""runs at once of a DAG whose runs go on for long; Airflow's own limit is 16. The executor's limits apply as well"""
FOR_EVER = 1_000_000
"""retries of a task that goes on whatever kills it, until a person ends its run"""

_CLUSTERS = (Cluster.__name__, KafkaSettings.__name__)
_LIST_HINT = "One per line; enter a mapping in the JSON under Advanced Options."


def spec_params(
    *,
    keys: Sequence[str],
    defaults: Mapping[str, Any],
    else_variable: str | None = None,
    model: type[BaseModel] = Spec,
) -> dict[str, Param]:
    """A form's fields for these keys of the spec, in this order; title, description and schema come from the `model`.

    `defaults` override the model's. A field whose default is an empty text may be left empty. `else_variable` names the
    Airflow Variable for runs that nobody triggers: with it, every field may be left empty, and `spec_keys` combines
    form and Variable.
    """
    schema = model.model_json_schema(by_alias=True)
    params = {}
    for key in keys:
        fields = _form_schema(schema["properties"][key], schema["$defs"])
        value = defaults.get(key, fields.pop("default", None))
        if value == "":
            value, fields["type"] = None, ["null", "string"]
        if else_variable is not None:
            value, fields = _may_stay_empty(fields, value, else_variable)
        params[key] = Param(value, **fields)
    return params


@contextmanager
def owned_step(run_id: str, owner: str, opened: Callable[[Ledger], AnyRun]) -> Iterator[AnyRun]:
    """Open a run for a task of the DAG run that owns it; errors are handled as in `final_errors`.

    A task is skipped if its run was aborted, or if another DAG run goes on with it.
    """
    with final_errors(), open_ledger(actor=ACTOR) as ledger, opened(ledger) as run:
        if run.record.owner != owner:
            raise AirflowSkipException(f"{run_id} belongs to {run.record.owner}, which goes on with it")
        try:
            yield run
        except WalferryError:
            if (record := run.ledger.record).state == "aborted":
                raise AirflowSkipException(f"{run_id} was aborted: {record.outcome}") from None
            raise


@contextmanager
def retried_while_busy() -> Iterator[None]:
    """Let Airflow try a task again while a process still works on the run: a task of an earlier DAG run may be about to
    end."""
    try:
        yield
    except RunBusyError as busy:
        raise AirflowException(str(busy)) from None


def until_ended(run: AnyRun, work: Callable[[AnyRun], NoReturn]) -> str:
    """Work on a run that a person ends. Returns how it ended. The task is skipped, and not tried again, once
    another process goes on with the run."""
    try:
        work(run)
    except RunEndedError:
        record = run.ledger.record
        if record.state != "aborted":
            raise
        log.info("%s was aborted: %s", run.run_id, record.outcome)
        return record.outcome
    except TakenOverError as overtaken:
        raise AirflowSkipException(str(overtaken)) from None


def window_params() -> dict[str, Param]:
    """A form's fields for a window: from and to. Leave both empty for the schedule's window."""
    fields = TimeWindow.model_json_schema(by_alias=True)["properties"]
    return {key: Param(None, **field | {"type": ["null", field["type"]]}) for key, field in fields.items()}


def spec_keys(
    params: Mapping[str, Any], variable: Any, variable_name: str, defaults: Mapping[str, Any], form: Collection[str]
) -> dict[str, Any]:
    """Keys of a spec: params override the Variable's values, which override the defaults.

    Raises AirflowFailException when the Variable is not a JSON object, and UsageError for a key that is not in the
    form; the error names the form's keys.
    """
    if not isinstance(variable, dict):
        raise AirflowFailException(f"the Variable {variable_name} is not a JSON object")
    given = {**variable, **{key: value for key, value in params.items() if value not in (None, [])}}
    faults = [f"{key}: {unknown_key(key)}" for key in given if key not in form]
    if faults:
        raise UsageError(f"params or the Variable {variable_name}: {'; '.join(faults)}. {takes(form)}")
    return {**defaults, **given}


def takes(form: Collection[str]) -> str:
    """A sentence that names a form's keys."""
    first, last = [f"`{key}`" for key in form][:-1], list(form)[-1]
    return f"The form and the Variable take {', '.join(first)} and `{last}`."


def _form_schema(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of one key, without references; a cluster, of HBase or Kafka, is given only by its connection's
    id."""
    found = dict(_without_references(field, definitions))
    kinds = [kind for kind in found.pop("anyOf", ()) if kind.get("title") not in _CLUSTERS]
    choices = [choice for kind in kinds for choice in kind.get("enum", [kind["const"]] if "const" in kind else [])]
    if len(kinds) == 1:
        found = kinds[0] | found
    elif choices:
        found |= {"type": "string", "enum": choices}
    elif kinds and all(kind.keys() == {"type"} for kind in kinds):
        found["type"] = [kind["type"] for kind in kinds]
    elif len(kinds) == 2 and kinds[1] == {"type": "null"}:
        found = kinds[0] | found | {"type": [kinds[0]["type"], "null"]}
    elif kinds:
        found["anyOf"] = kinds
    if "const" in found:
        found["enum"] = [found.pop("const")]
    if found.get("type") == "array":
        found["description"] = f"{found.get('description', '')} {_LIST_HINT}".strip()
    return found


def _without_references(value: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_without_references(each, definitions) for each in value]
    if not isinstance(value, Mapping):
        return value
    whole = {key: _without_references(each, definitions) for key, each in value.items() if key != "$ref"}
    if "$ref" in value:
        return _without_references(definitions[value["$ref"].rpartition("/")[2]], definitions) | whole
    return whole


def _may_stay_empty(fields: dict[str, Any], default: Any, variable: str) -> tuple[Any, dict[str, Any]]:
    """The empty value of a field, and its schema with the empty value allowed."""
    fallback = f"the Variable {variable}" if default is None else f"the Variable {variable}, else {default}"
    fields["description"] = f"{fields.get('description', '')} If empty: {fallback}.".strip()
    if fields["type"] == "array":
        fields.pop("minItems", None)
        return [], fields
    if "null" not in fields["type"]:
        fields["type"] = ["null", fields["type"]]
    if "enum" in fields:
        fields["enum"] = [None, *fields["enum"]]
    return None, fields

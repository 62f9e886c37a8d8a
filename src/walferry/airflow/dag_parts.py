"""What walferry's own DAGs share: forms made from the spec, a spec from form and Variable, default arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

from walferry.airflow.notifiers import WalferryNotifier
from walferry.run.spec import Cluster, Spec, TimeWindow

TASK_DEFAULTS: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=10),
    "on_failure_callback": WalferryNotifier(),
}
"""`default_args` of a DAG"""

OF_MIGRATIONS = frozenset(
    (
        "protect",
        "write_stop",
        "max_comparison_age",
        "follow",
        "compare_ahead",
        "spot_check",
        "repair",
        "unlogged_writes",
    )
)
"""keys of the spec that say nothing to the other DAGs"""

_LIST_HINT = "One per line; enter a mapping in the JSON under Advanced Options."


def spec_params(
    *, without: Collection[str], defaults: Mapping[str, Any], else_variable: str | None = None
) -> dict[str, Param]:
    """A form's fields for all keys of the spec but those in `without`; title, description and schema are the model's.

    `defaults` override the model's. With `else_variable`, an Airflow Variable for runs that nobody triggers, every
    field may be left empty: `spec_keys` combines the two.
    """
    schema = Spec.model_json_schema(by_alias=True)
    params = {}
    for key, field in schema["properties"].items():
        if key in without:
            continue
        fields = _form_schema(field, schema["$defs"])
        value = defaults.get(key, fields.pop("default", None))
        if else_variable is not None:
            value, fields = _may_stay_empty(fields, value, else_variable)
        params[key] = Param(value, **fields)
    return params


def window_params() -> dict[str, Param]:
    """A form's fields for a window: from and to, both empty for the schedule's."""
    fields = TimeWindow.model_json_schema(by_alias=True)["properties"]
    return {key: Param(None, **field | {"type": ["null", field["type"]]}) for key, field in fields.items()}


def spec_keys(
    params: Mapping[str, Any], variable: Any, variable_name: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Keys of a spec: params override the Variable's values, which override the defaults.

    Unknown keys are kept: validation refuses them. Raises AirflowFailException when the Variable is not a JSON object.
    """
    if not isinstance(variable, dict):
        raise AirflowFailException(f"the Variable {variable_name} is not a JSON object")
    return {**defaults, **variable, **{key: value for key, value in params.items() if value not in (None, [])}}


def _form_schema(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of one key, without references; for a cluster only its connection's id."""
    found = dict(_without_references(field, definitions))
    kinds = [kind for kind in found.pop("anyOf", ()) if kind.get("title") != Cluster.__name__]
    choices = [choice for kind in kinds for choice in kind.get("enum", [kind["const"]] if "const" in kind else [])]
    if len(kinds) == 1:
        found = kinds[0] | found
    elif choices:
        found |= {"type": "string", "enum": choices}
    elif kinds and all(kind.keys() == {"type"} for kind in kinds):
        found["type"] = [kind["type"] for kind in kinds]
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

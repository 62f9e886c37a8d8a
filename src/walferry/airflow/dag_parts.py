"""What walferry's own DAGs share: the table field of their forms, their tasks' defaults, a spec from a Variable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

from walferry.airflow.notifiers import WalferryNotifier
from walferry.run.spec import TABLE_NAME

_NAME = {"type": "string", "pattern": TABLE_NAME}
TABLE_ITEMS = {
    "anyOf": [
        _NAME,
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["source", "target"],
            "properties": {"source": _NAME, "target": _NAME},
        },
    ]
}
"""JSON schema of one of a spec's tables"""

TASK_DEFAULTS: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=10),
    "on_failure_callback": WalferryNotifier(),
}
"""`default_args` of a DAG"""


def spec_keys(
    params: Mapping[str, Any], form: Mapping[str, Param], variable: Any, variable_name: str
) -> dict[str, Any]:
    """Keys of a spec: params that differ from the form's defaults, before the Variable's values, before the defaults.

    AirflowFailException when the Variable holds no JSON object.
    """
    if not isinstance(variable, dict):
        raise AirflowFailException(f"the Variable {variable_name} holds no JSON object")
    defaults = {name: param.value for name, param in form.items()}
    given = {name: value for name, value in params.items() if value != defaults.get(name)}
    return {**defaults, **variable, **given}

"""What the JSON of a command looks like, for tests that keep it as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

FOLDER = Path(__file__).parents[2] / "docs" / "json"


def keys_of(value: Any, path: str = "") -> set[str]:
    """The path of each value in parsed JSON, such as `log.late` and `rows[].kind`."""
    if isinstance(value, dict):
        return {key for name, below in value.items() for key in keys_of(below, f"{path}.{name}".lstrip("."))} or {path}
    if isinstance(value, list):
        return {key for below in value for key in keys_of(below, f"{path}[]")} or {path}
    return {path}


def written_schema(name: str) -> tuple[Path, str]:
    """The file of a schema below docs/json, and what it holds."""
    path = FOLDER / f"{name}.schema.json"
    return path, path.read_text(encoding="utf-8")


def schema_of(model: type[BaseModel]) -> str:
    """The schema of a model as its file has it."""
    return json.dumps(model.model_json_schema(), indent=2) + "\n"


def undescribed(model: type[BaseModel]) -> list[str]:
    """The fields of a model, and of the models in it, that have no description."""
    schema = model.model_json_schema()
    shapes = {model.__name__: schema, **schema["$defs"]}
    return [
        f"{name}.{field}"
        for name, shape in shapes.items()
        for field, facts in shape["properties"].items()
        if "description" not in facts
    ]

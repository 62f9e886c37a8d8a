"""Converts the ledger's rows to column values and back, by field type; a field's metadata may name its column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from walferry.refusals import GapKind, RefusalKind

Row = TypeVar("Row")

_ENUMS: Mapping[Any, type[StrEnum]] = {"RefusalKind": RefusalKind, "GapKind": GapKind}


def to_json(value: Mapping[str, Any]) -> str:
    """Canonical JSON: sorted keys, no whitespace, bytes as hex, other types that JSON lacks as text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def to_columns(item: Any) -> dict[str, Any]:
    """A dataclass as column values: bytes become hex, mappings canonical JSON, a set of words one text."""
    columns = {}
    for spec in fields(item):
        value = getattr(item, spec.name)
        if isinstance(value, bytes):
            value = value.hex()
        elif isinstance(value, frozenset):
            value = " ".join(sorted(value))
        elif isinstance(value, Mapping):
            value = to_json(value)
        columns[spec.metadata.get("column", spec.name)] = value
    return columns


def from_columns(kind: type[Row], columns: Mapping[str, Any]) -> Row:
    """The inverse of `to_columns`; columns without a field are ignored."""
    values = {}
    for spec in fields(kind):  # type: ignore[arg-type]
        value = columns[spec.metadata.get("column", spec.name)]
        if spec.type == "bytes":
            value = bytes.fromhex(value)
        elif spec.type == "frozenset[str]":
            value = frozenset(value.split())
        elif spec.type in _ENUMS:
            value = _ENUMS[spec.type](value)
        elif str(spec.type).startswith("dict"):
            value = json.loads(value)
        values[spec.name] = value
    return kind(**values)

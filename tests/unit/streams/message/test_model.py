"""Messages are what their schema and docs/streams.md say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from unit.json_shape import schema_of, undescribed, written_schema
from unit.streams.message.naive_messages import ENTRIES, FORMS, IMAGED, KINDS, WRITTEN, Cell, Entry, compact, made, only
from walferry.formats.cells import CellType
from walferry.streams.message.changes import BytesAs, Form
from walferry.streams.message.model import Change, ClaimedChange, Notice, TableEvent, UpsertedRow

DOCS = Path(__file__).parents[4] / "docs" / "streams.md"


@given(FORMS, st.one_of(st.lists(ENTRIES, min_size=1, max_size=3), st.lists(IMAGED, min_size=1, max_size=3)))
def test_each_message_is_of_the_published_schema_and_model(form: Form, entries: list[Entry]) -> None:
    entries = [one._replace(write_time=WRITTEN) for one in entries]
    found, (_, schema) = made(form, entries), written_schema("change")
    for number in range(len(found)):
        value = json.loads(found.value(number))
        jsonschema.validate(value, json.loads(schema))
        assert Change.model_validate(value).model_dump(by_alias=True, exclude_unset=True, mode="json") == value


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("change", Change),
        ("claimed-change", ClaimedChange),
        ("table-event", TableEvent),
        ("notice", Notice),
        ("upserted-row", UpsertedRow),
    ],
)
def test_each_schema_is_its_models_and_describes_every_field(name: str, model: type[BaseModel]) -> None:
    path, text = written_schema(name)
    assert text == schema_of(model), f"{path} should be:\n{schema_of(model)}"
    assert undescribed(model) == []


@pytest.mark.parametrize(
    ("wrong", "value"),
    [("kind", "delete"), ("value", None), ("timestamp", "1"), ("qualifier", None), ("family", {"hex": "66"})],
)
def test_the_schema_refuses_other_cells(wrong: str, value: Any) -> None:
    schema = json.loads(written_schema("change")[1])
    change = only(Form("prod", 1), Cell(value=b"v"))
    jsonschema.validate(change, schema)
    cell = change["cells"][0]
    cell[wrong] = value
    if value is None:
        del cell[wrong]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(change, schema)


def test_the_example_of_the_docs_is_a_message() -> None:
    text = DOCS.read_text(encoding="utf-8")
    example = json.loads(text.partition("```json\n")[2].partition("```")[0])
    tags = [(8, (604_800_000).to_bytes(8, "big"))]
    paid = Cell(b"order-1042", b"f", b"state", WRITTEN, CellType.PUT, b"paid", tags)
    draft = Cell(b"order-1042", b"f", b"draft", WRITTEN, CellType.DELETE_COLUMN)
    found = made(Form("prod", 1, BytesAs.UTF8), [Entry([paid, draft], 8123, table="shop:orders")])
    assert found.value(0) == compact(example)
    assert f"`{found.key(0).decode()}`" in text
    assert f"| `position` | `{dict(found.headers(0))['position'].decode()}`" in text


def test_the_docs_name_each_kind_with_its_type() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(\w+)` \| \w+ \((\d+)\) \|", text, re.M)) == {
        name: str(number) for number, name in KINDS.items()
    }

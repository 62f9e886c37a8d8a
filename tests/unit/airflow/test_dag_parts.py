"""Forms: made from the spec, and read back into it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException
from pydantic_core import to_jsonable_python

from walferry.airflow.dag_parts import takes
from walferry.airflow.dags import drain, migrate, replay, verify
from walferry.errors import UsageError
from walferry.run.given_spec import parse_spec
from walferry.run.pair_spec import PairSpec
from walferry.run.spec import Spec, TimeWindow

WINDOW = {"from": "2026-11-20T22:00:00+00:00", "to": "2026-11-20T23:00:00+00:00"}


def values(form: dict[str, Param], **conf: Any) -> dict[str, Any]:
    """What a DAG run has as params: the form's values, with those of a trigger's conf; other keys are kept."""
    return {key: param.value for key, param in form.items()} | conf


@pytest.mark.parametrize(
    ("form", "without"),
    [
        (migrate.SPEC_PARAMS, {"window"}),
        (
            drain.PARAMS,
            {
                "window",
                "protect",
                "stage",
                "history",
                "write_stop",
                "max_comparison_age",
                "compare_ahead",
                "follow",
                "spot_check",
                "repair",
                "unlogged_writes",
            },
        ),
        (
            replay.PARAMS,
            {
                "window",
                "protect",
                "stage",
                "history",
                "write_stop",
                "max_lag",
                "max_comparison_age",
                "compare_ahead",
                "follow",
                "spot_check",
                "repair",
                "unlogged_writes",
            },
        ),
        (
            verify.PARAMS,
            PairSpec.model_fields.keys()
            - {"name", "source", "target", "tables", "peer", "peer_back", "max_lag", "spot_check", "source_requests"},
        ),
    ],
)
def test_each_key_of_the_spec_has_its_field_with_the_models_words(form: dict[str, Param], without: set[str]) -> None:
    fields = PairSpec.model_fields if form is verify.PARAMS else Spec.model_fields
    assert form.keys() - {"from", "to", "whole_every"} == fields.keys() - without
    for key in fields.keys() - without:
        model = fields[key]
        assert form[key].schema["title"] == model.title
        assert (form[key].description or "").startswith(model.description or "")
    assert {"from", "to"} & form.keys() == (set() if form is not replay.PARAMS else {"from", "to"})


def test_the_window_of_a_replay_has_the_models_words() -> None:
    for model in TimeWindow.model_fields.values():
        assert model.alias is not None
        field = replay.PARAMS[model.alias]
        assert (field.schema["title"], field.description) == (model.title, model.description)
        assert field.schema["format"] == "date-time"


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("name", "orders_move", "Orders"),
        ("source", "hbase_old", {"zookeeper": "zk:2181"}),
        ("tables", ["a", "shop:orders", {"source": "b", "target": "c"}], ["a b"]),
        ("tables", [{"source": "a", "target": "b"}], [{"source": "a"}]),
        ("tables", ["a"], []),
        ("apply", "bulk", "copy"),
        ("protect", "peer", "hope"),
        ("stage", None, 5),
        ("write_stop", "readonly", "never"),
        ("max_lag", 1, 0),
        ("max_comparison_age", 600, 0),
        ("source_requests", {"namenode": 10.5, "zookeeper": None}, {"namenode": 9}),
        ("source_requests", {}, {"datanode": 5}),
        ("throttle", {"write_bytes": "20MB", "write_cells": 50000}, {"read_bytes": 5}),
    ],
)
def test_the_form_takes_and_refuses_what_the_spec_does(key: str, good: Any, bad: Any) -> None:
    field = migrate.SPEC_PARAMS[key].schema
    jsonschema.validate(good, field)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, field)
    given = values(migrate.SPEC_PARAMS, tables=["t"])
    parse_spec(given | {key: good}, origin="params")
    with pytest.raises(UsageError, match=key):
        parse_spec(given | {key: bad}, origin="params")


def test_defaults_of_the_form_are_the_models() -> None:
    for key, param in migrate.SPEC_PARAMS.items():
        if key not in ("name", "tables"):  # the model has none
            assert param.value == to_jsonable_python(Spec.model_fields[key].default)
    for form in (drain.PARAMS, replay.PARAMS):
        for param in form.values():
            assert param.value in (None, [])
            jsonschema.validate(param.value, param.schema)
            assert "enum" not in param.schema or param.value in param.schema["enum"]


def test_a_key_that_no_spec_has_is_an_error_wherever_it_was_given() -> None:
    with pytest.raises(UsageError, match="speed: unknown key"):
        parse_spec(values(migrate.SPEC_PARAMS, tables=["t"], speed=3), origin="params")
    with pytest.raises(UsageError, match="speed: unknown key"):
        parse_spec(drain.drain_spec(values(drain.PARAMS, tables=["t"], speed=3), {}), origin="params")
    with pytest.raises(UsageError, match="speed: unknown key"):
        parse_spec(drain.drain_spec(values(drain.PARAMS), {"tables": ["t"], "speed": 3}), origin="params")
    with pytest.raises(UsageError, match="speed: unknown key"):
        parse_spec(replay.replay_spec(values(replay.PARAMS, tables=["t"], speed=3), {}, WINDOW), origin="params")


def test_what_a_person_gives_goes_before_the_variable_and_that_before_the_defaults() -> None:
    variable = {"tables": ["shop:orders"], "apply": "thrift", "name": "nightly"}
    spec = drain.drain_spec(values(drain.PARAMS, apply="auto"), variable)
    # "auto" is the default, too: given is given.
    assert spec == {
        "name": "nightly", "source": "hbase_source", "max_lag": 300, "tables": ["shop:orders"], "apply": "auto",
    }  # fmt: skip
    assert drain.drain_spec(values(drain.PARAMS, tables=["t"]), {})["name"] == "drain"
    with pytest.raises(AirflowFailException, match="set the Variable walferry_drain"):
        drain.drain_spec(values(drain.PARAMS), {})
    with pytest.raises(AirflowFailException, match="the Variable walferry_drain is not a JSON object"):
        drain.drain_spec(values(drain.PARAMS), ["t"])


def test_a_window_of_ones_own_goes_before_that_of_the_schedule() -> None:
    scheduled = replay.replay_spec(values(replay.PARAMS), {"tables": ["t"]}, WINDOW)
    assert scheduled == {"name": "replay", "tables": ["t"], "window": WINDOW}
    own = {"from": "2026-11-19T00:00", "to": "2026-11-19T01:00"}
    assert replay.replay_spec(values(replay.PARAMS, **own), {"tables": ["t"]}, WINDOW)["window"] == own
    half = replay.replay_spec(values(replay.PARAMS, to="2026-11-19T01:00"), {"tables": ["t"]}, WINDOW)
    with pytest.raises(UsageError, match=r"window\.from: Field required"):
        parse_spec(half, origin="params")


@pytest.mark.parametrize("given", ["form", "variable"])
@pytest.mark.parametrize(("form", "read", "variable"), [
    (drain.PARAMS, drain.drain_spec, "walferry_drain"),
    (replay.PARAMS, lambda params, variable: replay.replay_spec(params, variable, WINDOW), "walferry_replay"),
    (verify.PARAMS, verify.pair_spec, "walferry_verify"),
])  # fmt: skip
def test_a_key_that_the_form_does_not_have_is_refused_with_those_that_it_has(
    given: str, form: dict[str, Param], read: Any, variable: str
) -> None:
    key = {"write_stop": "readonly"}
    params, kept = ({"tables": ["t"], **key}, {}) if given == "form" else ({}, {"tables": ["t"], **key})
    with pytest.raises(UsageError) as refused:
        read(values(form, **params), kept)
    assert str(refused.value).startswith(
        f"params or the Variable {variable}: write_stop: this key does not belong here. The form and the Variable take "
        "`name`, `source`, `target`, `tables`, "
    )
    assert all(f"`{key}`" in str(refused.value) for key in form)


@pytest.mark.parametrize(("made", "form"), [
    (drain.hbase_wal_drain, drain.PARAMS),
    (replay.hbase_wal_replay, replay.PARAMS),
    (verify.hbase_verify, verify.PARAMS),
])  # fmt: skip
def test_the_text_of_a_dag_names_the_keys_that_it_takes(made: Any, form: dict[str, Param]) -> None:
    assert takes(form) in made().doc_md

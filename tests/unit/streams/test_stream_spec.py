from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from walferry.errors import UsageError
from walferry.ledger import RunRecord
from walferry.run.given_spec import matching_tables
from walferry.run.spec import Cluster
from walferry.streams.history.catalog import TableNames
from walferry.streams.message.changes import Selection
from walferry.streams.stream_spec import (
    StreamSpec,
    kafka_settings,
    parse_stream_spec,
    recorded_stream_spec,
    resolve_stream,
)

EXAMPLE = Path(__file__).parents[3] / "stream.example.yaml"
SOURCE = {"zookeeper": "zk:2181", "webhdfs": "http://nn:9870", "rootdir": "hdfs://nn:8020/hbase"}
KAFKA = {"bootstrap": "broker:9092"}
SPEC: dict[str, Any] = {"name": "changes", "source": SOURCE, "kafka": KAFKA, "tables": ["shop:orders"]}


def unknown(connection_id: str) -> Cluster:
    raise AssertionError(connection_id)


def test_a_recorded_spec_is_read_again() -> None:
    given = SPEC | {"families": ["f"], "columns": ["f:a:b"], "rows": [{"start": "a", "stop": "b"}], "bytes_as": "hex"}
    spec = resolve_stream(parse_stream_spec(given, origin="x"), unknown)
    recorded = json.loads(json.dumps(spec.as_recorded()))
    run = RunRecord("changes-1", "changes", "me", recorded, "running", False, "", 1, None, "stream")
    assert recorded_stream_spec(run) == spec
    assert spec.selection == Selection((b"f",), ((b"f", b"a:b"),), ((b"a", b"b"),))


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"tables": []}, "tables: List should have at least 1 item"),
        ({"tables": ["a b"]}, "tables: 'a b' is not the name of a table: give ns:table"),
        ({"tables": ["t", "default:t"]}, "tables: t is named twice"),
        ({"tables": ["hbase:meta"]}, "tables: system tables are not streamed: hbase:meta"),
        ({"topic": "{database}"}, "topic: only {namespace} and {table} are filled in"),
        ({"topic": "{table}/x"}, "topic: a topic's name has letters, digits, '.', '_' and '-' only"),
        ({"columns": ["f"]}, "columns: 'f' is not a column: give family:qualifier"),
        ({"decode": "json.loads"}, "decode: String should match pattern"),
        ({"epoch": 0}, "epoch: Input should be greater than or equal to 1"),
        ({"target": "hbase_target"}, "target: this key does not belong here"),
        ({"parquet": {"folder": "/h"}}, "kafka: a stream goes to Kafka or into a folder"),
        (
            {"parquet": {"folder": "/h"}, "kafka": None, "image": "after", "upsert_topic": "{table}"},
            "image, upsert_topic: a stream goes to Kafka or into a folder",
        ),
        ({"image": "before"}, "image: Input should be 'none' or 'after'"),
        ({"upsert_topic": "{table}"}, "upsert_topic: it needs image: after"),
        ({"image": "after", "upsert_topic": "{database}"}, "upsert_topic: only {namespace} and {table} are filled in"),
        ({"image": "after", "upsert_topic": "shop.{table}"}, "upsert_topic: topic shop.orders has something else"),
        (
            {"image": "after", "upsert_topic": "walferry.changes.positions"},
            "upsert_topic: topic walferry.changes.positions has something else already",
        ),
        ({"bytes_as": "text"}, "bytes_as: Input should be 'base64', 'hex' or 'utf8'"),
    ],
)
def test_a_fault_is_named_with_its_key(keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_stream_spec(SPEC | keys, origin="spec.yaml")
    assert f"spec.yaml: {fault}" in str(raised.value)


HISTORY = {key: value for key, value in SPEC.items() if key != "kafka"}


@pytest.mark.parametrize(
    ("parquet", "fault"),
    [
        ({}, "parquet.folder: Field required"),
        ({"folder": "/h", "commit_bytes": "much"}, "parquet.commit_bytes: give a number of bytes, such as 64MB"),
        ({"folder": "/h", "commit_bytes": 5}, "parquet.commit_bytes: Input should be greater than or equal to 1000000"),
        ({"folder": "/h", "commit_seconds": 0}, "parquet.commit_seconds: Input should be greater than 0"),
    ],
)
def test_a_fault_of_a_history_is_named_with_its_key(parquet: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_stream_spec(HISTORY | {"parquet": parquet}, origin="spec.yaml")
    assert f"spec.yaml: {fault}" in str(raised.value)


def test_what_waits_for_the_next_commit_of_a_history_counts_as_followed() -> None:
    parquet = {"folder": "/h", "commit_seconds": 12.5, "commit_bytes": "2MiB"}
    spec = resolve_stream(parse_stream_spec(HISTORY | {"parquet": parquet}, origin="x"), unknown)
    assert (spec.max_lag, spec.positions_place) == (43, "folder /h")
    assert spec.as_recorded()["parquet"] == parquet | {"commit_bytes": 2 << 20, "iceberg": None}


def test_iceberg_tables_are_named_by_the_stream_and_need_a_url_that_engines_know() -> None:
    def spec_of(folder: str, **keys: Any) -> StreamSpec:
        parquet = {"folder": folder, "iceberg": {"namespace": "shop"} | keys}
        return parse_stream_spec(HISTORY | {"parquet": parquet}, origin="x")

    spec = spec_of("/data/history/")
    assert spec.parquet is not None
    assert spec.iceberg_tables == TableNames("shop", "changes", "changes_events")
    assert spec.parquet.location == "file:///data/history"
    named = spec_of("webhdfs://nn:9870/h", location="hdfs://ns/h/", changes="a", events="b")
    assert named.parquet is not None
    assert (named.parquet.location, named.iceberg_tables) == ("hdfs://ns/h", TableNames("shop", "a", "b"))
    with pytest.raises(UsageError, match=r"parquet\.iceberg: give location: the folder as engines name it"):
        spec_of("webhdfs://nn:9870/h")
    with pytest.raises(UsageError, match=r"parquet\.iceberg\.location: String should match"):
        spec_of("/h", location="history")
    with pytest.raises(UsageError, match=r"parquet\.iceberg\.changes: String should match"):
        spec_of("/h", changes="../other")


def test_a_spec_with_a_secret_is_refused_and_the_secret_is_not_shown() -> None:
    kafka = KAFKA | {"client": {"sasl.password": "pa55word", "security.protocol": "SASL_SSL"}}
    with pytest.raises(UsageError) as raised:
        parse_stream_spec(SPEC | {"kafka": kafka}, origin="x")
    assert "sasl.password: a spec has no secrets; put them into a connection of type kafka" in str(raised.value)
    assert "pa55word" not in repr(raised.value)


def test_topics_are_named_by_the_template() -> None:
    spec = parse_stream_spec(SPEC | {"topic": "cdc.{namespace}-{table}"}, origin="x")
    assert (spec.topic_of("shop:orders"), spec.topic_of("orders")) == ("cdc.shop-orders", "cdc.default-orders")
    assert spec.positions_topic == "walferry.changes.positions"


def test_patterns_stand_for_the_tables_that_there_are() -> None:
    there = ["orders", "shop:a", "shop:b", "shopping:c"]
    assert matching_tables(["shop:*", "shop:a", "orders"], there) == ["shop:a", "shop:b", "orders"]
    with pytest.raises(UsageError, match=r"no table of the source matches x\*"):
        matching_tables(["x*"], there)


def test_a_decoder_is_imported_by_name_and_a_missing_one_is_named() -> None:
    spec = parse_stream_spec(SPEC | {"decode": "unit.streams.test_stream_spec:unknown"}, origin="x")
    assert spec.decoder() is not None
    for name in ("unit.streams.test_stream_spec:nothing", "no_such_module:f"):
        with pytest.raises(UsageError, match=f"decode: there is no function {name}"):
            parse_stream_spec(SPEC | {"decode": name}, origin="x").decoder()


@pytest.mark.parametrize(
    ("connection", "bootstrap"),
    [
        ({"extra": {"bootstrap.servers": "a:1,b:2", "security.protocol": "SASL_PLAINTEXT"}}, "a:1,b:2"),
        ({"host": "a,b:3", "port": 1, "extra": {"security.protocol": "SASL_PLAINTEXT"}}, "a:1,b:3"),
    ],
)
def test_a_connection_of_kafka_is_read_as_airflows_provider_does(
    connection: dict[str, Any], bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_K", json.dumps(connection | {"login": "me", "password": "pa55word"}))
    settings = kafka_settings(parse_stream_spec(SPEC | {"kafka": "k"}, origin="x"))
    assert settings.client_settings() == {
        "bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.username": "me",
        "sasl.password": "pa55word",
    }  # fmt: skip
    assert "pa55word" not in repr(settings)


def test_a_wrong_connection_is_named_without_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_stream_spec(SPEC | {"kafka": "k"}, origin="x")
    with pytest.raises(UsageError, match="connection k is not known: set AIRFLOW_CONN_K, or name another one"):
        kafka_settings(spec)
    extra = {"bootstrap.servers": "a:1", "transactional.id": "pa55word"}
    monkeypatch.setenv("AIRFLOW_CONN_K", json.dumps({"extra": extra}))
    with pytest.raises(UsageError, match=r"connection k: .*transactional\.id") as raised:
        kafka_settings(spec)
    assert "pa55word" not in str(raised.value)


def test_the_example_has_every_key_and_its_defaults_are_told() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    spec = parse_stream_spec(yaml.safe_load(text), origin="example")
    assert yaml.safe_load(text).keys() == StreamSpec.model_fields.keys()
    assert spec.topic_of("shop:orders") == "hbase.shop.orders"

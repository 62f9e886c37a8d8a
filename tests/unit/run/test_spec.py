from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from walferry.errors import UsageError
from walferry.run.given_spec import cluster_from_connection, environment_connection, load_spec, parse_spec, resolve
from walferry.run.spec import Cluster, Spec, TablePair
from walferry.security.spec import KerberosKeys, TlsKeys

EXAMPLE = Path(__file__).parents[3] / "migration.example.yaml"
CLUSTER = {"zookeeper": "zk:2181", "webhdfs": "http://nn:9870", "rootdir": "hdfs://nn:8020/hbase"}
EXTRA = {"webhdfs": "http://nn:9870", "rootdir": "hdfs://nn:8020/hbase", "znode": "/other"}


def parse(**keys: Any) -> Spec:
    """A spec that is right but for `keys`."""
    return parse_spec({"name": "move", "tables": ["shop:orders"]} | keys, origin="move.yaml")


def fault(**keys: Any) -> str:
    """The one line that a wrong spec is refused with."""
    with pytest.raises(UsageError) as caught:
        parse(**keys)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_example_in_the_repository_is_a_spec_with_every_key() -> None:
    spec = load_spec(EXAMPLE)
    assert spec.tables == [
        TablePair(source="shop:orders", target="shop:orders"),
        TablePair(source="shop:events", target="archive:events"),
    ]
    assert isinstance(spec.target, Cluster)
    text = EXAMPLE.read_text(encoding="utf-8")
    for key in (*Spec.model_fields, *Cluster.model_fields, *KerberosKeys.model_fields, *TlsKeys.model_fields):
        assert f"{key}:" in text or f"`{key}`" in text


def test_what_the_example_calls_a_default_is_one() -> None:
    spec = parse()
    given = load_spec(EXAMPLE)
    assert (spec.source, spec.target) == ("hbase_source", "hbase_target")
    for key in ("source", "apply", "protect", "write_stop", "max_lag"):
        assert getattr(spec, key) == getattr(given, key)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"speed": 3}, "move.yaml: speed: unknown key"),
        ({"peer": "1"}, "move.yaml: peer: unknown key"),  # only a pair has one
        ({"source": CLUSTER | {"zokeeper": "zk"}}, "move.yaml: source.zokeeper: unknown key; did you mean zookeeper?"),
        ({"source": CLUSTER | {"follow": False}}, "move.yaml: source.follow: this key does not belong here"),
        ({"source": {"zookeeper": "zk"}}, "move.yaml: source.webhdfs: Field required; source.rootdir: Field required"),
        ({"tables": [{"source": "a", "target": "b", "as": "c"}]}, "move.yaml: tables.0.as: unknown key"),
        (
            {"source": CLUSTER | {"webhdfs": "http://nn1:9870;https://kim:hush@knox:8443/gateway/default"}},
            "move.yaml: source.webhdfs: leave user and password out: ledger and errors show the address",
        ),
        (
            {"source": CLUSTER | {"webhdfs": "http://nn1:9870;kim:hush@nn2:9870"}},
            "move.yaml: source.webhdfs: leave user and password out: ledger and errors show the address",
        ),
        (
            {"source": CLUSTER | {"rootdir": "hdfs://nn:abc/hbase"}},
            "move.yaml: source.rootdir: what it has in place of a port is no number",
        ),
        (
            {"source": CLUSTER | {"webhdfs": "http://nn1:9870;nn2:9870"}},
            "move.yaml: source.webhdfs: give http://host:port of each NameNode, separated by ;",
        ),
        (
            {"source": CLUSTER | {"waldir": "/wal", "wal_webhdfs": "http://nn1:9870;http:///"}},
            "move.yaml: source.wal_webhdfs: give http://host:port of each NameNode, separated by ;",
        ),
        (
            {"source": CLUSTER | {"waldir": "hdfs://other:8020/wal"}},
            "move.yaml: source.wal_webhdfs: waldir is on another file system than rootdir: give the WebHDFS of its "
            "NameNode",
        ),
        (
            {"source": CLUSTER | {"wal_webhdfs": "http://other:9870"}},
            "move.yaml: source.wal_webhdfs: it is for a waldir on another HDFS than rootdir: give `waldir`, or leave "
            "this out",
        ),
        ({"tables": []}, "move.yaml: tables: List should have at least 1 item after validation, not 0"),
        ({"tables": ["a", "default:a"]}, "move.yaml: tables: source table named twice: a"),
        (
            {"tables": ["a", {"source": "b", "target": "a"}]},
            "move.yaml: tables: target table named twice: a",
        ),
        ({"tables": ["hbase:meta"]}, "move.yaml: tables: system tables are not migrated: hbase:meta"),
        ({"tables": [7]}, "move.yaml: tables.0: give a mapping of keys"),
        ({"apply": "copy"}, "move.yaml: apply: it can be auto, bulk, rpc or thrift"),
        ({"protect": "stage"}, "move.yaml: spec: protect: stage needs a folder (stage: webhdfs://host:port/path)"),
        ({"stage": "/copies"}, "move.yaml: spec: stage: only `protect: stage` copies WALs to a folder"),
        (
            {"protect": "stage", "stage": "webhdfs://nn:9870/hbase/oldWALs/mine"},
            "move.yaml: spec: stage: a folder of HBase's own, which deletes unknown files there",
        ),
        (
            {"protect": "stage", "stage": "hdfs://ns/mine"},
            "move.yaml: spec: stage: hdfs://ns/mine: it does not say where its name nodes answer HTTP: write webhdfs://",
        ),
        ({"protect": "stage", "stage": "copies"}, "move.yaml: spec: stage: give the whole path of a folder"),
        (
            {"window": {"from": "2026-11-21T02:00", "to": "2026-11-21T01:00"}},
            "move.yaml: window: the window's end 2026-11-21T01:00:00+00:00 is not after its start",
        ),
        ({"window": {"from": "2026-11-21T02:00"}}, "move.yaml: window.to: Field required"),
        ({"max_lag": 0}, "move.yaml: max_lag: Input should be greater than or equal to 1"),
        ({"speed": 3, "max_lag": 0}, "move.yaml: max_lag: Input should be greater than or equal to 1; speed: unknown"),
    ],
)
def test_a_fault_is_told_in_one_line_with_its_key(keys: dict[str, Any], message: str) -> None:
    assert fault(**keys).startswith(message)


@pytest.mark.parametrize("name", ["", "Move", "9move", "move-1", "m" * 41, "move 1", "möve"])
def test_a_name_that_cannot_be_a_peers_is_refused(name: str) -> None:
    assert fault(name=name).startswith("move.yaml: name: ")


@pytest.mark.parametrize("table", ["", ":a", "a:", "a:b:c", "a b", "../a", ".a"])
def test_what_is_no_table_name_is_refused(table: str) -> None:
    assert fault(tables=[table]).startswith("move.yaml: tables.0.source: ")


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "s3cr3t!"},
        {"max_lag": "s3cr3t"},
        {"apply": "s3cr3t"},
        {"window": "s3cr3t"},
        {"tables": "s3cr3t"},
        {"source": ["s3cr3t"]},
        {"source": CLUSTER | {"webhdfs": "s3cr3t"}},
        {"target": CLUSTER | {"thrift": {"password": "s3cr3t"}}},
    ],
)
def test_no_value_of_a_wrong_spec_is_repeated(keys: dict[str, Any]) -> None:
    assert "s3cr3t" not in fault(**keys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: [s3cr3t", r"is not YAML in line 1, column 14: "),
        (b"a: b: s3cr3t", r"is not YAML in line 1, column 5: mapping values are not allowed here"),
        (b"s3cr3t", "is not a mapping of keys; see migration.example.yaml"),
        (b"", "is not a mapping of keys"),
        (b"name: \xff", "is not UTF-8 at byte 6"),
        (b"!!python/object:os.system s3cr3t", "is not YAML"),
    ],
)
def test_a_file_that_holds_no_spec_is_refused_by_its_name(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "move.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        load_spec(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("path", ["missing.yaml", "."])
def test_a_spec_that_cannot_be_read_is_refused_by_its_name(path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the spec"):
        load_spec(tmp_path / path)


def test_a_table_keeps_its_name_unless_it_is_given_another() -> None:
    spec = parse(tables=["a", "default:b", {"source": "n:c", "target": "default:d"}])
    assert [(pair.source, pair.target) for pair in spec.tables] == [("a", "a"), ("b", "b"), ("n:c", "d")]


def test_a_spec_is_resolved_by_the_connections_that_it_names() -> None:
    asked = []

    def connection(name: str) -> Cluster:
        asked.append(name)
        return Cluster.model_validate(CLUSTER | {"zookeeper": f"{name}:2181"})

    resolved = resolve(parse(source="ours", target=CLUSTER), connection)
    assert asked == ["ours"]
    assert (resolved.source.zookeeper, resolved.target.zookeeper) == ("ours:2181", "zk:2181")
    assert resolve(parse(source="ours", target=CLUSTER), connection) == resolved


def as_json(**changes: Any) -> str:
    fields = {"conn_type": "hbase", "host": "zk1,zk2:2182", "port": 2181, "login": "ann", "extra": EXTRA}
    return json.dumps(fields | changes)


@pytest.mark.parametrize(
    "text",
    [
        as_json(),
        as_json(extra=json.dumps(EXTRA)),
        as_json(port="2181"),
        f"hbase://ann:s3cr3t@{quote('zk1,zk2:2182', safe='')}:2181/?{urlencode(EXTRA)}",
        f"hbase://ann@{quote('zk1:2181,zk2:2182', safe='')}/?{urlencode(EXTRA)}",
        f"hbase://ann@zk1:2181,zk2:2182/?{urlencode(EXTRA)}",
        f"hbase://ann@{quote('zk1,zk2:2182', safe='')}:2181/?{urlencode({'__extra__': json.dumps(EXTRA)})}",
    ],
)
def test_a_connection_is_read_from_the_environment_as_json_and_as_uri(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OURS", text)
    assert environment_connection("ours") == Cluster.model_validate(
        {"zookeeper": "zk1:2181,zk2:2182", "user": "ann", **EXTRA}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "connection ours is not known: set AIRFLOW_CONN_OURS"),
        ("", "connection ours is not known: set AIRFLOW_CONN_OURS"),
        ("{s3cr3t", "AIRFLOW_CONN_OURS is neither"),
        ("hbase://ann:s3cr3t@zk:s3cr3t/", "AIRFLOW_CONN_OURS is neither"),
        ("hbase://", "connection ours has no host"),
        (as_json(host=None), "connection ours has no host"),
        (as_json(extra="[s3cr3t"), "AIRFLOW_CONN_OURS is neither"),
        (as_json(extra=[1]), "AIRFLOW_CONN_OURS is neither"),
        (as_json(extra={}), "connection ours: webhdfs: Field required; rootdir: Field required"),
    ],
)
def test_a_wrong_connection_is_refused_without_its_secrets(
    text: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_OURS", raising=False)
    if text is not None:
        monkeypatch.setenv("AIRFLOW_CONN_OURS", text)
    with pytest.raises(UsageError) as caught:
        environment_connection("ours")
    assert str(caught.value).startswith(message)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__cause__ is None or "s3cr3t" not in str(caught.value.__cause__)


def test_an_extra_names_the_user_before_the_login_does() -> None:
    assert cluster_from_connection("ours", "zk", None, EXTRA | {"user": "bob"}, "ann").user == "bob"


def test_name_nodes_may_be_listed_with_spaces() -> None:
    spec = parse(source=CLUSTER | {"webhdfs": "http://nn1:9870; http://nn2:9870;"})
    assert isinstance(spec.source, Cluster)
    assert spec.source.webhdfs == "http://nn1:9870;http://nn2:9870"

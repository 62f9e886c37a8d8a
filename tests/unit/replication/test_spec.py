from __future__ import annotations

from pathlib import Path

import pytest

from walferry.errors import UsageError
from walferry.replication.spec import load_replicate_spec, resolve_replicate
from walferry.run.spec import Cluster

CLUSTER = Cluster(zookeeper="zk:2181", webhdfs="http://nn:9870", rootdir="/hbase")
EXAMPLE = Path(__file__).parents[3] / "replicate.example.yaml"


def test_the_example_has_every_key() -> None:
    spec = load_replicate_spec(EXAMPLE)
    assert spec.model_fields_set == set(type(spec).model_fields)


def test_connections_are_resolved_and_a_target_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("source: old\n")
    asked: list[str] = []

    def connection(name: str) -> Cluster:
        asked.append(name)
        return CLUSTER

    found = resolve_replicate(load_replicate_spec(tmp_path / "r.yaml"), connection)
    assert (found.source, found.target, found.peer, found.tables, asked) == (CLUSTER, None, None, ["*"], ["old"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tabels: [t]", "tabels"),
        ("tables: ['hbase:meta']", "system tables are not replicated: hbase:meta"),
        ("tables: []", "tables: "),
        ("[]", "is not a mapping of keys; see replicate.example.yaml"),
    ],
)
def test_what_is_wrong_in_a_spec_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UsageError, match=says):
        load_replicate_spec(tmp_path / "r.yaml")

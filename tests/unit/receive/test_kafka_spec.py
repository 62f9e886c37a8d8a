"""The spec of a run that receives into Kafka: its keys, those that mean nothing here, and what the ledger has of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from unit.receive.two_clusters import KAFKA_KEYS, KEYS
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.receive.given import load_receive_spec, recorded_receive_spec, resolve_any_receive
from walferry.receive.kafka_run import presented_id
from walferry.receive.kafka_spec import KEYS as KNOWN
from walferry.receive.kafka_spec import KafkaReceiveSpec, KafkaReceiving, ResolvedKafkaReceiveSpec
from walferry.receive.start import open_receive
from walferry.run.recorded_spec import topics_of
from walferry.run.spec import Cluster
from walferry.streams.stream_spec import StreamSpec

EXAMPLE = Path(__file__).parents[3] / "receive-kafka.example.yaml"


def resolved(folder: Path, **keys: Any) -> ResolvedKafkaReceiveSpec:
    def unknown(connection: str) -> Cluster:
        raise AssertionError(connection)

    (folder / "receive.yaml").write_text(yaml.safe_dump(KAFKA_KEYS | keys))
    spec = resolve_any_receive(load_receive_spec(folder / "receive.yaml"), unknown)
    assert isinstance(spec, ResolvedKafkaReceiveSpec)
    return spec


def test_the_example_has_every_key() -> None:
    spec = load_receive_spec(EXAMPLE)
    assert isinstance(spec, KafkaReceiveSpec)
    assert spec.model_fields_set == KNOWN
    assert spec.receive.model_fields_set == set(KafkaReceiving.model_fields) - {"history"}


@pytest.mark.parametrize("key", sorted(StreamSpec.model_fields.keys() - KNOWN))
def test_a_streams_key_that_does_nothing_here_is_refused(tmp_path: Path, key: str) -> None:
    default = StreamSpec.model_validate(
        {name: KAFKA_KEYS[name] for name in ("name", "source", "kafka", "tables")}
    ).model_dump(mode="json")[key]
    with pytest.raises(UsageError, match=f"{key}: a run that receives into Kafka has no use for it: leave it out"):
        resolved(tmp_path, **{key: default})


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"target": KEYS["target"]}, "target: a run receives into a cluster or into Kafka: leave out target or kafka"),
        ({"tables": ["shop:*"]}, "tables: shop:* is a pattern: name each table"),
        ({"tables": ["a", "plumless", "buckeroo"]}, "tables: plumless and buckeroo would have one transactional id"),
        ({"tables": [{"source": "a", "target": "b"}]}, "tables.0: "),
        ({"kafka": {"bootstrap": "b:1", "client": {"sasl.password": "x"}}}, "kafka: sasl.password: a spec has no secr"),
        ({"topic": "{database}"}, "topic: only {namespace} and {table} are filled in"),
        ({"receive": {"path": "/hbase/rs"}}, "receive.path: /hbase/rs is the source's own node, or above or below it"),
        ({"receive": {"zookeeper": "zk1"}}, "receive.zookeeper: "),
        ({"receive": {"start": "2026-01-31T09:00:00"}}, "receive.start: "),
        ({"receive": {"memory": "63MiB"}}, "receive.memory: "),
        ({"receive": {"history": "scan"}}, "receive.history: what tables have already is not sent to Kafka"),
        ({"merge": True}, "merge: "),
    ],
)
def test_a_key_that_does_not_fit_is_named(tmp_path: Path, keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolved(tmp_path, **keys)
    assert fault in str(refused.value)


def test_the_peer_leads_to_the_sources_zookeeper_or_to_the_one_that_is_named(tmp_path: Path) -> None:
    assert resolved(tmp_path).cluster_key == "west:2181:/walferry/receive/topics"
    spec = resolved(tmp_path, receive={"zookeeper": "z1:2181,z2:2182", "path": "/hbase/x"})
    assert spec.cluster_key == "z1:2181,z2:2182:2181:/hbase/x"
    assert spec.zookeeper_address().zookeeper == "z1:2181,z2:2182"


def test_what_is_recorded_is_what_all_processes_share(tmp_path: Path) -> None:
    keys = {"receive": {"memory": "64MiB", "zookeeper": "z:1", "start": "2026-01-31T09:00:00+01:00"}, "epoch": 3}
    spec = resolved(tmp_path, **keys).at("here.example", 0)
    recorded = spec.as_recorded()
    assert recorded.keys() == KNOWN
    assert recorded["receive"] == {
        "path": "/walferry/receive/topics", "zookeeper": "z:1", "start": "2026-01-31T08:00:00+00:00",
    }  # fmt: skip
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = open_receive(ledger, spec, "kim")
        read = recorded_receive_spec(run)
        assert isinstance(read, ResolvedKafkaReceiveSpec)
        assert (read.epoch, read.tables, read.path, read.receive.start_ms) == (3, spec.tables, spec.path, 1769846400000)
        assert topics_of(run) == {"shop:items": "shop.items", "shop:orders": "shop.orders"}
        other = resolved(tmp_path, **keys, max_lag=9, create_topics={"partitions": 3}, large_messages="/claims")
        assert open_receive(ledger, other.at("there", 1), "kim").run_id == run.run_id
        with pytest.raises(UsageError, match=r"another spec \(epoch\)"):
            open_receive(ledger, resolved(tmp_path, **keys | {"epoch": 4}), "kim")


def test_a_run_presents_an_id_of_its_own_which_stays(tmp_path: Path) -> None:
    source = UUID(int=5)
    assert presented_id(source, "a") == presented_id(source, "a")
    assert len({source, presented_id(source, "a"), presented_id(source, "b"), presented_id(UUID(int=6), "a")}) == 4

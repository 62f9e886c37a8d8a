"""What a run that receives refuses before it serves, and what it warns of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from unit.migration.setup.memory_cluster import MemoryCluster
from unit.receive.two_clusters import KAFKA_KEYS, MemoryWithQuotas
from walferry.embedded.certificates import Authority
from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.errors import ConnectionFailedError
from walferry.hbase.peers import add_disabled_peer, enable_peer
from walferry.receive import into_kafka, receive_plan
from walferry.receive.kafka_run import presented_id
from walferry.receive.kafka_spec import ResolvedKafkaReceiveSpec
from walferry.receive.receive_plan import add_peer_command, as_facts, examine, require
from walferry.run.receive_spec import ResolvedReceiveSpec
from walferry.storage import Local

pytestmark = pytest.mark.usefixtures("both")


def told(spec: ResolvedReceiveSpec, level: str = "stop") -> list[str]:
    return [f"{one.subject}: {one.message}" for one in examine(spec).findings if one.level == level]


def test_nothing_is_found_if_both_clusters_have_the_tables(spec: ResolvedReceiveSpec) -> None:
    found = examine(spec)
    assert (found.findings, found.peer) == ([], None)
    assert (found.source_cluster_id, found.target_cluster_id) == ("west", "east")
    assert found.cluster_key == "east:2181:/walferry/receive/east"
    require(found)


def test_the_command_that_adds_the_peer_names_the_sources_tables(spec: ResolvedReceiveSpec) -> None:
    assert add_peer_command(spec) == (
        "add_peer 'east', CLUSTER_KEY => \"east:2181:/walferry/receive/east\", "
        'TABLE_CFS => { "shop:orders" => [], "shop:items" => [] }'
    )


def test_one_cluster_cannot_be_both(spec: ResolvedReceiveSpec, source: MemoryCluster) -> None:
    source.name = "east"
    with pytest.raises(UsageError, match=r"cannot receive: target: source and target are the same cluster \(east\)"):
        require(examine(spec))


def test_a_source_that_asks_a_master_of_its_sink_is_refused(spec: ResolvedReceiveSpec, source: MemoryCluster) -> None:
    source.release = replace(source.release, since=(2, 6))
    assert told(spec) == []
    source.release = replace(source.release, since=(3, 0))
    (refusal,) = told(spec)
    assert refusal.startswith("source: HBase 3.0 asks a master of its sink")


def test_what_the_target_lacks_is_refused_by_its_own_names(spec: ResolvedReceiveSpec, target: MemoryCluster) -> None:
    del target.descriptors["east:items"]
    target.add("shop:orders", d="0")
    assert told(spec) == [
        "shop:orders: it lacks the family e at the target: add it there",
        "east:items: it is missing at the target: create it there, with the family d",
    ]
    with pytest.raises(UsageError) as refused:
        require(examine(spec))
    assert len(refused.value.facts["refusals"]) == 2


def test_a_quota_that_others_may_raise_is_only_a_warning(spec: ResolvedReceiveSpec, target: MemoryWithQuotas) -> None:
    target.quotas["table east:items"] = "NO_WRITES"
    assert told(spec) == []
    assert told(spec, "warn")[0].startswith("east:items: it takes no writes at the target")


def test_a_table_that_the_source_has_not_is_refused(spec: ResolvedReceiveSpec, source: MemoryCluster) -> None:
    del source.descriptors["shop:items"]
    assert told(spec) == ["shop:items: the source has no such table"]


def test_what_the_source_does_not_ship_is_only_a_warning(spec: ResolvedReceiveSpec, source: MemoryCluster) -> None:
    source.add("shop:items", d="0")
    assert told(spec) == []
    (warning,) = told(spec, "warn")
    assert warning.startswith("shop:items: family d has REPLICATION_SCOPE 0, so no edit of it is replicated")


def test_a_peer_of_the_source_that_leads_to_the_run_is_named_with_what_it_lacks(
    spec: ResolvedReceiveSpec, source: MemoryCluster
) -> None:
    for name, key in (("other", "east:2181:/hbase"), ("mine", spec.cluster_key)):
        config = pb.ReplicationPeer(clusterkey=key)
        table = config.table_cfs.add()
        table.table_name.namespace, table.table_name.qualifier = b"shop", b"orders"
        add_disabled_peer(source, name, config)  # type: ignore[arg-type]
    assert examine(spec).peer == "mine"
    assert told(spec, "warn") == [
        "shop:items: peer mine does not replicate it: append_peer_tableCFs 'mine', {'shop:items' => ['d']}",
        "peer mine: it is disabled, and keeps each log since: enable_peer 'mine' in HBase's shell",
    ]
    enable_peer(source, "mine")  # type: ignore[arg-type]
    assert len(told(spec, "warn")) == 1


def test_a_target_table_that_is_to_be_empty_and_is_not_is_told_unless_the_run_has_filled_it(
    make_spec: Callable[..., ResolvedReceiveSpec], target: MemoryWithQuotas
) -> None:
    spec = make_spec(receive={"history": "scan"})
    assert told(spec, "warn") == []
    target.filled.add("east:items")
    (warning,) = told(spec, "warn")
    assert warning.startswith("east:items: the target table is not empty: nothing is copied or applied to it until")
    assert examine(spec, {"shop:items"}).findings == []
    assert told(make_spec(), "warn") == []


SHIPPED = {"hbase.replication.bulkload.enabled": "true", "hbase.replication.cluster.id": "west"}


@pytest.mark.parametrize(
    ("site", "says"),
    [
        ({}, "hbase.replication.bulkload.enabled is not true at the source"),
        ({"hbase.replication.bulkload.enabled": "true"}, "but hbase.replication.cluster.id is not set"),
    ],
)
def test_a_source_that_does_not_ship_bulk_loads_is_warned_of(
    spec: ResolvedReceiveSpec, source: MemoryCluster, site: dict[str, str], says: str
) -> None:
    source.site = site
    assert told(spec) == []
    (warning,) = told(spec, "warn")
    assert warning.startswith("bulk loads: ")
    assert says in warning


def test_bulk_loads_whose_files_cannot_be_read_from_here_are_warned_of(
    make_spec: Callable[..., ResolvedReceiveSpec], source: MemoryCluster, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(receive_plan, "file_system", lambda cluster, address: Local())
    here = {"zookeeper": "west:2181", "webhdfs": "http://west:1", "rootdir": f"file://{tmp_path}"}
    spec = make_spec(source=here)
    source.site = SHIPPED
    (tmp_path / "data/shop/orders").mkdir(parents=True)
    (warning,) = told(spec, "warn")
    assert "its files cannot be read from here: " in warning
    assert f"{tmp_path}/data/shop/items" in warning
    assert f"Let this process read {tmp_path}/data and {tmp_path}/archive" in warning
    (tmp_path / "data/shop/items").mkdir()
    assert examine(spec).findings == []


def test_a_name_that_leads_other_machines_to_themselves_is_told(make_spec: Callable[..., ResolvedReceiveSpec]) -> None:
    assert "give --host" in told(make_spec().at("localhost.localdomain", 1), "warn")[0]
    assert told(make_spec().at("east-1.example", 1), "warn") == []


def test_a_certificate_that_does_not_name_the_process_is_refused(
    make_spec: Callable[..., ResolvedReceiveSpec], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    made = authority.issue("receiver", host="east-1.example")
    tls = {"certificate": str(made.certificate), "key": str(made.key), "ca": str(authority.bundle)}
    spec = make_spec(receive={"tls": tls})
    assert told(spec.at("east-1.example", 1)) == []
    (refusal,) = told(spec.at("east-2.example", 1))
    assert refusal.startswith(f"receive.tls: the certificate {made.certificate} does not name east-2.example")
    made.key.unlink()
    (refusal,) = told(make_spec(receive={"tls": tls | {"ca": str(made.both)}}).at("east-1.example", 1))
    assert refusal.startswith(f"receive.tls: {made.key}, which is named for TLS, cannot be used: No such file")


def test_a_cluster_that_does_not_answer_is_named(spec: ResolvedReceiveSpec, target: MemoryCluster) -> None:
    target.away = True
    with pytest.raises(ConnectionFailedError, match="east does not answer"):
        examine(spec)


def test_without_a_target_the_topics_are_examined_and_what_is_wrong_with_them_is_a_refusal(
    source: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ResolvedKafkaReceiveSpec.model_validate(KAFKA_KEYS).at("east-1.example", 1)
    monkeypatch.setattr(source, "cluster_uuid", lambda: UUID(int=5), raising=False)
    topics = {"topics": {"shop:orders": "shop.orders"}, "partitions": {}, "positions": "walferry.topics.positions"}
    monkeypatch.setattr(into_kafka, "examine_topics", lambda *_: topics)
    found = examine(spec)
    assert (found.findings, found.target_version, found.topics) == ([], None, topics)
    assert found.target_cluster_id == str(presented_id(UUID(int=5), "topics"))
    assert add_peer_command(spec) == (
        "add_peer 'topics', CLUSTER_KEY => \"west:2181:/walferry/receive/topics\", "
        'TABLE_CFS => { "shop:orders" => [], "shop:items" => [] }'
    )
    assert as_facts(found, spec)["topics"] == topics

    def refuses(*_: object) -> None:
        raise UsageError("unknown topic shop.orders: create it with N partitions")

    monkeypatch.setattr(into_kafka, "examine_topics", refuses)
    del source.descriptors["shop:items"]
    with pytest.raises(UsageError, match="shop:items: the source has no such table; kafka: unknown topic"):
        require(examine(spec))

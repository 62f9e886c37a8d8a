"""What a run that receives refuses before it serves, and what it warns of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from unit.migration.setup.memory_cluster import MemoryCluster
from unit.receive.two_clusters import MemoryWithQuotas
from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.errors import ConnectionFailedError
from walferry.hbase.peers import add_disabled_peer, enable_peer
from walferry.receive.receive_plan import add_peer_command, examine, require
from walferry.run.receive_spec import ResolvedReceiveSpec

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


def test_a_name_that_leads_other_machines_to_themselves_is_told(make_spec: Callable[..., ResolvedReceiveSpec]) -> None:
    assert "give --host" in told(make_spec().at("localhost.localdomain", 1), "warn")[0]
    assert told(make_spec().at("east-1.example", 1), "warn") == []


def test_a_cluster_that_does_not_answer_is_named(spec: ResolvedReceiveSpec, target: MemoryCluster) -> None:
    target.away = True
    with pytest.raises(ConnectionFailedError, match="east does not answer"):
        examine(spec)

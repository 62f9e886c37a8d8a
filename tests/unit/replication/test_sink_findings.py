from __future__ import annotations

from dataclasses import replace

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.peers import PeerConfig
from walferry.replication import sink_findings as looking
from walferry.replication.sink import Sink
from walferry.replication.sink_findings import sink_findings
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.run.spec import Cluster

SOURCE = Cluster(zookeeper="src:2181", webhdfs="http://nn:9870", rootdir="/hbase")
SPEC = ResolvedReplicateSpec(source=SOURCE, target=None)
PEER = PeerConfig.of("p", True, pb.ReplicationPeer(clusterkey="zk:2181:/hbase", serial=True))
SINK = Sink("zk:2181/hbase", "sink-id", 1, version="2.6.3")


def found(sink: Sink) -> list[str]:
    """What is found at a sink, without the note about SERIAL."""
    findings = list(sink_findings(SPEC, "source-id", PEER, ClusterAddress("zk:2181"), sink))
    assert {one.subject for one in findings} == {"peer p"}
    return [f"{one.level}: {one.message}" for one in findings if "SERIAL" not in one.message]


@pytest.fixture(autouse=True)
def onwards(monkeypatch: pytest.MonkeyPatch) -> list[PeerConfig]:
    """The sink's own peers."""
    peers: list[PeerConfig] = []
    monkeypatch.setattr(looking, "peer_configs", lambda _: peers)
    return peers


def test_a_sink_that_works_is_told_without_a_finding() -> None:
    assert found(SINK) == []


def test_only_a_sink_that_takes_nothing_or_does_not_answer_is_a_stop() -> None:
    gone = Sink("zk", fault="there is no HBase below /x")
    assert found(gone) == ["stop: its sink takes no changes: there is no HBase below /x"]
    away = Sink("zk", fault="ZooKeeper did not answer", proved=False, silent=True)
    assert found(away) == ["stop: its sink was not examined: ZooKeeper did not answer"]
    refused = replace(away, fault="it does not let p@R log in", silent=False)
    assert found(refused) == ["warn: its sink was not examined: it does not let p@R log in"]


def test_a_sink_without_servers_is_a_stop_and_still_examined(onwards: list[PeerConfig]) -> None:
    onwards.append(PeerConfig.of("q", True, pb.ReplicationPeer(clusterkey="a URI")))
    assert found(replace(SINK, servers=0, fault="no region server of it is alive")) == [
        "stop: its sink takes no changes: no region server of it is alive",
        "note: its sink replicates onwards to a URI (peer q there)",
    ]


def test_who_may_not_see_the_sinks_peers_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: object) -> None:
        raise AccessDeniedError("only ADMIN may list peers")

    monkeypatch.setattr(looking, "peer_configs", denied)
    assert found(SINK) == ["note: whether its sink replicates onwards is not known: only ADMIN may list peers"]


def test_without_an_answer_of_its_master_no_table_is_compared() -> None:
    assert found(replace(SINK, version=None, master_fault="there is no master")) == [
        "warn: the tables of its sink were not compared: there is no master"
    ]

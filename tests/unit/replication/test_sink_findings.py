from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError, LoginRefusedError, ServerGoneError, ZooKeeperError
from walferry.hbase.peers import PeerConfig
from walferry.replication import sink_findings as looking
from walferry.replication.sink_findings import Sink, sink_findings
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.run.spec import Cluster

SOURCE = Cluster(zookeeper="src:2181", webhdfs="http://nn:9870", rootdir="/hbase")
SPEC = ResolvedReplicateSpec(source=SOURCE, target=None)
PEER = PeerConfig.of("p", True, pb.ReplicationPeer(clusterkey="zk:2181:/hbase", serial=True))


def raising(error: WalferryError) -> Any:
    def fail(*_: object) -> Any:
        raise error

    return fail


def found(**answers: Any) -> tuple[Sink | None, list[str]]:
    """What is found at a sink that gives these answers, without the note about SERIAL."""
    given: dict[str, Any] = {
        "address": ClusterAddress("zk:2181"), "zookeeper": None, "cluster_id": lambda: "sink-id",
        "servers": lambda: ["rs"], "version": lambda: "2.6.3", **answers,
    }  # fmt: skip
    sink, findings = sink_findings(SPEC, "source-id", PEER, cast(HBaseClient, cast(Any, SimpleNamespace(**given))))
    lines = [f"{one.level}: {one.message}" for one in findings if "SERIAL" not in one.message]
    assert {one.subject for one in findings} <= {"peer p"}
    return sink, lines


@pytest.fixture(autouse=True)
def onwards(monkeypatch: pytest.MonkeyPatch) -> list[PeerConfig]:
    """The sink's own peers."""
    peers: list[PeerConfig] = []
    monkeypatch.setattr(looking, "peer_configs", lambda _: peers)
    monkeypatch.setattr(looking, "_others", lambda _: ", but /hbase has")
    return peers


def test_a_sink_that_works_is_told_without_a_finding() -> None:
    assert found() == (Sink("sink-id", "2.6.3"), [])


def test_a_login_that_one_sink_refuses_ends_no_plan() -> None:
    error = LoginRefusedError("it does not let p@R log in", server="zk", principal="p@R", reason="no")
    assert found(cluster_id=raising(error)) == (None, [f"warn: its sink was not examined: {error}"])


def test_a_sink_that_is_away_gone_or_without_servers_is_a_stop() -> None:
    away = ZooKeeperError("ZooKeeper at zk:2181 did not answer", zookeeper="zk:2181")
    assert found(servers=raising(away)) == (None, [f"stop: its sink does not answer from here: {away}"])
    gone = "stop: ZooKeeper at zk:2181, /hbase has no HBase, but /hbase has. Its key: zk:2181:/hbase"
    assert found(cluster_id=raising(ServerGoneError("no"))) == (None, [gone])
    idle = "stop: ZooKeeper at zk:2181, /hbase has an HBase without a live region server"
    assert found(servers=list) == (Sink("sink-id", "2.6.3"), [idle])


def test_who_may_not_see_the_sinks_peers_still_has_its_tables_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = AccessDeniedError("only ADMIN may list peers")
    monkeypatch.setattr(looking, "peer_configs", raising(denied))
    assert found() == (
        Sink("sink-id", "2.6.3"), [f"note: whether its sink replicates onwards is not known: {denied}"]
    )  # fmt: skip


def test_without_an_answer_of_its_master_no_table_is_compared() -> None:
    error = ServerGoneError("there is no master")
    assert found(version=raising(error)) == (
        Sink("sink-id", None), [f"warn: the tables of its sink were not compared: {error}"]
    )  # fmt: skip


def test_a_sink_with_the_sources_id_gets_nothing() -> None:
    _, (line,) = found(cluster_id=lambda: "source-id")
    assert line.startswith(
        "stop: source and sink have the same cluster id (source-id), so HBase takes the sink for the"
    )


def test_where_a_sink_replicates_onwards_is_noted(onwards: list[PeerConfig]) -> None:
    onwards.append(PeerConfig.of("q", True, pb.ReplicationPeer(clusterkey="a URI")))
    assert found()[1] == ["note: its sink replicates onwards to a URI (peer q there)"]

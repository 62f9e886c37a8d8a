from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region, table_name
from walferry.hbase.errors import ServerGoneError
from walferry.hbase.mutate import Cell
from walferry.hbase.peers import PeerConfig
from walferry.hbase.zookeeper import Server
from walferry.replication import canary
from walferry.replication.canary import Arrival, Flown, fly, fly_all, obstacle, require_arrived, table_of
from walferry.replication.finding import NotReplicatedError
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.run.spec import Cluster

TABLE = table_of("3f2a9c1e-4ff2-4d5d-b8b4-5510bd3ff090")
CANARY = pb.TableCF(table_name=table_name(TABLE))


@pytest.mark.parametrize(
    ("config", "enabled", "why"),
    [
        (pb.ReplicationPeer(replicate_all=True), True, None),
        (pb.ReplicationPeer(replicate_all=True), False, "peer p is disabled"),
        (pb.ReplicationPeer(table_cfs=[CANARY]), True, None),
        (
            pb.ReplicationPeer(replicate_all=False),
            True,
            "peer p replicates named tables only; in HBase's shell: append_peer_tableCFs 'p', "
            "{'walferry_canary_3f2a9c1e' => []}",
        ),
        (
            pb.ReplicationPeer(replicate_all=True, exclude_table_cfs=[CANARY]),
            True,
            "peer p leaves the table walferry_canary_3f2a9c1e out",
        ),
    ],
)
def test_a_canary_is_kept_back_where_it_would_not_be_shipped(
    config: pb.ReplicationPeer, enabled: bool, why: str | None
) -> None:
    assert obstacle(PeerConfig.of("p", enabled, config), TABLE) == why


def test_a_row_that_has_not_arrived_is_named_by_peer_and_server() -> None:
    flown = [Flown("p", [Arrival("rs:1", 0.4), Arrival("rs:2", None)]), Flown("q", [], "peer q is disabled")]
    with pytest.raises(NotReplicatedError, match=r"^the canary has not arrived in 60 s: peer p from rs:2\. `walferry"):
        require_arrived(flown, 60)


def test_a_canary_that_was_kept_back_proves_nothing() -> None:
    with pytest.raises(NotReplicatedError, match=r"^the canary was not flown: peer q is disabled$"):
        require_arrived([Flown("p", [Arrival("rs:1", 0.4)]), Flown("q", [], "peer q is disabled")], 60)
    require_arrived([Flown("p", [Arrival("rs:1", 0.4)])], 60)


class Source:
    """Two region servers; moves to one of them fail if it is `bad`, and its region may not stay."""

    def __init__(self, sink: list[bytes], bad: int | None = None, stays: bool = True) -> None:
        self.places = [Server("rs", port, 7) for port in (1, 2)]
        self._at, self._sink, self._bad, self._stays = self.places[0], sink, bad, stays

    def servers(self) -> list[Server]:
        return self.places

    def regions(self, table: str) -> list[Region]:
        assert table == TABLE
        left = Region(b"", "left", table, b"", b"a", None, 1)
        return [left, Region(b"", "right", table, b"a", b"", self._at, 1)]

    def move_region(self, region: Region, server: Server) -> None:
        if server.port == self._bad:
            raise ServerGoneError("it has died")
        self._at = server

    def put(self, table: str, cells: list[Cell]) -> None:
        self._sink += [encode_cell(cell.row, cell.family, cell.qualifier, 1, 4, cell.value) for cell in cells]
        if not self._stays:
            self._at = next(server for server in self.places if server != self._at)


def flown(source: Source, arrived: list[bytes]) -> list[Arrival]:
    sink = SimpleNamespace(scan=lambda table: arrived)
    return fly(cast(HBaseClient, cast(Any, source)), cast(HBaseClient, cast(Any, sink)), TABLE, 0.2)


def test_a_row_is_written_at_each_server_and_its_arrival_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "LOOK_SECONDS", 0.01)
    arrived: list[bytes] = []
    rows = flown(Source(arrived), arrived)
    assert [(row.server, row.why, row.seconds is not None) for row in rows] == [
        ("rs:1", None, True), ("rs:2", None, True)
    ]  # fmt: skip
    assert [(row.server, row.seconds) for row in flown(Source([]), [])] == [("rs:1", None), ("rs:2", None)]


def test_a_server_that_takes_no_row_is_named_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "LOOK_SECONDS", 0.01)
    arrived: list[bytes] = []
    failed, fine = flown(Source(arrived, bad=2), arrived)
    assert failed == Arrival("rs:2", None, "it has died")
    assert fine.seconds is not None
    restless = flown(Source([], stays=False), [])
    assert {row.why for row in restless} == {f"the region of {TABLE} does not stay there"}
    with pytest.raises(NotReplicatedError, match=r"peer p from rs:2\. `walferry"):
        require_arrived([Flown("p", [failed, fine])], 60)


def test_a_sink_that_cannot_be_read_at_the_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "LOOK_SECONDS", 0.01)

    def fail(table: str) -> list[bytes]:
        raise ServerGoneError("the sink has no master")

    sink = SimpleNamespace(scan=fail)
    with pytest.raises(ServerGoneError, match="the sink has no master"):
        fly(cast(HBaseClient, cast(Any, Source([]))), cast(HBaseClient, cast(Any, sink)), TABLE, 0.2)


def test_a_row_of_an_earlier_canary_is_no_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "LOOK_SECONDS", 0.01)
    earlier = [encode_cell(row, b"c", b"written", 1, 4, b"another value") for row in (b"rs:1", b"rs:2")]
    assert [row.seconds for row in flown(Source([]), earlier)] == [None, None]


def test_no_canary_is_flown_for_a_peer_that_leads_nowhere_nor_in_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [PeerConfig.of(name, True, pb.ReplicationPeer(clusterkey="zk:2181:/hbase")) for name in ("p", "q")]
    source = SimpleNamespace(cluster_id=lambda: "3f2a9c1e-4ff2")
    monkeypatch.setattr(canary, "HBaseClient", lambda _: nullcontext(source))
    monkeypatch.setattr(canary, "peer_configs", lambda _: peers)
    cluster = Cluster(zookeeper="src:2181", webhdfs="http://nn:9870", rootdir="/hbase")
    spec = ResolvedReplicateSpec(source=cluster, target=None)
    stopped, dry = fly_all(spec, {"p"}, 1, dry_run=True)
    assert stopped.kept_back == "peer p does not lead to a cluster that can take it: see above"
    assert dry.kept_back == f"peer q: a row would be written into {TABLE} at each region server of the source"

from __future__ import annotations

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import table_name
from walferry.hbase.peers import PeerConfig
from walferry.replication.canary import Arrival, Flown, obstacle, require_arrived
from walferry.replication.finding import NotReplicatedError

CANARY = pb.TableCF(table_name=table_name("walferry_canary"))


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
            "{'walferry_canary' => []}",
        ),
        (
            pb.ReplicationPeer(replicate_all=True, exclude_table_cfs=[CANARY]),
            True,
            "peer p leaves the table walferry_canary out",
        ),
    ],
)
def test_a_canary_is_kept_back_where_it_would_not_be_shipped(
    config: pb.ReplicationPeer, enabled: bool, why: str | None
) -> None:
    assert obstacle(PeerConfig.of("p", enabled, config)) == why


def test_a_row_that_has_not_arrived_is_named_by_peer_and_server() -> None:
    flown = [Flown("p", [Arrival("rs:1", 0.4), Arrival("rs:2", None)]), Flown("q", [], "peer q is disabled")]
    with pytest.raises(NotReplicatedError, match=r"^the canary has not arrived in 60 s: peer p from rs:2\. `walferry"):
        require_arrived(flown, 60)


def test_a_canary_that_was_kept_back_proves_nothing() -> None:
    with pytest.raises(NotReplicatedError, match=r"^the canary was not flown: peer q is disabled$"):
        require_arrived([Flown("p", [Arrival("rs:1", 0.4)]), Flown("q", [], "peer q is disabled")], 60)
    require_arrived([Flown("p", [Arrival("rs:1", 0.4)])], 60)

from __future__ import annotations

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import new_table, table_name
from walferry.hbase.peers import PeerConfig
from walferry.replication.plan import _better_replayed, what_it_replicates


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (pb.ReplicationPeer(), "all tables"),
        (
            pb.ReplicationPeer(
                replicate_all=True,
                exclude_namespaces=[b"x"],
                exclude_table_cfs=[pb.TableCF(table_name=table_name("t"), families=[b"g", b"f"])],
            ),
            "all tables without namespace x, t (f, g)",
        ),
        (
            pb.ReplicationPeer(namespaces=[b"y"], table_cfs=[pb.TableCF(table_name=table_name("ns:t"))]),
            "namespace y, ns:t",
        ),
        (pb.ReplicationPeer(replicate_all=False), "nothing"),
    ],
)
def test_what_a_peer_replicates_is_told(config: pb.ReplicationPeer, says: str) -> None:
    assert what_it_replicates(PeerConfig.of("p", True, config)) == says


def test_the_replay_is_said_to_suit_better_where_order_counts() -> None:
    plain, ordered = new_table("t", {"f": {}}), new_table("u", {"f": {"KEEP_DELETED_CELLS": "TRUE"}})
    serial, loose = (PeerConfig.of("p", True, pb.ReplicationPeer(serial=serial)) for serial in (True, False))
    assert list(_better_replayed({"t": plain, "u": ordered}, [serial])) == []
    assert list(_better_replayed({"t": plain}, [loose])) == []
    (why,) = _better_replayed({"t": plain, "u": ordered}, [loose])
    assert why.startswith("u cannot do without the order of a row's edits")

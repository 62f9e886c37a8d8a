from __future__ import annotations

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import table_name
from walferry.hbase.peers import HBASE_ENDPOINT, PINNING_ENDPOINT, PeerConfig


def table_cf(name: str, *families: str) -> pb.TableCF:
    return pb.TableCF(table_name=table_name(name), families=[family.encode() for family in families])


@pytest.mark.parametrize(
    ("config", "replicated"),
    [
        (pb.ReplicationPeer(replicate_all=True), {"t f", "t g", "ns:t f"}),
        (pb.ReplicationPeer(), {"t f", "t g", "ns:t f"}),  # 1.x knows no replicate_all
        (pb.ReplicationPeer(replicate_all=False), set()),
        (pb.ReplicationPeer(table_cfs=[table_cf("t")]), {"t f", "t g"}),
        (pb.ReplicationPeer(replicate_all=False, table_cfs=[table_cf("t", "f")]), {"t f"}),
        (pb.ReplicationPeer(namespaces=[b"ns"]), {"ns:t f"}),
        (pb.ReplicationPeer(namespaces=[b"default"]), {"t f", "t g"}),
        (pb.ReplicationPeer(namespaces=[b"ns"], table_cfs=[table_cf("t", "g")]), {"t g", "ns:t f"}),
        (pb.ReplicationPeer(replicate_all=True, exclude_namespaces=[b"ns"]), {"t f", "t g"}),
        (pb.ReplicationPeer(replicate_all=True, exclude_table_cfs=[table_cf("t")]), {"ns:t f"}),
        (pb.ReplicationPeer(replicate_all=True, exclude_table_cfs=[table_cf("t", "f")]), {"t g", "ns:t f"}),
        # What is left out counts only for a peer of all tables, what is named only for one that is not.
        (pb.ReplicationPeer(replicate_all=True, table_cfs=[table_cf("t", "f")]), {"t f", "t g", "ns:t f"}),
        (pb.ReplicationPeer(replicate_all=False, exclude_table_cfs=[table_cf("t")]), set()),
    ],
)
def test_what_a_peer_replicates_is_what_hbase_takes_it_for(config: pb.ReplicationPeer, replicated: set[str]) -> None:
    peer = PeerConfig.of("p", True, config)
    families = [("t", "f"), ("t", "g"), ("ns:t", "f")]
    assert {f"{table} {family}" for table, family in families if peer.replicates(table, family)} == replicated


@pytest.mark.parametrize(("endpoint", "leads"), [("", True), (HBASE_ENDPOINT, True), (PINNING_ENDPOINT, False)])
def test_only_hbases_own_endpoint_leads_to_a_cluster(endpoint: str, leads: bool) -> None:
    assert PeerConfig.of("p", True, pb.ReplicationPeer(replicationEndpointImpl=endpoint)).is_hbase == leads

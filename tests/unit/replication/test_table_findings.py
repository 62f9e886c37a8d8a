from __future__ import annotations

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import TableDescriptor, new_table, table_name
from walferry.hbase.peers import PeerConfig
from walferry.replication.sink_tables import SinkTable
from walferry.replication.table_findings import nobody_findings, sink_table_findings, table_findings

SCOPED = pb.BytesBytesPair(first=b"REPLICATION_SCOPE", second=b"1")


@pytest.fixture
def table() -> TableDescriptor:
    """One with two families, of which HBase's shell can name only one by plain text."""
    table = new_table("t", {"d": {"REPLICATION_SCOPE": "1"}})
    table.schema.column_families.add(name=b"\xff", attributes=[SCOPED])
    return table


def test_a_family_that_is_not_utf_8_is_shown_as_hbases_shell_reads_it(table: TableDescriptor) -> None:
    (finding,) = table_findings(table.unreplicated())
    assert finding.message.startswith(r"families \xff, d have REPLICATION_SCOPE 0, so no edit of them is replicated: ")
    assert r"""alter 't', {NAME => "\xff", REPLICATION_SCOPE => '1'}, {NAME => 'd', REP""" in finding.message


def test_a_peer_that_can_only_name_text_is_told_to_take_the_whole_table(table: TableDescriptor) -> None:
    config = pb.ReplicationPeer(table_cfs=[pb.TableCF(table_name=table_name("t"), families=[b"d"])])
    (finding,) = nobody_findings({"t": table}, [PeerConfig.of("p", True, config)])
    assert finding.message == (r"peer p does not replicate family \xff: " "append_peer_tableCFs 'p', {'t' => []}")


def test_a_family_that_is_not_utf_8_is_compared_with_the_one_of_the_sink(table: TableDescriptor) -> None:
    peer, there = PeerConfig.of("p", True, pb.ReplicationPeer()), new_table("t", {"d": {}})
    there.schema.column_families.add(name=b"\xff", attributes=[pb.BytesBytesPair(first=b"VERSIONS", second=b"3")])
    (finding,) = sink_table_findings(table, ["d", r"\xff"], peer, SinkTable(there))
    assert finding.message == (r"family \xff at the sink of peer p differs: VERSIONS is not set at the source, 3 there")

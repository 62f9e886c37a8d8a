"""Regions as rows of hbase:meta tell of them."""

from __future__ import annotations

import struct

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.locations import _region


def row(**columns: bytes) -> pb.Result:
    name = pb.TableName(namespace=b"default", qualifier=b"t")
    info = b"PBUF" + pb.RegionInfo(region_id=1, table_name=name, replica_id=0).SerializeToString()
    told = {"regioninfo": info, "server": b"rs:1", "serverstartcode": struct.pack(">q", 2), **columns}
    cells = [pb.Cell(row=b"t,,1.abc.", family=b"info", qualifier=q.encode(), value=value) for q, value in told.items()]
    return pb.Result(cell=cells)


def test_a_region_without_a_state_may_be_in_transition_with_the_numbers_of_its_previous_opening() -> None:
    number = struct.pack(">q", 7)
    of_two, of_one = _region(row(state=b"OPEN", seqnumDuringOpen=number)), _region(row(seqnumDuringOpen=number))
    assert of_two is not None
    assert of_one is not None
    assert (of_two.may_lag, of_two.open_sequence) == (False, 7)
    assert (of_one.may_lag, of_one.open_sequence) == (True, 7)
    closed = _region(row(state=b"CLOSING", seqnumDuringOpen=number))
    assert closed is not None
    assert closed.server is None


def test_in_1_x_a_daughter_has_a_server_before_it_has_opened() -> None:
    opening, opened = ((1).to_bytes(8, "big"), (2).to_bytes(8, "big"))
    regions = [_region(row(seqnumDuringOpen=number)) for number in (opening, opened)]
    assert [region is not None and region.server is not None for region in regions] == [False, True]
    of_two = _region(row(state=b"OPEN", seqnumDuringOpen=opening))
    assert of_two is not None
    assert of_two.server is not None

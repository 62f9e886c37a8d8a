"""Cells go to the servers of their regions, in order, with the clusters that they come from."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from walferry.errors import WalferryError
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.mutations import RowBorders
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import NoSuchFamilyError, RegionNotServedError
from walferry.hbase.locations import Located
from walferry.hbase.multi import Multi, multis, send
from walferry.hbase.zookeeper import Server

HERE, THERE = Server("here", 1, 1), Server("there", 1, 1)


def region(table: str, start: bytes, end: bytes, server: Server | None) -> Region:
    return Region(table.encode() + b"," + start, "e", table, start, end, server, 1)


@dataclass
class Cluster:
    """Tables whose regions are on two servers, and what was asked of them."""

    answer: pb.MultiResponse = field(default_factory=pb.MultiResponse)
    regions: dict[str, list[Region]] = field(
        default_factory=lambda: {
            "t": [region("t", b"", b"h", HERE), region("t", b"h", b"p", THERE), region("t", b"p", b"", HERE)],
            "u": [region("u", b"", b"", THERE)],
        }
    )

    @property
    def pool(self) -> Cluster:
        return self

    def located(self, table: str) -> Located:
        regions = self.regions[table]
        return Located(tuple(regions), RowBorders.of([region.start for region in regions]))

    def call(self, *request: Any, **how: Any) -> tuple[pb.MultiResponse, bytes]:
        return self.answer, b""


def cell(row: bytes, value: bytes = b"", kind: CellType = CellType.PUT) -> bytes:
    return encode_cell(row, b"f", b"q", 7, kind, value, [(8, b"a tag")])


def per_region(multi: Multi) -> dict[bytes, list[bytes]]:
    """The cells of each region's mutations, cut as the server does: by their numbers, in order."""
    rest = b"".join(multi.cells)
    found: dict[bytes, list[bytes]] = {}
    for part in pb.MultiRequest.FromString(multi.message).regionAction:
        for action in part.action:
            for _ in range(action.mutation.associated_cell_count):
                size = 4 + struct.unpack(">i", rest[:4])[0]
                found.setdefault(part.region.value, []).append(rest[:size])
                rest = rest[size:]
    assert rest == b""
    return found


def test_each_server_gets_one_request_with_the_cells_of_its_regions_in_their_order() -> None:
    first = [cell(b"a", b"1"), cell(b"z", b"2"), cell(b"i"), cell(b"a", b"3"), cell(b"a", kind=CellType.DELETE)]
    second = [cell(b"a", b"4"), cell(b"z", b"5")]
    made = multis(
        cast(Calls, Cluster()), [("t", len(first)), ("u", len(second))], memoryview(b"".join(first + second)), [(1, 2)]
    )
    assert {multi.server: per_region(multi) for multi in made} == {
        "here:1": {b"t,": [first[0], first[3], first[4]], b"t,p": [first[1]]},
        "there:1": {b"t,h": [first[2]], b"u,": second},
    }


def test_the_cells_of_one_region_are_not_copied() -> None:
    block = memoryview(b"".join([cell(b"a"), cell(b"b")]))
    (multi,) = multis(cast(Calls, Cluster()), [("t", 2)], block, [(1, 2)])
    (sent,) = multi.cells
    assert cast(memoryview, sent).obj is not None
    assert bytes(sent) == bytes(block)


def test_every_mutation_names_the_clusters_that_it_comes_from() -> None:
    (multi,) = multis(cast(Calls, Cluster()), [("t", 2)], cell(b"a") + cell(b"b"), [(1, 2), (2**64 - 1, 3)])
    (part,) = pb.MultiRequest.FromString(multi.message).regionAction
    expected = bytes.fromhex("00000002" + "00000000000000010000000000000002" + "ffffffffffffffff0000000000000003")
    assert [[(pair.name, pair.value) for pair in action.mutation.attribute] for action in part.action] == [
        [("_cs.id", expected)]
    ] * 2


def test_a_row_whose_region_is_on_no_server_is_an_error_that_passes() -> None:
    cluster = Cluster(regions={"t": [region("t", b"", b"", None)]})
    with pytest.raises(RegionNotServedError, match="is not open on any server now"):
        multis(cast(Calls, cluster), [("t", 1)], cell(b"a"), [(1, 2)])


MOVED = pb.NameBytesPair(name="org.apache.hadoop.hbase.exceptions.RegionMovedException", value=b"Region moved")
NO_FAMILY = pb.NameBytesPair(
    name="org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException", value=b"Column family x does not exist"
)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([pb.RegionActionResult(exception=MOVED)], RegionNotServedError),
        ([pb.RegionActionResult(resultOrException=[pb.ResultOrException()] * 9)], None),
        (
            [
                pb.RegionActionResult(resultOrException=[pb.ResultOrException()]),
                pb.RegionActionResult(
                    resultOrException=[pb.ResultOrException(), pb.ResultOrException(exception=NO_FAMILY)]
                ),
            ],
            NoSuchFamilyError,
        ),
    ],
)
def test_one_mutation_that_fails_is_an_error_of_all(
    answers: list[pb.RegionActionResult], error: type[WalferryError] | None
) -> None:
    cluster = cast(Calls, Cluster(pb.MultiResponse(regionActionResult=answers)))
    if error is None:
        send(cluster, Multi("here:1", b"", ()))
        return
    with pytest.raises(error):
        send(cluster, Multi("here:1", b"", ()))

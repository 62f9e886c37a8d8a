"""Splits and merges before 2.0. A region's server splits it. Before a merge, the master moves both regions to one
server. HBase waits for neither, so hbase:meta is read until it shows the outcome."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.procedures import DEADLINE_S, wait


def split(client: Calls, region: Region, split_row: bytes) -> None:
    """Split a region in two at a row."""
    client.region_call(
        region.table,
        region.start,
        "AdminService",
        "SplitRegion",
        lambda current: pb.SplitRegionRequest(region=current.specifier, split_point=split_row),
        pb.SplitRegionResponse,
    )
    _await_regions(client, region.table, {(region.start, split_row), (split_row, region.end)}, "split")


def merge(client: Calls, regions: Sequence[Region]) -> None:
    """Merge two adjacent regions."""
    # MasterRpcServices.dispatchMergingRegions reads any specifier as an encoded name.
    first, second = (region.encoded_specifier for region in regions)
    request = pb.DispatchMergingRegionsRequest(region_a=first, region_b=second)
    client.master_call("DispatchMergingRegions", request, pb.DispatchMergingRegionsResponse)
    _await_regions(client, regions[0].table, {(regions[0].start, regions[-1].end)}, "merge")


def _await_regions(client: Calls, table: str, borders: set[tuple[bytes, bytes]], what: str) -> None:
    def done() -> bool:
        return borders <= {(region.start, region.end) for region in client.regions(table) if region.server}

    wait(done, f"the {what} of regions of {table}", DEADLINE_S)

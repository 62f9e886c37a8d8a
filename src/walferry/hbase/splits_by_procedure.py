"""Splits and merges as procedures of the master: since 2.0."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region, table_name
from walferry.hbase.procedures import procedure


def split(client: Calls, region: Region, split_row: bytes) -> None:
    """Split a region in two at a row."""
    request = pb.SplitTableRegionRequest(
        region_info=pb.RegionInfo(
            region_id=region.region_id,
            table_name=table_name(region.table),
            start_key=region.start,
            end_key=region.end,
        ),
        split_row=split_row,
    )
    procedure(client, "SplitRegion", request, pb.SplitTableRegionResponse, region.table)


def merge(client: Calls, regions: Sequence[Region]) -> None:
    """Merge adjacent regions."""
    request = pb.MergeTableRegionsRequest(region=[region.encoded_specifier for region in regions])
    procedure(client, "MergeTableRegions", request, pb.MergeTableRegionsResponse, regions[0].table)

"""Splits and merges regions: by the master's procedures or, before 2.0, by the regions' servers.

`HBaseClient` documents each function at its method of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from walferry.hbase import splits_by_procedure, splits_by_server
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region


class _Splits(Protocol):
    """One version's way to split and merge."""

    def split(self, client: Calls, region: Region, split_row: bytes) -> None:
        """Split a region; return when both daughters are open."""

    def merge(self, client: Calls, regions: Sequence[Region]) -> None:
        """Merge regions; return when the merged region is open."""


def split_region(client: Calls, region: Region, split_row: bytes) -> None:
    _way(client).split(client, region, split_row)
    client.forget(region.table)


def merge_regions(client: Calls, regions: Sequence[Region]) -> None:
    _way(client).merge(client, regions)
    client.forget(regions[0].table)


def _way(client: Calls) -> _Splits:
    return splits_by_procedure if client.release.changes_are_procedures else splits_by_server

"""Clients of clusters of a version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Server
from walferry.security import OPEN, Security


def of_version(
    version: str,
    settings: dict[str, str] | None = None,
    address: ClusterAddress | None = None,
    security: Security = OPEN,
) -> HBaseClient:
    client = SimpleNamespace(
        address=address or ClusterAddress("none:1", user="ferry", security=security),
        release=release_of(version),
        version=lambda: version,
        peers_may_change=lambda: None,
        servers=lambda: [Server("rs", 1, 2)],
        settings=lambda _: settings,
    )
    return cast(HBaseClient, client)

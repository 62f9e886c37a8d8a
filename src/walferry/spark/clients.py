"""One client per cluster and process: Spark reuses its Python workers, so connections outlive a task."""

from __future__ import annotations

from functools import cache

from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.storage import FileSystem, WebHdfs


@cache
def shared_client(address: ClusterAddress) -> HBaseClient:
    """The client of this process for a cluster."""
    return HBaseClient(address)


@cache
def shared_files(address: ClusterAddress) -> FileSystem:
    """The file system of a cluster, over WebHDFS."""
    if address.webhdfs is None:
        raise ValueError(f"the address of the cluster at {address.zookeeper} names no WebHDFS")
    return WebHdfs(address.webhdfs, address.user)

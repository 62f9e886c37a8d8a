"""The executors' clients, one per cluster and process: Spark reuses its Python workers, and so the connections."""

from __future__ import annotations

from functools import cache

from pyspark.sql import SparkSession

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
    return WebHdfs(address.webhdfs, address.user, meter=address.meter())


def workers(spark: SparkSession) -> int:
    """How many tasks, each in a process with clients of its own, run at once."""
    return spark.sparkContext.defaultParallelism

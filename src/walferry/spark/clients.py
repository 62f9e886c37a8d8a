"""The executors' clients, one per cluster and process. Spark reuses its Python workers and thus their connections."""

from __future__ import annotations

from pyspark.sql import SparkSession

from walferry.background import made_once
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.retry import FAILOVER_ATTEMPTS
from walferry.storage import FileSystem
from walferry.wal.copies import files_of


@made_once
def shared_client(address: ClusterAddress) -> HBaseClient:
    """This process's client for a cluster."""
    return HBaseClient(address, master_attempts=FAILOVER_ATTEMPTS)


@made_once
def shared_files(address: ClusterAddress) -> FileSystem:
    """This process's file system for a cluster, including the copies of its WALs."""
    return files_of(address)


def shared_log_files(address: ClusterAddress) -> FileSystem:
    """This process's file system for a cluster's log, including the copies of its WALs."""
    return shared_files(address.of_log)


def workers(spark: SparkSession | None) -> int:
    """How many tasks run at once, each in a process with clients of its own; without Spark only this process."""
    return spark.sparkContext.defaultParallelism if spark is not None else 1

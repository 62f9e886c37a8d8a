"""Lets PySpark find `hbase_snapshot`: it looks for packages named pyspark_* that have a DefaultSource."""

from walferry.spark.snapshot_source import HBaseSnapshotDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""Lets PySpark find `hbase_wal`: it looks for packages named pyspark_* that have a DefaultSource."""

from walferry.spark.wal_source import HBaseWalDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""Lets PySpark find `hbase_changes`: it looks for packages named pyspark_* that have a DefaultSource."""

from walferry.spark.changes_source import HBaseChangesDataSource as DefaultSource

__all__ = ["DefaultSource"]

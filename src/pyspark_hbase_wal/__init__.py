"""PySpark registers `hbase_wal` by itself: it looks for packages called pyspark_* that have a DefaultSource."""

from walferry.spark.wal_source import HBaseWalDataSource as DefaultSource

__all__ = ["DefaultSource"]

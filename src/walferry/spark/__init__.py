"""Spark: the `hbase_wal` data source, and the distributed parts of copy, replay and comparison."""

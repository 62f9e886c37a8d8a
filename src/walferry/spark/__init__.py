"""Only what is Spark: the session, work fanned out to executors, and the data source `hbase_wal`."""

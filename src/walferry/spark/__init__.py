"""Everything that depends on Spark: the session, fanning work out to executors, and the data sources."""

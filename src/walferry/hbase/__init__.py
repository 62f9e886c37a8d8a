"""A client of HBase in Python: its RPC, ZooKeeper registry, administration, mutations, scans, replication."""

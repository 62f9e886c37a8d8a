"""An HBase client in Python: RPC, ZooKeeper registry, administration, mutations, scans, replication."""

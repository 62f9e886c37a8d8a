"""Processes that pose as the region servers of a sink cluster, so that HBase's own replication ships to walferry.

`presence` is how a source finds them: a subtree of ZooKeeper that looks like a cluster. `hbase.rpc_server` takes the
calls of the source, and `calls` reads what they hold. `receiver` handles them: `holding` says which process writes
which table, `in_order` whose turn it is, `seen` what was applied before, `applying` sends and records. `loads` applies
bulk loads, whose files `loaded_files` finds at the source. `service` is the whole of it. `receive_plan` says beforehand
what is in the way.
"""

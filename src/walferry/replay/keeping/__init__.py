"""Nothing of the source's log is lost before it is applied.

Start with `protect`: it chooses between two modules with the same functions, `by_peer` (a disabled replication peer)
and `by_copies` (a copy of each log in a folder). `objects` records what a run creates on the clusters and removes it at
the end; `retention` says how long the source keeps a log by itself, `obstacles` what stands in the way.
"""

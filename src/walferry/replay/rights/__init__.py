"""The right to write to a target table, and how much of it at once.

`lease` has one holder per table, on the target's ZooKeeper; `claims` is what each executor knows of it; `applying`
takes all leases of a run, and is where to start. `dirty` marks rows after a request whose sender may have lost the
lease, `durability` keeps acknowledged edits over a crash, `standstill` lets rows be written beside the log.
`throttle_share` and `pace` bound how much is written per second.
"""

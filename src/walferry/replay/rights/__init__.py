"""The right to write to a target table, and how much of it at once.

Start with `applying`, which takes all leases of a run. `lease` gives each table one holder, recorded in the target's
ZooKeeper; `claims` is what each process knows about the leases; `znodes` says who may change walferry's nodes there.
`dirty` marks rows after a request whose sender may have lost the lease, `durability` makes acknowledged edits survive a
crash, `standstill` pauses the replay so that rows can be written beside the log. `throttle_share` and `pace` limit how
much is written per second.
"""

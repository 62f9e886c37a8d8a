"""Follow the log: rounds over sealed files, and open logs in between.

`follower` is where to start: it decides when a round begins. `rounds` is one cut and its batch, `completeness` asks
whether every file is there, `batch` applies it; `drain` is the last one. `batch_work` is what a batch consists of, and
`batch_bulk` loads one as HFiles. `open_logs` sends what has become visible since, `open_tail` reads it while it is
written, `handover` says of which entries the order is known, and `early` what was sent of a file before its batch.
"""

"""Follow the log: rounds over sealed files, and open logs in between.

Start with `follower`: it decides when a round begins. `rounds` makes a cut and its batch, also for the drain;
`completeness` checks that every file exists, `batch` applies the batch. `batch_work` defines a batch, `batch_bulk`
loads one as HFiles, `drain` is the DAG that applies sealed files. `open_logs` sends edits that become visible between
cuts, `open_tail` reads an open log, `sendable` decides which of its entries may be sent, and `sent_before_batch` says
what was sent of a file before its batch.
"""

"""Any moment of a table: what must be kept for it, and how a table is restored to it.

`keeping/` is a run of kind `keep`: it takes snapshots of tables from time to time (bases), and copies the log and the
ends of open logs to a folder, until a person ends it. A table is restored to a moment from the last base before it and
the log since. What both share is in the ledger: `ledger.bases` and `ledger.staged`. docs/moments.md describes what is
kept, and what is lost when.
"""

"""Any moment of a table: what must be kept for it, and how a table is restored to it.

`keeping/` is a run of kind `keep`: it takes snapshots of tables from time to time (bases), and copies the log and the
ends of open logs to a folder, until a person ends it. `restoring/` is a run of kind `restore`: a new table from the
last base before a moment and the log since. What both share is in the ledger: `ledger.bases` and `ledger.staged`.
docs/moments.md describes what is kept, and what is lost when; docs/restore.md what belongs to a moment.
"""

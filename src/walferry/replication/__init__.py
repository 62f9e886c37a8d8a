"""HBase's own replication, as somebody else has set it up: what stops it (`plan`), how far it is (`status`), and the
proof that all is shipped (`shipped`).

Nothing here changes a peer or a table. The proof has the source's servers roll their logs. The canary (`canary`) writes
rows into a table of its own at the source.
"""

"""HBase's own replication, as somebody else has set it up: what stops it (`plan`), and how far it is (`status`).

Nothing here changes a peer or a table. The canary (`canary`) writes rows into a table of its own at the source.
"""

"""Restore a table to a moment: from a base and the log, into a new table.

Start with `restore`. `base` chooses the base, `log_part` says which entries of each region belong to that moment,
`check` compares the new table with base and log as they are read from their files.
"""

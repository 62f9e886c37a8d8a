"""Decide which edits of the log are applied, and when.

Start with `rounds/`, which follows the log, or `windows/`, which replays a span of time. Both use `rights/` (who may
write), `keeping/` (the source must not delete the log), `log/` (what the log holds) and `pieces/` (work in units that
are recorded one by one). `record_reports` records what was applied, `quarantine` handles edits that could not be
applied, `targets` checks the target tables.
"""

"""What of the log is applied when.

`rounds/` follows the log, `windows/` replays a span of time: both are where to start. They rest on `rights/` (who may
write), `keeping/` (the log is not deleted), `log/` (what it holds) and `pieces/` (work that is recorded bit by bit).
`quarantine` has what could not be applied, `targets` whether the target tables are there.
"""

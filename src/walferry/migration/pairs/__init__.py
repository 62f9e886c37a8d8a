"""Tables that something else keeps equal, verified without a migration.

`pair_pass` is where to start: `pair_log` says what was written, `pair_plan` what to read, `pair_regions` and
`pair_rows` read it, `pair_spot_check` asks a second reader, and `pair_findings` tells people.
"""

"""Tables that something else keeps equal, verified without a migration.

Start with `pair_pass`. `pair_log` finds what was written, `pair_plan` decides what to read, `pair_regions` and
`pair_rows` read it, `pair_shipping` waits for the peers that feed the clusters, `pair_spot_check` asks a second
reader, and `pair_findings` reports to people. `pair_repair` repairs rows.
"""

"""Whether source and target are equal.

Start with `compare`, which compares a table region by region (`parts`); `written_rows` reads only touched rows. Their
callers are `compare_ahead` (beside the replay), `compare_last` (after the drain) and `compare_now` (when a person
asks). `spot_check` has a `second_reader` read some rows.
"""

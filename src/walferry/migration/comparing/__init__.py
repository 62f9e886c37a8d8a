"""Whether source and target are equal.

`compare` compares a table and is where to start, region by region (`parts`); `written_rows` reads only what was
touched. They are asked by `compare_ahead` (beside the replay), `compare_last` (after the drain) and `compare_now` (by a
person). `spot_check` lets a `second_reader` look at rows.
"""

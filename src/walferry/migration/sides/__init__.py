"""Read rows on both sides.

Start with `digest`, which compares row ranges by digests. `stored_sides` reads the ranges from the store files of
snapshots, and `row_sides` reads the cells of single rows. `fragile_rows` names the rows that may change without an
edit, and `store_files` shows whether they may have changed.
"""

"""Both sides of rows, as they are read.

`digest` compares row ranges by digests and is where to start; `stored_sides` reads them from store files of snapshots,
`row_sides` the cells of single rows. `fragile_rows` are those whose reading does not last, `store_files` tell whether
it still holds.
"""

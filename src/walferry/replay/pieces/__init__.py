"""Work in pieces of bounded size, each of them recorded on its own: a kill costs the pieces that were running.

`pieces` cuts files into them and works through them. `group_pieces` applies pieces that are files of WAL groups,
`row_ranges` cuts and applies ranges of rows. `bulk_pieces` says whether tables take edits in bulk, and loads them.
"""

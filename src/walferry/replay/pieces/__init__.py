"""Work in pieces of bounded size, each recorded on its own: a kill costs only the pieces that were running.

`pieces` cuts files into pieces and works through them. `group_pieces` applies pieces that are files of WAL groups.
`row_ranges` cuts and applies ranges of rows. `bulk_pieces` checks whether tables take edits in bulk, and loads them.
"""

"""Work in pieces of bounded size, each of them recorded on its own: a kill costs the pieces that were running.

`pieces` cuts files into them and works through them; `row_ranges` cuts rows of regions that moved; `bulk_pieces` says
whether tables take edits in bulk, and in which ranges.
"""

"""What the source's log holds for a run, and whether it is all there.

`cut` is where to start: it rolls the WALs and says which files are sealed. `idle` leaves out servers that have nothing
new. `lineage` tells whether a table's history goes on, `numbering` whether entries are missing, `taken_back` whether a
log was sealed with other bytes than it had shown. `window_log` finds the files of a span of write time, `settled` what
other runs have applied of it.
"""

"""What the source's log holds for a run, and whether the log is complete.

Start with `cut`: it rolls the WALs and says which files are sealed. `idle` leaves out servers that have nothing new.
`lineage` checks whether a table's history continues, `numbering` whether entries are missing, `taken_back` whether a
log was sealed with other bytes than it had shown while open. `files_of_window` finds the files that a window needs,
`settled` the edits of a window that other runs have applied.
"""

"""Make the target show what the source shows.

`repair` is where to start; `row_repair` plans it for a row, `repairable` says for which rows. `copy_again` empties a
table and copies it again. `asked_repairs` are those that somebody asks for, `known_differences` the rows that differ
while the log is followed.
"""

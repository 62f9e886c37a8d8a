"""Make the target show what the source shows.

Start with `repair`. `row_plan` plans the repair of a row, and `repairable` says which rows are repaired. `copy_again`
empties a table and copies it again. `asked_repairs` does the repairs that somebody asks for, and `known_differences`
handles rows that differ while the log is followed.
"""

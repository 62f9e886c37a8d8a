"""Which rows were touched since a table was compared, and how far that comparison still counts.

`touched` looks for such rows on both sides, and `unlogged_rows` for rows that no log shows. `equality` records what is
known to be equal, and `verified` reports it to people.
"""

"""The rows that a table has already, from a snapshot, and what of the log is then left out.

Start with `sender`, which takes each table through its steps (`records`). `taking` takes a snapshot, `rows` reads it,
and `covered` knows which cells of the log it has.
"""

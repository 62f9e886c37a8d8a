"""What has been touched since a table was compared, and how far that comparison still counts.

`touched` looks for it on both sides, `unlogged_rows` for what no log shows; `equality` keeps what is known to be equal,
and `verified` tells it to people.
"""

"""What people are told of a run: by the shell, the board, metrics and `--json` alike.

`status` is everything at once and where to start, `state` its name, cause and next step. `lag`, `backlog` and
`write_stop` have one formula each. Nothing here changes what a run does.
"""

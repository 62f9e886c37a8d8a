"""What people are told of a run: by the shell, the board, metrics and `--json` alike.

`status` is everything at once and where to start, `state` is its name, cause and next step: `states` has every one,
`needs_person` and `at_work` find it out, `next_step` has the commands. `lag`, `backlog` and
`write_stop` have one formula each. Nothing here changes what a run does.
"""

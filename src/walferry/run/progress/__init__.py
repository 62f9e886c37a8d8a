"""What the shell, the board, metrics and `--json` show of a run.

Start with `status`, which has everything at once. `state` gives the run's state with its cause and next step: `states`
lists all states, `needs_person` and `at_work` derive the current one, `next_step` has the commands. `lag`, `backlog`
and `write_stop` compute one number each. Nothing here changes what a run does.
"""

"""What must hold before the target opens, and how it opens.

`readiness` answers each question for `walferry ready`, the board and the gate; `gates` shut until all is well.
`approval` has the person's words and the write stop, `open_target` the last comparison and the opening. `late_edits`
are written past the end fence; `ways_out` of a write stop whose checks did not pass; `reopening` has phases done again.
"""

"""What must hold before the target opens, and how it opens.

Start with `conditions`: the table of all that must hold, and when. `ledger_answers` and `cluster_answers` find out
whether it does. `readiness` shows it to people, `gates` shut until it does. `approval` has the person's words and the
write stop, `open_target` the last comparison and the opening. `late_edits` are written past the end fence; `ways_out`
lead on after checks that did not pass; `reopening` has phases done again.
"""

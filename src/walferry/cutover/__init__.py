"""What must hold before the target opens, and how it opens.

Start with `conditions`: the table of everything that must hold, and when. `ledger_answers` and `cluster_answers` check
the conditions. `readiness` shows them to people, and `gates` stay shut until they hold. `approval` has the person's
answers and the write stop, and `open_target` the last comparison and the opening. `late_edits` handles edits past the
end fence, `ways_out` leads on from checks that did not pass, and `reopening` has phases repeated.
"""

"""A run as its processes see it.

`run` is the handle on spec, ledger and both clusters, and where to start; `spec` is what the user gave, `start` opens
it, `phases` is the table of what it does. `facts` are what phases found out, `fences` where replay begins and ends,
`heartbeat` shows that a process is alive. `notes/` is what processes leave for each other, `progress/` what is told.
"""

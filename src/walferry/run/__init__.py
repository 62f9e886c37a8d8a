"""A run as its processes see it.

Start with `run`, the handle on the spec, the ledger and both clusters. `spec` is what the user gave, `start` opens a
run in the ledger, `phases` lists its phases. `facts` holds what phases found out, `fences` where replay begins and
ends, `heartbeat` shows that a process is alive. Processes leave `notes/` for each other; people see `progress/`.
"""

"""Why a row differs.

`reasons` reads both sides again and is where to start; `explain` finds the class of the difference, from raw cells,
from the log (`wal_lookup`), from what clients wrote (`client_writes`) and from what changed by itself
(`since_opening`). `accept` keeps a person's decision about it.
"""

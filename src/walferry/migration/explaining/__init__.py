"""Why a row differs.

Start with `classify_rows`, which reads both sides again. `explain` then finds the class of the difference, from raw
cells, from the log (`wal_lookup`), from clients' writes (`client_writes`) and from rows that changed by themselves
(`since_opening`). `accept` records a person's decision about the difference.
"""

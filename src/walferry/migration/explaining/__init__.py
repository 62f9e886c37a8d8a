"""Why a row differs.

Start with `explain_rows`, which reads both sides again. `difference_classes` then finds the class of each difference,
from raw cells, from the log (`wal_lookup`), from clients' writes (`client_writes`) and from rows that changed by
themselves (`since_opening`). `accept` records a person's decision about the difference.
"""

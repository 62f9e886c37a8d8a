"""Merges edits of one row, so that they become one message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from walferry.formats.cells import find_cells, row_starts
from walferry.formats.wal import EntryBatch
from walferry.receive.seen import Mask, Picked


def merged_rows(batch: EntryBatch, picked: Picked, apart: Mask) -> EntryBatch:
    """The entries `picked`, in their order. Those of one row and region that follow each other in the batch, without
    another row, are one entry, with the number and the write time of the last of them. Those that are `apart` stay
    entries of their own, and so does one whose number is lower than that of the one before: it is older, and consumers
    see that by its version."""
    entries = batch.take(picked)
    last_cell = np.cumsum(entries.cell_count)
    first_cell = last_cell - entries.cell_count
    cells, *_ = find_cells(entries.buffer, entries.cells_start, entries.cell_count)
    begins_row = np.zeros(len(cells) + 1, np.int64)
    begins_row[row_starts(entries.buffer, cells)] = 1
    rows = np.cumsum(begins_row)
    has_one = rows[last_cell - 1] == rows[first_cell]
    joins = has_one & ~apart & (begins_row[first_cell] == 0)
    joins[1:] &= has_one[:-1] & ~apart[:-1] & (entries.sequence_number[1:] >= entries.sequence_number[:-1])
    joins[1:] &= entries.cells_start[1:] == entries.end[:-1]
    for column in (entries.region, entries.table, entries.clusters):
        joins[1:] &= column[1:] == column[:-1]
    firsts = np.flatnonzero(~joins)
    lasts = np.append(firsts[1:], len(picked)) - 1
    return replace(
        entries.take(firsts),
        offset_end=entries.offset_end[lasts],
        end=entries.end[lasts],
        cell_count=np.add.reduceat(entries.cell_count, firsts),
        mutation_count=np.add.reduceat(entries.mutation_count, firsts),
        sequence_number=entries.sequence_number[lasts],
        write_time=entries.write_time[lasts],
    )

"""The images of the rows of a snapshot, from what is stored of them."""

from __future__ import annotations

import numpy as np

from walferry.formats.cells import cell_lengths, gather
from walferry.formats.entries import index_entry_cells
from walferry.formats.resolve import FamilyRules, Fate, resolve
from walferry.formats.wal import EntryBatch
from walferry.hbase.descriptors import TableDescriptor
from walferry.streams.image.proof import doubtful_rows, may_be_exact
from walferry.streams.message.changes import Form
from walferry.streams.message.image_cells import changed_rows, images
from walferry.streams.message.images import Images


def stored_images(form: Form, batch: EntryBatch, table: TableDescriptor) -> Images:
    """The images of whole rows of a snapshot, one entry each, that are stored as `snapshot.rows` has them: what a
    reader sees of them at their write time, when it was taken. They are exact if the table's may be, and the row is not
    doubtful."""
    rules = {
        name.encode(): FamilyRules(1, min(1, family.min_versions), family.ttl_ms)
        for name, family in table.families.items()
    }  # fmt: skip
    changed = changed_rows(form, batch, np.arange(len(batch)))
    cells, entry, _ = index_entry_cells(batch)
    shown = np.flatnonzero(resolve(cells, rules, int(batch.write_time[0])) == Fate.VISIBLE)
    starts = cells.position[shown]
    ends = starts + cell_lengths(batch.buffer, starts)
    first = np.searchsorted(starts, batch.start[changed.entry])
    stop = np.searchsorted(starts, batch.end[changed.entry])
    data = gather(batch.buffer, starts, ends).data
    borders = np.cumsum([0, *(ends - starts).tolist()], dtype=np.int64)
    blocks = [
        data[begin:end].tobytes() for begin, end in zip(borders[first].tolist(), borders[stop].tolist(), strict=True)
    ]  # fmt: skip
    exact = ~np.isin(changed.entry, doubtful_rows(cells, entry)) & may_be_exact(table)
    return images(form, batch, changed, blocks, exact)

"""From the changes of a batch to the rows whose images are wanted, and from the cells of those to images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from walferry.formats.cells import Int64s, index_cells, row_at
from walferry.formats.kernels import CELL_FIELDS
from walferry.formats.wal import EntryBatch
from walferry.streams.message import _change_kernels as kernels
from walferry.streams.message.changes import FORMS, Form, decoded_values, find_runs, selected
from walferry.streams.message.images import Images


@dataclass(frozen=True)
class ChangedRows:
    """The rows that edits of a batch have changed, in their order: one for each message that they may give."""

    entry: Int64s  # in the batch
    place: Int64s  # where the run of each begins in the batch's buffer
    row: list[bytes]


def changed_rows(form: Form, batch: EntryBatch, picked: npt.NDArray[np.intp]) -> ChangedRows:
    """The rows of which the edits with these rising numbers in the batch have changed a selected cell."""
    runs = find_runs(replace(form, decode=None), batch, picked, np.zeros(len(picked), np.int32)).fields
    place = runs[:, kernels.START]
    rows = [row_at(batch.buffer, start) for start in place.tolist()]
    return ChangedRows(picked[runs[:, kernels.PICK]].astype(np.int64), place, rows)


_NONE: Mapping[int, str] = {}


def images(
    form: Form,
    batch: EntryBatch,
    changed: ChangedRows,
    cells: Sequence[bytes | None],
    exact: npt.NDArray[np.bool_],
    refused_rows: Mapping[int, str] = _NONE,
) -> Images:
    """The images of changed rows, of which a reader sees these cells: for each row a run of puts, or None if it was not
    read. `refused_rows`: why no message can have the row with this number.

    The form's selection applies to families and columns. Takes a few times the memory of the cells. Raises
    DamagedInputError for what is no run of cells.
    """
    blocks = [block or b"" for block in cells]
    buffer = np.frombuffer(b"".join(blocks), np.uint8)
    ends = np.cumsum([0, *map(len, blocks)], dtype=np.int64)
    index = index_cells(buffer)
    bytes_as, cell = FORMS[form.bytes_as], np.empty((CELL_FIELDS, 1), np.int64)
    chosen = np.zeros(len(index), np.uint8)
    size = kernels.choose_cells(
        buffer, index.position, selected(form.selection), bytes_as, form.decode is not None, cell, chosen
    )
    decoded, refused = (np.empty(0, np.uint8), np.empty(0, np.int64)), dict(refused_rows)
    if form.decode is not None:
        puts = np.flatnonzero(chosen)
        owner = np.searchsorted(ends, index.position[puts], side="right") - 1
        tables = batch.table[changed.entry[owner]]
        decoded = decoded_values(form.decode, index, puts, tables, batch.tables, owner, refused)
    texts = np.empty(size + len(decoded[0]), np.uint8)
    text_ends = np.zeros(len(cells) + 1, np.int64)
    end = kernels.write_lists(buffer, ends[:-1], ends[1:], chosen, bytes_as, decoded, cell, texts, text_ends)
    unread = np.array([block is None for block in cells], np.bool_)
    return Images(texts[:end], text_ends, exact, unread, changed.place, refused)

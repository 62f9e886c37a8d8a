"""The rows of history in Arrow: one for each cell of the log, and one for each event (docs/history.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.formats.cells import Int32s, Int64s, number_column, row_column
from walferry.formats.changes import CHANGE_SCHEMA, PlacedCells, version_of
from walferry.formats.entries import index_entry_cells
from walferry.formats.wal import EntryBatch
from walferry.streams.message import _change_kernels as kernels
from walferry.streams.message.changes import Form, find_runs

_NAMES = ("_change_type", "table", "family", "region")
CHANGES = pa.schema(
    [
        pa.field(
            one.name,
            pa.dictionary(pa.int32(), one.type) if one.name in _NAMES else one.type,
            nullable=one.name in ("value", "tags"),
        )
        for one in CHANGE_SCHEMA
    ]
    + [
        pa.field("incarnation", pa.int32(), nullable=False),  # which is also in _commit_version
        pa.field("epoch", pa.int32(), nullable=False),
    ]
)
"""The columns of `walferry.formats.changes`, and two more. Names are dictionaries in memory and strings in files."""
EVENTS = pa.schema(
    [
        ("kind", pa.string()),
        ("table", pa.string()),
        ("region", pa.string()),  # null in snapshot_begins and snapshot_ends
        ("sequence_number", pa.int64()),  # null as the region
        ("incarnation", pa.int32()),  # null as the region
        ("write_time", pa.timestamp("us", "UTC")),  # whole milliseconds; null where the log does not say it
        ("epoch", pa.int32()),
        ("json", pa.string()),  # the whole message, as Kafka would get it
    ]
)


@dataclass(frozen=True)
class Changes:
    """The rows of n runs of cells of one row in an entry."""

    cells: pa.RecordBatch
    """as CHANGES, in the order of the entries"""
    rows: pa.Array
    """binary[n]: the row of each run"""
    entry: Int64s
    """int64[n]: its entry's number in the batch"""
    refused: dict[int, str]
    """number of the run -> why it cannot be kept"""

    def __len__(self) -> int:
        return len(self.entry)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return int(self.cells.nbytes)

    def name(self, number: int) -> str:
        """The row of a run, as a person reads it."""
        return repr(self.rows[number].as_py())


def changes_of(form: Form, batch: EntryBatch, picked: npt.NDArray[np.intp], incarnation: Int32s) -> Changes:
    """The rows of the edits with these numbers in the batch; `incarnation` has one number for each of them.

    Runs are refused as in `find_runs`.
    """
    found = find_runs(form, batch, picked, incarnation)
    entries, runs = found.entries, found.fields
    cells, entry, _ = index_entry_cells(entries)
    numbers = np.flatnonzero(found.chosen)
    placed = PlacedCells(entries, cells.pick(numbers), entry[numbers])
    of_run = runs[np.searchsorted(runs[:, kernels.FIRST], numbers, side="right") - 1]
    index, known = of_run[:, kernels.INDEX], incarnation[placed.entry]
    own: dict[str, npt.NDArray[np.integer]] = {
        "_commit_version": version_of(known.astype(np.int64), entries.sequence_number[placed.entry], index),
        "index": index.astype(np.int32),
        "cell": (numbers - of_run[:, kernels.FIRST]).astype(np.int32),
        "incarnation": known.astype(np.int32),
        "epoch": np.full(len(numbers), form.epoch, np.int32),
    }
    columns = [number_column(own[name]) if name in own else placed.column(name) for name in CHANGES.names]
    return Changes(
        pa.RecordBatch.from_arrays(columns, schema=CHANGES),
        row_column(entries.buffer, runs[:, kernels.START]),
        picked[runs[:, kernels.PICK]].astype(np.int64),
        found.refused,
    )


def event_row(message: bytes) -> dict[str, Any]:
    """The row of an event, as EVENTS, given its message's value: JSON."""
    value = json.loads(message)
    position, write_time_ms = value.get("position"), value.get("write_time")
    return {
        "kind": value["event"]["kind"],
        "table": value["table"],
        "region": value.get("region"),
        "sequence_number": value.get("sequence_number"),
        "incarnation": position and position[0],
        "write_time": None if write_time_ms is None else 1000 * write_time_ms,
        "epoch": value["epoch"],
        "json": message.decode(),
    }


def events_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Events as EVENTS."""
    return pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in EVENTS})

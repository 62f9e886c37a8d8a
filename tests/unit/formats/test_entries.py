"""The cells of a WAL's entries as rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from walferry.formats.cells import encode_cell
from walferry.formats.entries import entry_cells
from walferry.formats.wal import WalReader

TAG = (8, (86_400_000).to_bytes(8, "big"))


def cell(i: int, tags: Sequence[tuple[int, bytes]] = ()) -> bytes:
    return encode_cell(b"r%d" % i, b"f", b"q", 1000 + i, 4, b"v%d" % i, tags)


def test_the_cells_of_chosen_entries_become_rows_with_the_entry_they_belong_to() -> None:
    entries = [entry([cell(i), cell(i + 1, tags=[TAG])], sequence_number=i + 1) for i in range(6)]
    starts = list(itertools.accumulate((len(one) for one in entries), initial=len(header())))
    (batch,) = WalReader([header() + b"".join(entries) + TRAILER], "some.wal")
    select = np.array([False, True, False, False, False, True])
    rows = entry_cells(batch, "some.wal", select).to_pylist()
    assert [(row["sequence_number"], row["index"], row["offset"]) for row in rows] == [
        (2, 0, starts[1]), (2, 1, starts[1]), (6, 0, starts[5]), (6, 1, starts[5]),
    ]  # fmt: skip
    assert rows[1] == {
        "table": "t1",
        "region": REGION.decode(),
        "sequence_number": 2,
        "index": 1,
        "write_time": 1700000000000,
        "row": b"r2",
        "family": b"f",
        "qualifier": b"q",
        "timestamp": 1002,
        "type": 4,
        "value": b"v2",
        "tags": bytes([0, 9, 8]) + TAG[1],
        "file": "some.wal",
        "offset": starts[1],
    }

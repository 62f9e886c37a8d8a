"""Rows of a snapshot of a file that HBase wrote."""

from __future__ import annotations

import base64
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unit.hfile_snapshot import laid_out, stored
from unit.streams.message.naive_messages import KINDS
from walferry.snapshots.manifest import read_manifest, snapshot_regions
from walferry.storage import Local
from walferry.streams.message.changes import Form, SnapshotMark, messages
from walferry.streams.snapshot import rows as reading
from walferry.streams.snapshot.rows import rows_of


def read(root: Path, start: bytes = b"") -> list[tuple[dict[str, Any], bytes]]:
    """The messages of the rows, each with the row that may follow its batch."""
    (region,) = snapshot_regions(str(root), read_manifest(Local(), str(root), "s"))
    found = []
    for rows in rows_of(Local(), "t", region, start, 7, 1234):
        picked = np.arange(len(rows.batch))
        made = messages(Form("c", 1, snapshot=SnapshotMark("s")), rows.batch, picked, np.full(len(picked), 2, np.int32))
        assert not made.refused
        found += [(json.loads(made.value(number)), rows.next) for number in range(len(made))]
    return found


def as_stored(value: dict[str, Any]) -> list[tuple[Any, ...]]:
    plain = base64.b64decode
    return [
        (
            plain(value["row"]), cell["family"].encode(), plain(cell["qualifier"]), cell["timestamp"], cell["kind"],
            plain(cell.get("value", "")),
        )
        for cell in value["cells"]
    ]  # fmt: skip


EXPECTED = [(*cell[:4], KINDS[cell[4]], cell[5]) for cell in stored()]


@pytest.mark.parametrize("most", [1, 7, 100_000])
def test_each_row_is_one_message_with_all_that_is_stored_of_it(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_CELLS", most)
    found = read(laid_out(tmp_path))
    assert [cell for value, _ in found for cell in as_stored(value)] == EXPECTED
    rows = [row for row, _ in groupby(EXPECTED, key=lambda cell: cell[0])]
    assert [base64.b64decode(value["row"]) for value, _ in found] == rows
    for value, _ in found:
        assert (value["snapshot"], value["position"], value["write_time"]) == ("s", [2, 7, 65280], 1234)


def test_reading_goes_on_at_the_row_that_follows_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_CELLS", 5)
    root = laid_out(tmp_path)
    whole = read(root)
    borders = sorted({following for _, following in whole})
    assert len(borders) > 3
    for border in borders:
        rest = read(root, border)
        assert rest == [one for one in whole if base64.b64decode(one[0]["row"]) >= border]

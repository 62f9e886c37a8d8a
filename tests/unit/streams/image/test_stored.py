"""The image of a snapshot's row is what a reader sees of what is stored."""

from __future__ import annotations

import json

import numpy as np

from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.formats.cells import CellType
from walferry.hbase.descriptors import new_table
from walferry.streams.image.stored import stored_images
from walferry.streams.message.changes import BytesAs, Form, Selection, SnapshotMark, messages

FORM = Form("c", 1, BytesAs.UTF8, snapshot=SnapshotMark("s", 0))


def shown(form: Form, entries: list[Entry], **attributes: str) -> list[tuple[bool, list[str]]]:
    batch = batch_of([one._replace(write_time=1000) for one in entries])
    images = stored_images(form, batch, new_table("t1", {"f": attributes, "g": {}}))
    made = messages(form, batch, np.arange(len(batch)), np.zeros(len(batch), np.int32), images)
    found = [json.loads(made.value(number))["image"] for number in range(len(made))]
    return [(one["exact"], [cell["value"] for cell in one["cells"]]) for one in found]


def test_it_has_the_newest_version_that_no_marker_hides() -> None:
    hidden = Cell(b"a", b"f", b"q", 7, value=b"hidden")
    row = [
        Cell(b"a", b"f", b"p", 9, value=b"newest"), Cell(b"a", b"f", b"p", 8, value=b"older"),
        Cell(b"a", b"f", b"q", 7, CellType.DELETE), hidden, Cell(b"a", b"f", b"q", 6, value=b"below"),
        Cell(b"a", b"g", b"", 5, CellType.DELETE_FAMILY), Cell(b"a", b"g", b"q", 4, value=b"gone"),
    ]  # fmt: skip
    rows = [Entry(row), Entry([Cell(b"b", b"g", b"q", 5, CellType.DELETE_COLUMN)]), Entry([Cell(b"c", value=b"c")])]
    assert shown(FORM, rows, VERSIONS="3") == [(True, ["newest", "below"]), (True, []), (True, ["c"])]
    only = Form("c", 1, BytesAs.UTF8, Selection(columns=((b"f", b"q"),)), snapshot=SnapshotMark("s", 0))
    assert shown(only, rows, VERSIONS="3") == [(True, ["below"]), (True, ["c"])]


def test_a_row_that_may_have_shown_something_else_is_not_exact() -> None:
    marker = Cell(b"a", b"f", b"", 5, CellType.DELETE_FAMILY)
    ttl = Cell(b"a", b"f", b"q", 900, value=b"ttl", tags=[(8, (1000).to_bytes(8, "big"))])
    above, other = Cell(b"a", b"f", b"", 9, value=b"above"), Cell(b"a", b"f", b"q", 9, value=b"other")
    rows = [[ttl], [above, marker], [marker, other], [above]]
    found = shown(FORM, [Entry([cell._replace(row=b"%d" % number) for cell in row]) for number, row in enumerate(rows)])
    assert found == [(False, ["ttl"]), (False, ["above"]), (True, ["other"]), (True, ["above"])]


def test_with_a_ttl_it_is_what_was_seen_when_the_snapshot_was_taken_and_not_exact() -> None:
    cells = [Cell(b"a", b"f", b"p", 100, value=b"expired"), Cell(b"a", b"f", b"q", 900, value=b"there")]
    assert shown(FORM, [Entry(cells)], TTL="0") == [(False, [])]
    assert shown(FORM, [Entry(cells)], TTL="1") == [(False, ["expired", "there"])]

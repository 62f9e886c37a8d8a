"""The rows of history: one for each selected cell, with what the log has of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from unit.streams.message.naive_messages import ENTRIES, KINDS, SELECTIONS, WRITTEN, Cell, Entry, batch_of, is_selected
from walferry.formats.changes import CHANGE_SCHEMA, entry_changes
from walferry.streams.history.rows import CHANGES, Changes, changes_of
from walferry.streams.message.changes import Form, Selection


def made(form: Form, entries: list[Entry]) -> Changes:
    incarnations = np.array([one.incarnation for one in entries], np.int32)
    return changes_of(form, batch_of(entries), np.arange(len(entries)), incarnations)


def rows(form: Form, *entries: Entry) -> list[dict[str, Any]]:
    found = made(form, list(entries))
    found.cells.validate(full=True)
    listed: list[dict[str, Any]] = found.cells.to_pylist()
    return listed


def test_a_cell_has_what_the_log_has_of_it() -> None:
    cluster = UUID(int=7)
    put = Cell(b"\xff", b"f", b"", 5, value=b"", tags=[(8, b"x")])
    one = Entry([put, Cell(b"\xff", b"g", b"q", 6, 12)], 300, 2, "ns:t", "r1", WRITTEN + 1, [cluster])
    first, second = rows(Form("c", 4), one)
    common = {
        "_commit_version": (2 << 40 | 300) << 16, "table": "ns:t", "row": b"\xff", "region": "r1",
        "sequence_number": 300, "index": 0, "incarnation": 2, "cluster_ids": [str(cluster)], "epoch": 4,
    }  # fmt: skip
    assert first.pop("_commit_timestamp").timestamp() * 1000 == WRITTEN + 1
    assert second.pop("_commit_timestamp").timestamp() * 1000 == WRITTEN + 1
    assert first == common | {
        "_change_type": "put", "family": "f", "qualifier": b"", "timestamp": 5, "value": b"", "tags": b"\0\2\x08x",
        "cell": 0,
    }  # fmt: skip
    assert second == common | {
        "_change_type": "delete_column", "family": "g", "qualifier": b"q", "timestamp": 6, "value": None, "tags": None,
        "cell": 1,
    }  # fmt: skip


def test_runs_and_cells_that_a_filter_leaves_out_count() -> None:
    form = Form("c", 1, selection=Selection(families=(b"g",)))
    cells = [Cell(b"a"), Cell(b"b", b"f"), Cell(b"b", b"g"), Cell(b"a", b"g")]
    found = rows(form, Entry(cells))
    assert [(one["row"], one["index"], one["cell"]) for one in found] == [(b"b", 1, 1), (b"a", 2, 0)]
    assert [one["_commit_version"] & 0xFFFF for one in found] == [1, 2]


def test_a_version_without_room_for_a_number_is_refused_by_its_run() -> None:
    found = made(Form("c", 1), [Entry([Cell(b"a")]), Entry([Cell(b"b")], 1 << 40)])
    assert list(found.refused) == [1]
    assert "does not fit into the 40 bits" in found.refused[1]
    assert (found.name(1), found.entry.tolist()) == ("b'b'", [0, 1])


def test_no_entries_make_no_rows() -> None:
    found = changes_of(Form("c", 1), batch_of([Entry([Cell()])]), np.arange(0), np.empty(0, np.int32))
    assert (len(found), len(found.cells), found.cells.schema) == (0, 0, CHANGES)


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_a_change_has_the_same_values_as_in_spark_but_for_its_incarnation(entries: list[Entry]) -> None:
    found = pa.Table.from_batches([made(Form("c", 1), [one._replace(incarnation=0) for one in entries]).cells])
    in_spark = pa.Table.from_batches([entry_changes(batch_of(entries), "file")])
    assert found.select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA).equals(in_spark)


@given(st.lists(ENTRIES, min_size=1, max_size=5), SELECTIONS)
def test_every_selected_cell_is_there_in_the_order_of_the_log(entries: list[Entry], selection: Selection) -> None:
    found = made(Form("c", 1, selection=selection), entries).cells.drop_columns(["_commit_timestamp"]).to_pylist()
    expected = [
        (one.table, one.sequence_number, cell.row, cell.family, cell.qualifier, cell.timestamp, KINDS[cell.type])
        for one in entries for cell in one.cells if is_selected(selection, cell)
    ]  # fmt: skip
    assert expected == [
        (
            one["table"], one["sequence_number"], one["row"], one["family"].encode(), one["qualifier"],
            one["timestamp"], one["_change_type"],
        )
        for one in found
    ]  # fmt: skip

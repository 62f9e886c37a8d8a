"""The cells of a log as changes: the cells that it has, with the versions that a stream's messages have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.streams.message.naive_messages import ENTRIES, KINDS, WRITTEN, Cell, Entry, batch_of
from walferry.errors import WalferryError
from walferry.formats.cells import decode_tags
from walferry.formats.changes import CHANGE_SCHEMA, FIRST_SNAPSHOT_INDEX, SEQUENCE_NUMBER_BITS, entry_changes
from walferry.formats.entries import entry_cells
from walferry.formats.wal import EntryBatch, WalReader
from walferry.streams.message.changes import Form, messages

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
NAMES = ["closed", "killed", "dictionary-raw-tags", "values-zstd", "1.7.2-dictionary", "2.5.7-values-gz"]


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def versions_of_messages(batch: EntryBatch) -> list[int]:
    """The header `version` of each message that the batch's edits give."""
    picked = np.flatnonzero(batch.edits)
    found = messages(Form("prod", 1), batch, picked, np.zeros(len(picked), np.int32))
    return [int(dict(found.headers(number))["version"]) for number in range(len(found))]


def require_same_cells_and_versions(batch: EntryBatch) -> int:
    changes = entry_changes(batch, "file")
    assert changes.schema == CHANGE_SCHEMA
    rows, cells = changes.to_pylist(), entry_cells(batch, "file", batch.edits).to_pylist()
    same = ("table", "region", "sequence_number", "row", "qualifier", "timestamp")
    assert [[row[name] for name in same] for row in rows] == [[cell[name] for name in same] for cell in cells]
    for row, cell in zip(rows, cells, strict=True):
        assert row["family"].encode() == cell["family"]
        assert row["_change_type"] == KINDS[cell["type"]]
        assert row["_commit_timestamp"] == at(cell["write_time"])
        assert row["value"] == (cell["value"] if row["_change_type"] == "put" else None)
        assert row["tags"] == (cell["tags"] or None)
    assert [row["_commit_version"] for row in rows if row["cell"] == 0] == versions_of_messages(batch)
    for before, row in pairwise(rows):
        if row["cell"]:
            assert (row["cell"], row["_commit_version"]) == (before["cell"] + 1, before["_commit_version"])
    return len(rows)


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_changes_are_the_cells_of_the_log_with_the_versions_of_messages(entries: list[Entry]) -> None:
    require_same_cells_and_versions(batch_of([one._replace(write_time=WRITTEN + 7) for one in entries]))


@pytest.mark.parametrize("name", NAMES)
def test_real_logs_become_changes(name: str) -> None:
    batches = WalReader([(FIXTURES / f"{name}.wal").read_bytes()], name)
    assert sum(require_same_cells_and_versions(batch) for batch in batches) > 5


def changes(*entries: Entry, **given: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = entry_changes(batch_of(entries), "some.wal", **given).to_pylist()
    return found


def test_a_change_has_what_its_cell_and_its_entry_have() -> None:
    tags = [(8, b"\0" * 8)]
    cells = [Cell(b"a"), Cell(b"b", b"g", b"x", 5, 4, b"new", tags), Cell(b"b", type=12, value=b"not shown")]
    first, put, delete = changes(Entry(cells, 9, 0, "ns:t2", "the region", 1234, [UUID(int=1), UUID(int=2)]))
    assert put == {
        "_change_type": "put",
        "_commit_timestamp": at(1234),
        "_commit_version": 9 << 16 | 1,
        "table": "ns:t2",
        "row": b"b",
        "family": "g",
        "qualifier": b"x",
        "timestamp": 5,
        "value": b"new",
        "tags": put["tags"],
        "region": "the region",
        "sequence_number": 9,
        "index": 1,
        "cell": 0,
        "cluster_ids": [str(UUID(int=1)), str(UUID(int=2))],
    }
    assert decode_tags(put["tags"]) == tags
    assert (first["index"], first["cell"], first["tags"], first["value"]) == (0, 0, None, b"")
    assert (delete["index"], delete["cell"], delete["_change_type"], delete["value"]) == (1, 1, "delete_column", None)


def test_a_row_that_is_named_twice_apart_is_two_runs_and_each_entry_begins_anew() -> None:
    first = [Cell(b"a"), Cell(b"a", qualifier=b"r"), Cell(b"b"), Cell(b"a")]
    found = changes(Entry(first), Entry([Cell(b"a")], 2), Entry([Cell(b"a")], 3, region="other"))
    assert [(row["sequence_number"], row["index"], row["cell"]) for row in found] == [
        (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 2, 0), (2, 0, 0), (3, 0, 0),
    ]  # fmt: skip
    assert [row["region"] for row in found[-2:]] == [found[0]["region"], "other"]


def test_each_change_has_the_clusters_of_its_own_entry() -> None:
    lists = [[UUID(int=1)], [], [UUID(int=1), UUID(int=2)], [UUID(int=1)]]
    found = changes(*(Entry([Cell()], clusters=clusters) for clusters in lists))
    assert [row["cluster_ids"] for row in found] == [[str(known) for known in clusters] for clusters in lists]


def test_chosen_entries_and_columns_are_all_there_is_and_none_is_an_empty_batch() -> None:
    entries = [Entry([Cell(b"%d" % number)], number) for number in range(4)]
    chosen = np.array([False, True, False, True])
    assert changes(*entries, select=chosen, fields=("row", "index")) == [
        {"row": b"1", "index": 0}, {"row": b"3", "index": 0},
    ]  # fmt: skip
    assert changes(*entries, select=np.zeros(4, np.bool_)) == []


def test_a_family_that_is_not_utf8_is_shown_without_loss() -> None:
    assert [row["family"] for row in changes(Entry([Cell(family=b"f"), Cell(family=b"f\xff")]))] == ["f", r"f\xff"]


def test_a_version_that_does_not_fit_is_refused_unless_it_is_left_out() -> None:
    wide = [Entry([Cell()], 5), Entry([Cell()], 1 << SEQUENCE_NUMBER_BITS)]
    with pytest.raises(WalferryError, match=r"some.wal: the entry at byte \d+, with sequence number 1099511627776"):
        changes(*wide)
    rest = [name for name in CHANGE_SCHEMA.names if name != "_commit_version"]
    assert [row["sequence_number"] for row in changes(*wide, fields=rest)] == [5, 1 << SEQUENCE_NUMBER_BITS]
    many = Entry([Cell(b"%d" % (number % 2)) for number in range(FIRST_SNAPSHOT_INDEX + 1)])
    with pytest.raises(WalferryError, match="number 65280 in it"):
        changes(many)
    assert changes(many._replace(cells=many.cells[:-1]))[-1]["_commit_version"] == 1 << 16 | FIRST_SNAPSHOT_INDEX - 1

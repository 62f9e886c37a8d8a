"""The queries of docs/history.md, asked of files that a history wrote; DuckDB, pyarrow and no walferry read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.formats.cells import CellType
from walferry.formats.changes import CHANGE_SCHEMA
from walferry.storage import Local
from walferry.streams.history.commits import Owner
from walferry.streams.history.iceberg import HistoryTables
from walferry.streams.history.rows import changes_of, event_row
from walferry.streams.history.sink import HistorySink, Limits
from walferry.streams.message.changes import Form

PAGE = Path(__file__).parents[4] / "docs" / "history.md"
BEGAN_MS = 1769842800000
"""2026-01-31 07:00 UTC, which the page asks for"""
ROW = b"order-1042"


class History:
    """A history of `shop:orders`."""

    def __init__(self, folder: Path, tables: HistoryTables | None = None) -> None:
        self.folder, self._number = folder, 0
        limits = Limits(0, 1 << 30)
        self.sink = HistorySink.open(Local(), str(folder), Owner("c", "orders"), 1, limits, tables=tables)

    def write(self, *cells: Cell, seconds: int = 0, incarnation: int = 0) -> None:
        """Commit an entry with these cells, so many seconds after the beginning."""
        self._number += 1
        one = Entry(cells, self._number, incarnation, "shop:orders", write_time=BEGAN_MS + 1000 * seconds)
        made = changes_of(Form("c", 1), batch_of([one]), np.arange(1), np.array([incarnation], np.int32))
        self.sink.add(made.cells)
        self.sink.commit({})
        self.sink.write()

    def truncate(self, incarnation: int) -> None:
        event = {
            "table": "shop:orders", "region": "r", "sequence_number": 1, "epoch": 1, "position": [incarnation, 1, 0],
            "write_time": None, "event": {"kind": "truncate"},
        }  # fmt: skip
        self.sink.add_event(event_row(json.dumps(event).encode()))
        self.sink.commit({})

    def ask(self, name: str) -> list[tuple[Any, ...]]:
        """The answer to a query of the page."""
        found = re.search(rf"```sql\n-- {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        assert found is not None, name
        duckdb.execute("SET TimeZone = 'UTC'")
        return duckdb.execute(found[1].replace("/history/orders", str(self.folder))).fetchall()


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def current(history: History) -> list[tuple[bytes, str, bytes, bytes]]:
    """The current cells, without their timestamps."""
    return [(row, family, qualifier, value) for row, family, qualifier, _, value in history.ask("current state")]


def test_the_newest_version_of_a_column_counts_and_of_equal_ones_the_last_that_was_written(history: History) -> None:
    history.write(Cell(ROW, timestamp=5, value=b"old"), Cell(ROW, b"g", b"", 9, value=b""))
    history.write(Cell(ROW, timestamp=7, value=b"new"))
    history.write(Cell(ROW, timestamp=7, value=b"newer"))
    history.write(Cell(ROW, timestamp=6, value=b"late"))
    assert current(history) == [(ROW, "f", b"q", b"newer"), (ROW, "g", b"", b"")]


@pytest.mark.parametrize(
    ("marker", "left"),
    [
        (Cell(ROW, timestamp=6, type=CellType.DELETE), b"five"),
        (Cell(ROW, b"f", b"", 6, CellType.DELETE_FAMILY_VERSION), b"five"),
        (Cell(ROW, timestamp=7, type=CellType.DELETE_COLUMN), None),
        (Cell(ROW, b"f", b"", 7, CellType.DELETE_FAMILY), None),
        (Cell(ROW, timestamp=5, type=CellType.DELETE_COLUMN), b"six"),
        (Cell(ROW, b"f", b"", 5, CellType.DELETE_FAMILY), b"six"),
        (Cell(ROW, b"g", b"", 7, CellType.DELETE_FAMILY), b"six"),
        (Cell(ROW, b"f", b"p", 7, CellType.DELETE_COLUMN), b"six"),
    ],
)
def test_a_marker_hides_what_hbase_hides_by_it(history: History, marker: Cell, left: bytes | None) -> None:
    history.write(Cell(ROW, timestamp=5, value=b"five"), Cell(ROW, timestamp=6, value=b"six"))
    history.write(marker)
    expected = [] if left is None else [(ROW, "f", b"q", left)]
    assert current(history) == expected
    assert [value for *_, value in history.ask("row as of")] == [value for *_, value in expected]


def test_nothing_is_left_of_a_table_that_was_truncated_but_what_was_written_since(history: History) -> None:
    history.write(Cell(b"gone", value=b"1"))
    history.truncate(1)
    history.write(Cell(ROW, value=b"2"), incarnation=1)
    assert current(history) == [(ROW, "f", b"q", b"2")]


def test_a_row_is_seen_as_it_was_and_changes_between_two_moments_are_told_in_order(history: History) -> None:
    history.write(Cell(ROW, timestamp=1, value=b"before"), seconds=-5)
    history.write(Cell(ROW, timestamp=1, type=CellType.DELETE), seconds=5)
    history.write(Cell(ROW, timestamp=2, value=b"after"), Cell(b"other", timestamp=3), seconds=3 * 3600)
    history.write(Cell(ROW, timestamp=4), seconds=2 * 86400)
    assert [value for *_, value in history.ask("row as of")] == [b"before"]
    assert [(kind, row, timestamp) for _, kind, row, _, _, timestamp, _ in history.ask("changes between")] == [
        ("delete_version", ROW, 1), ("put", ROW, 2), ("put", b"other", 3),
    ]  # fmt: skip


def test_others_read_the_folder_as_one_table_with_the_names_and_types_of_changes_in_spark(history: History) -> None:
    history.write(Cell(ROW))
    history.write(Cell(ROW), seconds=7200)
    table = ds.dataset(history.folder / "table=shop%3Aorders").to_table()
    assert table["table"].to_pylist() == ["shop:orders"] * 2
    assert {one.name: one.type for one in table.schema} == {one.name: one.type for one in CHANGE_SCHEMA} | {
        "incarnation": pa.int32(), "epoch": pa.int32(),
    }  # fmt: skip
    whole = f"SELECT \"table\", hour FROM '{history.folder}/table=*/date=*/hour=*/*.parquet' ORDER BY hour"
    assert [name for name, _ in duckdb.execute(whole).fetchall()] == ["shop:orders"] * 2

"""The queries of docs/history.md, asked of Iceberg tables as the page says, by pyiceberg and DuckDB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from unit.streams.history.iceberg_tables import Lake, lake_in
from unit.streams.history.test_queries import PAGE, ROW, History
from unit.streams.message.naive_messages import Cell
from walferry.formats.cells import CellType
from walferry.streams.history.commits import Owner

QUESTIONS = ("current state", "row as of", "changes between")


def given(lake: Lake) -> duckdb.DuckDBPyConnection:
    """What the page's Python gives to DuckDB."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    text = re.sub(r"load_catalog\(.*\)", "lake.catalog()", found[1].partition("\n")[2])
    known: dict[str, Any] = {"lake": lake}
    exec(text.replace("shop.orders_history_events", "shop.orders_events").replace("orders_history", "orders"), known)
    database: duckdb.DuckDBPyConnection = known["database"]
    return database


def ask(database: duckdb.DuckDBPyConnection, name: str) -> list[tuple[Any, ...]]:
    """The answer to a query of the page, with the tables in place of the files."""
    found = re.search(rf"```sql\n-- {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, name
    asked = re.sub(r"read_parquet\('[^']*/_events/[^']*'\)", "events", found[1])
    asked = re.sub(r"read_parquet\([^)]*\)", "changes", asked)
    asked = asked.replace(" AND date BETWEEN '2026-01-31' AND '2026-02-01'", "")
    database.execute("SET TimeZone = 'UTC'")
    return database.execute(asked).fetchall()


@pytest.mark.parametrize("name", QUESTIONS)
def test_tables_give_the_same_answers_as_the_files(tmp_path: Path, name: str) -> None:
    with lake_in(tmp_path) as lake:
        history = History(lake.folder, lake.tables(owner=Owner("c", "orders")))
        history.write(Cell(b"gone", value=b"1"))
        history.truncate(1)
        history.write(Cell(ROW, timestamp=5, value=b"five"), Cell(ROW, timestamp=6, value=b"six"), incarnation=1)
        history.write(Cell(ROW, timestamp=6, type=CellType.DELETE), seconds=5, incarnation=1)
        history.write(Cell(b"other", timestamp=3), seconds=3 * 3600, incarnation=1)
        answer = ask(given(lake), name)
        assert answer == history.ask(name)
        assert len(answer) == {"current state": 2, "row as of": 1, "changes between": 5}[name]

"""A history in a folder with Iceberg tables in a catalogue on SQLite, and pyiceberg's own way to read them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from unit.streams.history.test_sink import AT_ONCE, OWNER, opened, put
from walferry.storage import Local
from walferry.streams.history.catalog import CatalogSettings, TableNames
from walferry.streams.history.commits import Owner
from walferry.streams.history.iceberg import HistoryTables
from walferry.streams.history.iceberg_files import Folder
from walferry.streams.history.sink import HistorySink, Limits

NAMES = TableNames("shop", "orders", "orders_events")


class Lake:
    """A folder, and a catalogue beside it."""

    def __init__(self, place: Path) -> None:
        self.place, self.folder = place, place / "history"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.uri = f"sqlite:///{place}/catalog.db"
        self._open: list[Catalog | HistoryTables] = []

    def tables(
        self, files: Local | None = None, expire_days: float | None = None, names: TableNames = NAMES,
        owner: Owner = OWNER,
    ) -> HistoryTables:  # fmt: skip
        """walferry's side of the tables."""
        place = Folder(files or Local(), str(self.folder), f"file://{self.folder}")
        settings = CatalogSettings("lake", "lake", {"uri": self.uri})
        made = HistoryTables(settings, place, owner, names, expire_days)
        self._open.append(made)
        return made

    def opened(self, files: Local | None = None, limits: Limits = AT_ONCE, **more: Any) -> HistorySink:
        """A sink whose files are in the tables, too."""
        owner = more.get("owner", OWNER)
        tables = self.tables(files, **more)
        return HistorySink.open(files or Local(), str(self.folder), owner, 1, limits, tables=tables)

    def catalog(self) -> Catalog:
        """The catalogue as others have it."""
        made = load_catalog("lake", uri=self.uri)
        self._open.append(made)
        return made

    def table(self, name: str = "orders") -> Table:
        """A table as others have it."""
        return self.catalog().load_table(f"shop.{name}")

    def rows(self, name: str = "orders") -> pa.Table:
        """What pyiceberg reads of a table."""
        return self.table(name).scan().to_arrow()

    def numbers(self, name: str = "orders") -> list[int]:
        """The sequence numbers that readers see, sorted."""
        return sorted(self.rows(name)["sequence_number"].to_pylist())

    def close(self) -> None:
        for one in self._open:
            one.close()


@contextmanager
def lake_in(place: Path) -> Iterator[Lake]:
    """A lake for a block."""
    made = Lake(place)
    try:
        yield made
    finally:
        made.close()


COMMIT_TABLE = SqlCatalog.commit_table
"""pyiceberg's own, which tests replace"""

RACER = """
import sys
from pathlib import Path
from unit.streams.history.iceberg_tables import Lake, OWNER
from walferry.storage import Local
from walferry.streams.history.commits import Commits

lake = Lake(Path(sys.argv[1]))
lake.uri = sys.argv[2]
commits = Commits(Local(), str(lake.folder), OWNER, 1)
tables = lake.tables()
tables.catch_up(commits, commits.read(2))
print("ready", flush=True)
sys.stdin.readline()
for number in range(3, 17):
    tables.publish(commits.read(number))
lake.close()
"""


def race(lake: Lake) -> None:
    """Let two processes add the files of the same commits at the same time, and require that each is there once."""
    sink = opened(lake.folder)
    for number in range(1, 16):
        put(sink, number, hour=number)
    lake.tables().catch_up(sink._commits, sink._commits.read(2))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(lake.place), lake.uri],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ) for _ in range(2)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate()
    assert [racer.returncode for racer in racers] == [0, 0]
    assert lake.numbers() == list(range(1, 16))
    added = [int(one.summary["walferry.commit"] or 0) for one in lake.table().snapshots() if one.summary]
    assert added == list(range(2, 17))

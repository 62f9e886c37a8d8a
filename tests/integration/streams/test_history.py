"""`walferry stream` into Parquet files on a real cluster: DuckDB reads every edit once, whatever happens meanwhile."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from io import BytesIO
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from integration.migration.moves import unique
from integration.streams.judging import (
    SPLIT_KEYS,
    Change,
    Client,
    Journal,
    Writer,
    require_order,
    wait_until,
    writing,
)
from integration.streams.streamers import Lay
from integration.streams.test_snapshot import fill
from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.hbase.client import HBaseClient
from walferry.storage import open_file_system
from walferry.streams.fenced import FencedError
from walferry.streams.history.commits import Owner
from walferry.streams.history.rows import changes_of
from walferry.streams.history.sink import HistorySink, Limits
from walferry.streams.message.changes import Form
from walferry.streams.stream_spec import ONLY_KAFKA

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[3] / "docs" / "history.md"
ATTRIBUTES = {"VERSIONS": "1000", "KEEP_DELETED_CELLS": "TRUE"}
"""so that no compaction forgets what a delete marker hides"""


def query(name: str, folder: Path, table: str) -> str:
    """A query of the documentation, for a folder and a table."""
    found = re.search(rf"```sql\n-- {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, name
    return found[1].replace("/history/orders", str(folder)).replace("shop:orders", table)


def seen(folder: Path, table: str) -> dict[bytes, list[Change]]:
    """The changes of each row, in the order of their versions, which are unique."""
    rows: dict[bytes, list[Change]] = defaultdict(list)
    before: dict[bytes, tuple[int, int]] = {}
    if not list(folder.glob("table=*")):
        return rows
    found = duckdb.execute(
        f"SELECT row, _commit_version, cell, _change_type, family, qualifier, value, timestamp FROM "
        f"read_parquet('{folder}/table=*/date=*/hour=*/*.parquet') WHERE \"table\" = '{table}' ORDER BY ALL"
    )
    for row, version, cell, kind, family, qualifier, value, timestamp in found.fetchall():
        assert before.get(row, (-1, -1)) < (version, cell), f"{row!r} has {version} twice"
        before[row] = version, cell
        rows[row].append(Change(kind, family.encode(), qualifier, value, timestamp))
    return rows


def current(folder: Path, table: str) -> list[tuple[bytes, str, bytes, int, bytes]]:
    """What the query of the documentation shows of a table now."""
    return sorted(duckdb.execute(query("current state", folder, table)).fetchall())


def scanned(client: HBaseClient, table: str) -> list[tuple[bytes, str, bytes, int, bytes]]:
    """What HBase shows."""
    blocks = [cells_to_arrow(index_cells(np.frombuffer(block, np.uint8))) for block in client.scan(table)]
    return sorted(
        (cell["row"], cell["family"].decode(), cell["qualifier"], cell["timestamp"], cell["value"])
        for block in blocks for cell in block.to_pylist()
    )  # fmt: skip


def events(folder: Path) -> list[str]:
    """The kinds of the events."""
    if not list(folder.glob("_events/date=*")):
        return []
    found = duckdb.execute(f"SELECT kind FROM '{folder}/_events/date=*/*.parquet'").fetchall()
    return [kind for (kind,) in found]


def last_commit(folder: Path) -> int:
    """The number of the last commit."""
    return max((int(path.stem) for path in folder.glob("_commits/*.json")), default=0)


def test_a_kill_a_move_and_a_split_lose_repeat_and_reorder_nothing_and_the_files_have_what_a_scan_has(
    source: MiniCluster, at_source: HBaseClient, lay: Lay, tmp_path: Path
) -> None:
    table, journal, dice, folder = unique("s"), Journal(), random.Random(11), tmp_path / "history"
    at_source.create_table(table, {"f": ATTRIBUTES, "g": ATTRIBUTES}, SPLIT_KEYS)
    parquet = {"folder": str(folder), "commit_seconds": 0.3}
    streamer = lay(table, parquet=parquet, **dict.fromkeys(ONLY_KAFKA))
    streamer.start()
    with writing(source, table, journal):
        wait_until(lambda: last_commit(folder) > 3, "nothing is committed")
        streamer.kill()
        region = dice.choice([region for region in at_source.regions(table) if region.server])
        at_source.move_region(region, next(one for one in at_source.servers() if one != region.server))
        streamer.launch("resume", streamer.name)
        count = last_commit(folder)
        at_source.split_region(at_source.regions(table)[0], b"b")
        wait_until(lambda: last_commit(folder) > count + 3, "nothing more is committed")
    wait_until(lambda: sum(map(len, seen(folder, table).values())) >= journal.changes, "the last changes do not come")
    aborted = streamer.command("abort", streamer.name, "--reason", "it was a test")
    assert aborted.returncode == 0, aborted.stderr
    assert streamer.ended() == (0, [f"run {streamer.name}-1 has ended as aborted"])

    changes = seen(folder, table)
    assert changes.keys() == journal.rows.keys()
    for row, calls in journal.rows.items():
        require_order(row, calls, changes[row])
    assert current(folder, table) == scanned(at_source, table)


def test_the_rows_of_a_snapshot_and_the_changes_after_it_are_what_a_scan_has_also_after_a_kill(
    source: MiniCluster, at_source: HBaseClient, lay: Lay, tmp_path: Path
) -> None:
    table, journal, folder = unique("s"), Journal(), tmp_path / "history"
    at_source.create_table(table, {"f": ATTRIBUTES, "g": ATTRIBUTES}, SPLIT_KEYS)
    fill(source, table, 2000)
    parquet = {"folder": str(folder), "commit_seconds": 0.2}
    streamer = lay(table, snapshot=True, parquet=parquet, **dict.fromkeys(ONLY_KAFKA))
    with Client(source.address) as client:
        writer = Writer(client, table, journal, "w")
        writer.write_all_kinds()
        at_source.flush_table(table)
        writer.write_all_kinds()
        streamer.start()
        with writing(source, table, journal, writers=1):
            wait_until(lambda: "snapshot_begins" in events(folder), "no snapshot begins")
            streamer.kill()
            streamer.launch("resume", streamer.name)
            wait_until(lambda: "snapshot_ends" in events(folder), "the snapshot does not end")
        writer.write_all_kinds()
    expected = scanned(at_source, table)
    wait_until(lambda: current(folder, table) == expected, "the files do not have what a scan has")

    changes = seen(folder, table)
    assert changes.keys() == {row for row, *_ in expected} | journal.rows.keys()
    assert {len(changes[row]) for row in changes if b"-filled-" in row} == {1}
    cells = f"FROM '{folder}/table=*/*/*/*.parquet' GROUP BY row, family, qualifier, timestamp, _change_type, value"
    both = duckdb.execute(f'SELECT row {cells} HAVING count(DISTINCT "index" >= 65280) > 1').fetchall()
    assert both == [], "these are in the snapshot and follow again"


def test_a_folder_in_hdfs_has_one_writer_whose_rows_are_there_once(source: MiniCluster) -> None:
    name, user, owner = unique("history"), source.address.user, Owner("c", "orders")
    root = (source.address.webhdfs or "").replace("http", "webhdfs")

    def opened(owner: Owner) -> HistorySink:
        files, folder = open_file_system(f"{root}/{name}", user=user)
        return HistorySink.open(files, folder, owner, 1, Limits(3600, 1 << 30))

    def put(sink: HistorySink, number: int) -> None:
        made = changes_of(Form("c", 1), batch_of([Entry([Cell()], number)]), np.arange(1), np.zeros(1, np.int32))
        sink.add(made.cells)
        sink.commit({"number": b"%d" % number})

    first = opened(owner)
    put(first, 1)
    first.write()
    put(first, 2)
    with opened(owner) as second:
        with pytest.raises(FencedError, match="another process has made commit 3"):
            first.write()
        assert second.positions == {"number": b"1"}
        put(second, 2)
    assert opened(owner).positions == {"number": b"2"}
    with pytest.raises(UsageError, match="belongs to stream orders of cluster c"):
        opened(Owner("c", "others"))
    files, _ = open_file_system(f"{root}/", user=user)
    hour = f"/{name}/table=t1/date=2023-11-14/hour=22"
    seen = [pq.read_table(BytesIO(b"".join(files.read(one.path)))) for one in files.list(hour)]
    assert [table["sequence_number"].to_pylist() for table in seen] == [[1], [2]]
    assert files.list(f"/{name}/_begun") == []

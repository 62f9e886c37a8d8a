"""Iceberg tables of a history that others also work on, and their upkeep."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_file_to_data_file
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.types import StringType

from unit.streams.history.iceberg_tables import Lake, lake_in
from unit.streams.history.test_sink import LATER, OWNER, numbers, opened, put
from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.errors import UsageError, WalferryError
from walferry.storage import Local
from walferry.streams.history import sink as sinks
from walferry.streams.history.catalog import TableNames
from walferry.streams.history.commits import Commits, Owner
from walferry.streams.history.rows import changes_of
from walferry.streams.history.sink import Limits
from walferry.streams.message.changes import Form


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with lake_in(tmp_path) as made:
        yield made


# ------------------------------------------------------------------ what others do


class Rewritten(_OverwriteFiles):
    """A commit with an operation that pyiceberg itself does not make."""

    def _summary(self, *given: Any) -> Summary:
        made = _OverwriteFiles._summary(self, *given)
        wanted = self.snapshot_properties["wanted"]
        return Summary(Operation(wanted), **made.additional_properties)


def rewrite(table: Table, operation: Operation, rows: pa.Table) -> None:
    """Replace all files of a table by one with these rows, as engines do."""
    path = f"{table.location()}/data/{uuid4()}.parquet"
    with PyArrowFileIO().new_output(path).create() as out:
        pq.write_table(rows, out)
    made = parquet_file_to_data_file(table.io, table.metadata, path)
    facts = {"wanted": operation.value}
    with (
        table.transaction() as transaction,
        Rewritten(Operation.OVERWRITE, transaction, table.io, snapshot_properties=facts) as producer,
    ):
        for task in list(table.scan().plan_files()):
            producer.delete_data_file(task.file)
        producer.append_data_file(made)


def compact(table: Table) -> None:
    rewrite(table, Operation.REPLACE, table.scan().to_arrow())


def delete_rows(table: Table) -> None:
    rows = table.scan().to_arrow()
    rewrite(table, Operation.OVERWRITE, rows.filter(pc.field("sequence_number") != 1))


def expire(table: Table) -> None:
    table.maintenance.expire_snapshots().older_than(datetime(9999, 1, 1)).commit()


@pytest.mark.parametrize(
    ("change", "left"), [(compact, [1, 2, 3]), (delete_rows, [2, 3]), (expire, [1, 2, 3]), (Table.refresh, [1, 2, 3])]
)
def test_compaction_expiry_and_deletes_of_others_disturb_nothing(
    lake: Lake, change: Callable[[Table], object], left: list[int]
) -> None:
    sink = lake.opened(limits=LATER)
    put(sink, 1)
    put(sink, 2)
    sink.write()
    change(lake.table())
    put(sink, 3)
    sink.write()
    assert lake.numbers() == left
    compact(lake.table())
    put(lake.opened(), 4)
    assert lake.numbers() == [*left, 4]
    assert numbers(lake.folder) == [1, 2, 3, 4]


def append(table: Table) -> None:
    path = f"{table.location()}/data/theirs.parquet"
    with PyArrowFileIO().new_output(path).create() as out:
        pq.write_table(table.scan().to_arrow(), out)
    table.add_files([path])


def update_rows(table: Table) -> None:
    rewrite(table, Operation.OVERWRITE, table.scan().to_arrow())


def set_back(table: Table) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()


def forget(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.remove_properties("walferry.commit")


def add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("mine", StringType())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (append, r"table shop.orders has rows of somebody else: snapshot \d+ of .* UTC. Roll the table back to"),
        (update_rows, "has rows of somebody else"),
        (set_back, "was set back to commit 2, and it had commit 3"),
        (forget, r"has lost its property walferry\.commit, which tells what is in it"),
        (add_column, "has other columns or partitions than walferry gave it"),
    ],
)  # fmt: skip
def test_rows_and_columns_of_others_are_refused_when_they_are_met_and_another_name_is_a_way_on(
    lake: Lake, change: Callable[[Table], object], said: str
) -> None:
    sink = lake.opened()
    put(sink, 1)
    put(sink, 2)
    change(lake.table())
    with pytest.raises(UsageError, match=said):
        lake.opened()
    with pytest.raises(UsageError, match=said):
        lake.tables().examine(sink._commits)
    lake.opened(names=TableNames("shop", "again", "orders_events"))
    assert lake.numbers("again") == [1, 2]


def test_rows_that_were_added_since_the_last_commit_are_refused_by_the_next_one(lake: Lake) -> None:
    sink = lake.opened()
    put(sink, 1)
    good = lake.table().metadata.current_snapshot_id
    append(lake.table())
    with pytest.raises(UsageError, match="has rows of somebody else"):
        put(sink, 2)
    assert good is not None
    lake.table().manage_snapshots().rollback_to_snapshot(good).commit()
    lake.opened()
    assert lake.numbers() == [1, 2]


def test_tables_of_another_history_are_refused(lake: Lake, tmp_path: Path) -> None:
    put(lake.opened(), 1)
    with lake_in(tmp_path / "other") as other:
        other.uri = lake.uri
        with pytest.raises(UsageError, match=r"not below file:.*/other/history, where this history is:"):
            other.opened()
    mine = Commits(Local(), str(lake.folder), Owner("cluster-2", "orders"), 1)
    with pytest.raises(UsageError, match="belongs to stream orders of cluster cluster-1"):
        lake.tables(owner=Owner("cluster-2", "orders")).catch_up(mine, None)
    for path in (lake.folder / "_commits").iterdir():
        path.unlink()
    with pytest.raises(UsageError, match=r"has commit 2, and the last one of the history in .* is 0: the folder was"):
        lake.opened()
    lake.catalog().create_table("shop.theirs", lake.table().schema(), f"file://{lake.folder}/_iceberg/theirs")
    with pytest.raises(UsageError, match=r"the Iceberg table shop.theirs is not walferry's: set another name"):
        lake.opened(names=TableNames("shop", "theirs", "orders_events"))


# ------------------------------------------------------------------ upkeep


def test_old_snapshots_and_metadata_are_deleted_and_no_data(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 10)
    sink = lake.opened(expire_days=1e-9)
    with lake.table().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "5"})
    for number in range(60):
        put(sink, number, hour=number)
        assert len(list((lake.folder / "_iceberg/orders/metadata").iterdir())) < 70
    table = lake.table()
    assert 1 <= len(table.snapshots()) <= 10
    assert lake.numbers() == numbers(lake.folder) == list(range(60))
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).count() > 0


def test_there_are_never_very_many_snapshots(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr("walferry.streams.history.iceberg.MOST_SNAPSHOTS", 3)
    sink = lake.opened(expire_days=1)
    for number in range(20):
        put(sink, number)
        assert len(lake.table().snapshots()) <= 3 + 5
    assert lake.numbers() == list(range(20))


def test_what_tags_need_is_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 3)
    sink = lake.opened()
    for number in range(1, 4):
        put(sink, number)
        table = lake.table()
        if number < 3:
            assert table.metadata.current_snapshot_id is not None
            table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, f"tag{number}").commit()
    compact(lake.table())
    sink = lake.opened(expire_days=1e-9)
    for number in range(4, 10):
        put(sink, number)
    table = lake.table()
    assert len(table.snapshots()) < 10
    assert [table.scan(snapshot_id=table.metadata.refs[f"tag{number}"].snapshot_id).count() for number in (1, 2)] == [
        1,
        2,
    ]


def test_an_examination_changes_nothing(lake: Lake) -> None:
    nothing = lake.tables().examine(Commits(Local(), str(lake.folder), OWNER, 1))
    assert nothing == {"shop.orders": None, "shop.orders_events": None}
    assert list(lake.folder.iterdir()) == []
    with closing(sqlite3.connect(lake.place / "catalog.db")) as catalog:
        assert catalog.execute("SELECT name FROM sqlite_master").fetchall() == []
    sink = lake.opened()
    put(sink, 1)
    before = sorted(lake.place.rglob("*"))
    assert lake.tables().examine(sink._commits) == {"shop.orders": 2, "shop.orders_events": 1}
    assert sorted(lake.place.rglob("*")) == before


def test_a_file_that_is_gone_before_it_is_added_is_named(lake: Lake) -> None:
    sink = opened(lake.folder)
    tables = lake.tables()
    tables.catch_up(sink._commits, sink._commits.last())
    put(sink, 1)
    (lost,) = lake.folder.glob("table=*/*/*/*.parquet")
    lost.unlink()
    with pytest.raises(WalferryError, match=f"of connection lake cannot be written to: .*{lost.name} is gone"):
        tables.publish(sink._commits.read(2))


def test_many_bytes_in_one_commit_are_files_of_one_snapshot(lake: Lake) -> None:
    sink = lake.opened(limits=Limits(3600, 1))
    for number in range(3):
        sink.add(
            changes_of(Form("c", 1), batch_of([Entry([Cell()], number)]), np.arange(1), np.zeros(1, np.int32)).cells
        )
    sink.commit({"number": b"1"})
    assert (lake.numbers(), len(lake.table().snapshots())) == ([0, 1, 2], 1)

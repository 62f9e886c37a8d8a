"""Iceberg tables of a history: each file in them once, whatever is killed or raced, and nobody else's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from unit.streams.history.iceberg_tables import COMMIT_TABLE, Lake, lake_in, race
from unit.streams.history.test_sink import HOUR_MS, LATER, Killed, KilledError, numbers, opened, put
from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.errors import TransientError
from walferry.storage import Local
from walferry.streams.fenced import FencedError
from walferry.streams.history import sink as sinks
from walferry.streams.history.rows import changes_of
from walferry.streams.history.sink import HistorySink
from walferry.streams.message.changes import Form


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with lake_in(tmp_path) as made:
        yield made


def event(sink: HistorySink, number: int) -> None:
    """Add an event to the next commit."""
    sink.add_event(
        {
            "kind": "truncate", "table": "t1", "region": "r", "sequence_number": number, "incarnation": 1,
            "write_time": 1000 * HOUR_MS, "epoch": 1, "json": "{}",
        }
    )  # fmt: skip


def data_files(table: Table) -> list[str]:
    """The files of a table, sorted."""
    return sorted(task.file.file_path for task in table.scan().plan_files())


class Suspended(Local):
    """A file system whose user is suspended once, before it writes a file with `at` in its path, or gives it that name,
    while others do something."""

    def __init__(self, at: str) -> None:
        self._at = at
        self.meanwhile: Callable[[], object] | None = None

    def _suspend(self, path: str) -> None:
        if self._at in path and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()

    def write(self, path: str, chunks: Iterable[bytes], **more: Any) -> None:
        self._suspend(path)
        Local.write(self, path, chunks, **more)

    def replace(self, source: str, destination: str) -> None:
        self._suspend(destination)
        Local.replace(self, source, destination)


# ------------------------------------------------------------------ what is in the tables


def test_the_tables_have_the_files_of_the_folder_as_they_are_with_the_same_rows_and_types(lake: Lake) -> None:
    sink = lake.opened(limits=LATER)
    cells = [Cell(b"\xff", b"f", b"", 5, value=b"", tags=[(8, b"x")]), Cell(b"a", timestamp=1)]
    one = Entry(cells, 7, table="shop:orders", write_time=1769842800123)
    sink.add(changes_of(Form("c", 1), batch_of([one]), np.arange(1), np.zeros(1, np.int32)).cells)
    put(sink, 8, table="t2", hour=3)
    event(sink, 9)
    sink.commit({})
    sink.write()

    written = sorted(lake.folder.glob("table=*/*/*/*.parquet"))
    assert data_files(lake.table()) == [f"file://{path}" for path in written]
    assert data_files(lake.table("orders_events")) == [f"file://{path}" for path in lake.folder.glob("_events/*/*2-*")]
    inside = pa.concat_tables([pq.read_table(path, partitioning=None) for path in written])
    found = lake.rows()
    assert found.cast(inside.schema).sort_by("sequence_number").equals(inside.sort_by("sequence_number"))
    assert [one.nullable for one in found.schema] == [one.nullable for one in inside.schema]
    assert lake.numbers("orders_events") == [9]


def test_engines_pass_over_files_of_other_tables_hours_and_sequence_numbers(lake: Lake) -> None:
    sink = lake.opened()
    for number, (table, hour) in enumerate([("t1", 0), ("t1", 5), ("t2", 5), ("t1", 5)], 1):
        put(sink, number, table=table, hour=hour)
    wanted = "table = 't1' AND _commit_timestamp >= '1970-01-01T05:00:00+00:00'"
    plan = lake.table().scan(row_filter=wanted).plan_files()
    assert sorted((task.file.partition[0], task.file.partition[1]) for task in plan) == [("t1", 5)] * 2
    assert len(list(lake.table().scan(row_filter=f"{wanted} AND sequence_number = 4").plan_files())) == 1


def test_duckdb_counts_in_the_table_what_it_counts_in_the_folder(lake: Lake) -> None:
    sink = lake.opened()
    for number in range(5):
        put(sink, number, hour=number)
    lake.table().scan().to_duckdb("changes", connection := duckdb.connect())
    asked = 'SELECT "table", count(*), max(_commit_version), min(_commit_timestamp) FROM {} GROUP BY ALL'
    there = connection.execute(asked.format("changes")).fetchall()
    assert there == connection.execute(asked.format(f"'{lake.folder}/table=*/*/*/*.parquet'")).fetchall()
    assert there[0][1] == 5


# ------------------------------------------------------------------ each file once


def killing(files: Killed) -> Callable[..., Any]:
    """A commit of the catalogue that counts as a change of these files."""
    return lambda *given: files._change(lambda: COMMIT_TABLE(*given))


def test_a_kill_between_any_two_steps_adds_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(sinks, "KEPT", 1)
    is_whole = False
    for at in range(100):
        with lake_in(tmp_path / str(at)) as lake:
            put(lake.opened(), 1)
            files = Killed(at, after=True)
            with monkeypatch.context() as replaced:
                replaced.setattr(SqlCatalog, "commit_table", killing(files))
                try:
                    sink = lake.opened(files, expire_days=1e-9)
                    put(sink, 2)
                    event(sink, 2)
                    put(sink, 3, table="t2")
                    is_whole = True
                except KilledError:
                    pass
            sink = lake.opened()
            done = int(sink.positions["number"])
            assert lake.numbers() == numbers(lake.folder) == list(range(1, done + 1))
            for number in range(done + 1, 5):
                put(sink, number)
            assert lake.numbers() == [1, 2, 3, 4]
            assert set(lake.numbers("orders_events")) == ({2} if done >= 3 else set())
            if is_whole:
                break
    assert at > 40


@pytest.mark.parametrize(
    "answer", [OperationalError("UPDATE", {}, Exception("the server is gone")), CommitFailedException("too late")]
)
def test_a_commit_of_the_catalogue_whose_answer_is_lost_or_false_is_there_once(
    lake: Lake, answer: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*given: Any) -> None:
        COMMIT_TABLE(*given)
        raise answer

    sink = lake.opened()
    put(sink, 1)
    with monkeypatch.context() as replaced:
        replaced.setattr(SqlCatalog, "commit_table", unanswered)
        if isinstance(answer, OperationalError):
            with pytest.raises(TransientError, match="does not answer as it should: the server is gone"):
                put(sink, 2)
            with pytest.raises(TransientError, match="of no more use"):
                sink.write()
            sink = None  # type: ignore[assignment]
        else:
            put(sink, 2)
    sink = sink or lake.opened()
    put(sink, 3)
    assert lake.numbers() == [1, 2, 3]


@pytest.mark.parametrize("at", ["-m0.avro", "/snap-", ".metadata.json"])
def test_a_suspended_process_adds_nothing_that_another_has_added_meanwhile(lake: Lake, at: str) -> None:
    """Its transaction is made on top of a table that has moved on since, which pyiceberg would do again by itself."""
    put(lake.opened(), 1)

    def meanwhile() -> None:
        second = lake.opened()
        assert second.positions["number"] == b"2", "the commit is recorded, and the second process adds its files"
        put(second, 3)

    suspended = Suspended(at)
    sink = lake.opened(suspended)
    suspended.meanwhile = meanwhile
    put(sink, 2)
    with pytest.raises(FencedError):
        put(sink, 3)
    assert suspended.meanwhile is None
    assert lake.numbers() == numbers(lake.folder) == [1, 2, 3]
    order = [one.summary.additional_properties["walferry.commit"] for one in lake.table().snapshots() if one.summary]
    assert [int(number) for number in order] == sorted(map(int, order))


def test_a_suspended_process_adds_nothing_to_a_table_that_was_made_anew_meanwhile(lake: Lake) -> None:
    """That one lacks what the process had added, and another process may be about to add it."""
    suspended = Suspended("/snap-")
    sink = lake.opened(suspended)
    put(sink, 1)

    def meanwhile() -> None:
        lake.catalog().drop_table("shop.orders")
        others = lake.tables()
        others._load_or_make(others._changes)

    suspended.meanwhile = meanwhile
    with pytest.raises(TransientError, match=r"was dropped while .*: Table shop\.orders is another one now"):
        put(sink, 2)
    lake.opened()
    assert lake.numbers() == [1, 2]


def test_a_process_that_opens_the_folder_while_another_makes_a_commit_does_not_take_the_tables_for_anothers(
    lake: Lake,
) -> None:
    sink = lake.opened()
    put(sink, 1)
    seen = sink._commits.last()
    put(sink, 2)
    lake.tables().catch_up(sink._commits, seen)
    assert lake.numbers() == [1, 2]


def test_two_processes_that_add_the_same_commits_at_the_same_time_add_each_once_and_in_order(lake: Lake) -> None:
    race(lake)


# ------------------------------------------------------------------ the catalogue is away, or comes later


def test_while_the_catalogue_is_away_no_commits_are_made_and_then_all_is_there_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(lake.opened(), 1)

    def away(*given: Any) -> None:
        raise OperationalError("UPDATE", {}, Exception("connection refused"))

    sink = lake.opened()
    with monkeypatch.context() as replaced:
        replaced.setattr(SqlCatalog, "commit_table", away)
        with pytest.raises(TransientError, match=r"catalogue of connection lake .*: connection refused"):
            put(sink, 2)
        records = sorted((lake.folder / "_commits").iterdir())
        for _ in range(3):
            with pytest.raises(TransientError):
                lake.opened()
        assert sorted((lake.folder / "_commits").iterdir()) == records
    put(lake.opened(), 3)
    assert lake.numbers() == numbers(lake.folder) == [1, 2, 3]


def test_a_history_that_was_there_before_is_in_the_tables_whole_also_when_its_records_are_deleted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(sinks, "KEPT", 2)
    monkeypatch.setattr("walferry.streams.history.iceberg.FILES_AT_ONCE", 4)
    sink = opened(lake.folder)
    event(sink, 1)
    for number in range(1, 12):
        put(sink, number, hour=number)
    put(sink, 12, hour=1)
    assert len(list((lake.folder / "_commits").iterdir())) < 7
    for path in lake.folder.glob("table=*/*/hour=02/*.parquet"):
        path.unlink()
    merged = lake.folder / "table=t1" / "date=1970-01-01" / "hour=01" / "merged.parquet"
    merged.write_text("of somebody else")
    expected = [1, *range(3, 13)]
    later = lake.opened()
    assert (lake.numbers(), lake.numbers("orders_events")) == (expected, [1])
    assert len(lake.table().snapshots()) == 3
    merged.unlink()
    put(later, 13)
    assert lake.numbers() == numbers(lake.folder) == [*expected, 13]


def test_files_of_old_hours_that_somebody_deleted_before_are_left_out(lake: Lake) -> None:
    sink = opened(lake.folder)
    for number in range(1, 5):
        put(sink, number, hour=number)
    for path in lake.folder.glob("table=*/*/hour=0[12]/*.parquet"):
        path.unlink()
    lake.opened()
    assert lake.numbers() == [3, 4]


def test_a_time_without_the_tables_is_caught_up_with(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(sinks, "KEPT", 1)
    put(lake.opened(), 1)
    sink = opened(lake.folder)
    for number in range(2, 9):
        put(sink, number)
    lake.opened()
    assert lake.numbers() == list(range(1, 9))


def test_tables_without_new_files_need_no_deleted_records(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(sinks, "KEPT", 1)
    monkeypatch.setattr("walferry.streams.history.iceberg.files_between", None)
    sink = lake.opened()
    for number in range(8):
        sink.commit({"number": b"%d" % number})
    assert len(lake.table("orders_events").snapshots()) == 0
    put(lake.opened(), 8)
    assert lake.numbers() == [8]


def test_a_table_that_was_dropped_is_made_anew_of_all_files(lake: Lake) -> None:
    sink = lake.opened()
    put(sink, 1)
    lake.catalog().drop_table("shop.orders")
    with pytest.raises(TransientError, match="was dropped while it was written to, and will be made anew"):
        put(sink, 2)
    put(lake.opened(), 3)
    assert lake.numbers() == [1, 2, 3]

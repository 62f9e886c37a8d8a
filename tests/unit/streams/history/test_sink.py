"""A history in a folder: each row once, whatever is killed, and one writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.storage import FileStatus, Local
from walferry.streams.fenced import FencedError
from walferry.streams.history import sink as sinks
from walferry.streams.history.commits import Owner
from walferry.streams.history.rows import changes_of
from walferry.streams.history.sink import HistorySink, Limits
from walferry.streams.message.changes import Form

OWNER = Owner("cluster-1", "orders")
AT_ONCE, LATER = Limits(0, 1 << 30), Limits(3600, 1 << 30)
HOUR_MS = 3_600_000


class KilledError(BaseException):
    """The process was killed."""


class Killed(Local):
    """A file system whose user is killed before, or after, its change number `at`."""

    def __init__(self, at: int, *, after: bool = False) -> None:
        self.left, self._after = at, after

    def _change(self, change: Any) -> Any:
        if self.left < 0:
            raise KilledError
        self.left -= 1
        if self.left < 0 and not self._after:
            raise KilledError
        made = change()
        if self.left < 0:
            raise KilledError
        return made

    def write(self, path: str, chunks: Iterable[bytes], **more: Any) -> None:
        self._change(lambda: Local.write(self, path, chunks, **more))

    def rename(self, source: str, destination: str) -> None:
        self._change(lambda: Local.rename(self, source, destination))

    def replace(self, source: str, destination: str) -> None:
        self._change(lambda: Local.replace(self, source, destination))

    def delete(self, path: str, recursive: bool = False) -> bool:
        deleted: bool = self._change(lambda: Local.delete(self, path, recursive))
        return deleted

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        self._change(lambda: Local.mkdirs(self, path, permission))


class Suspended(Local):
    """A file system whose user is suspended once, while others do something: before it lists a folder whose path ends
    with `at`, or renames a file to a path that has it."""

    def __init__(self, at: str, meanwhile: Callable[[], object] | None = None) -> None:
        self._at, self.meanwhile = at, meanwhile

    def _suspend(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def list(self, path: str) -> list[FileStatus]:
        if path.endswith(self._at):
            self._suspend()
        return Local.list(self, path)

    def rename(self, source: str, destination: str) -> None:
        if self._at in destination:
            self._suspend()
        Local.rename(self, source, destination)


class Unanswered(Local):
    """A file system whose answers to renames of records are not what happened."""

    def __init__(self, answer: Exception | None) -> None:
        """`answer`: to each rename, whether it was made or not; None: that it was."""
        self._answer = answer

    def rename(self, source: str, destination: str) -> None:
        if "/_commits/" not in destination:
            Local.rename(self, source, destination)
            return
        with suppress(FileExistsError, FileNotFoundError):
            Local.rename(self, source, destination)
        if self._answer is not None:
            raise self._answer


def opened(
    folder: Path, files: Local | None = None, limits: Limits = AT_ONCE, epoch: int = 1, **more: Any
) -> HistorySink:
    return HistorySink.open(files or Local(), str(folder), OWNER, epoch, limits, **more)


def put(sink: HistorySink, number: int, *, table: str = "t1", hour: int = 0) -> None:
    """Commit one row, whose sequence number is the stream's position."""
    one = Entry([Cell(b"row")], number, table=table, write_time=hour * HOUR_MS)
    made = changes_of(Form("c", 1), batch_of([one]), np.arange(1), np.zeros(1, np.int32))
    sink.add(made.cells)
    sink.commit({"number": b"%d" % number})


def numbers(folder: Path) -> list[int]:
    """The sequence numbers that readers see, sorted."""
    found = []
    for path in folder.glob("table=*/date=*/hour=*/*.parquet"):
        found += pq.read_table(path, partitioning=None)["sequence_number"].to_pylist()
    return sorted(found)


def test_what_is_kept_is_written_once_it_is_time_and_not_before(tmp_path: Path) -> None:
    sink = opened(tmp_path, limits=LATER)
    put(sink, 1)
    put(sink, 2)
    assert (numbers(tmp_path), sink.keeps_changes, sink.keeps_positions) == ([], True, True)
    assert opened(tmp_path / "other").positions == {}
    sink._limits = AT_ONCE
    sink.commit({})
    assert (numbers(tmp_path), sink.keeps_changes, sink.keeps_positions) == ([1, 2], False, False)
    assert opened(tmp_path).positions == {"number": b"2"}


def test_many_bytes_are_written_before_it_is_time_and_do_not_stay_in_memory(tmp_path: Path) -> None:
    sink = opened(tmp_path, limits=Limits(3600, 1))
    one = changes_of(Form("c", 1), batch_of([Entry([Cell()], 1)]), np.arange(1), np.zeros(1, np.int32))
    for _ in range(3):
        sink.add(one.cells)
        assert (sink._open.bytes, numbers(tmp_path)) == (0, [])
    sink.commit({"number": b"1"})
    assert numbers(tmp_path) == [1, 1, 1]


def test_files_are_filed_by_table_and_hour_of_write_time_and_tell_whose_they_are(tmp_path: Path) -> None:
    sink = opened(tmp_path, limits=LATER)
    put(sink, 1, table="shop:orders")
    put(sink, 2, table="shop:orders", hour=25)
    put(sink, 3)
    sink.write()
    name = f"{2:020}-0000.parquet"
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("table=*/**/*.parquet")) == [
        "table=shop%3Aorders/date=1970-01-01/hour=00/" + name,
        "table=shop%3Aorders/date=1970-01-02/hour=01/" + name.replace("-0000", "-0001"),
        "table=t1/date=1970-01-01/hour=00/" + name.replace("-0000", "-0002"),
    ]
    facts = pq.read_metadata(tmp_path / "table=t1/date=1970-01-01/hour=00" / name.replace("-0000", "-0002")).metadata
    assert {key.decode(): value.decode() for key, value in facts.items()} == {
        "walferry.commit": "2", "walferry.epoch": "1", "walferry.stream": "orders", "walferry.cluster": "cluster-1",
    }  # fmt: skip


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_between_any_two_steps_repeats_and_loses_no_row(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(sinks, "KEPT", 1)
    is_whole = False
    for at in range(100):
        folder = tmp_path / str(at)
        put(opened(folder), 1)
        files = Killed(at, after=after)
        try:
            sink = opened(folder, files)
            put(sink, 2)
            put(sink, 3, table="t2")
            is_whole = True
        except KilledError:
            pass
        sink = opened(folder)
        done = int(sink.positions["number"])
        assert numbers(folder) == list(range(1, done + 1))
        assert [path.name for path in (folder / "_begun").iterdir()] == []
        for number in range(done + 1, 5):
            put(sink, number)
        assert numbers(folder) == [1, 2, 3, 4]
        if is_whole:
            break
    assert at > 15


@pytest.mark.parametrize("begun", [False, True])
def test_a_suspended_process_adds_nothing_once_another_has_opened_the_folder(tmp_path: Path, begun: bool) -> None:
    suspended = opened(tmp_path, limits=LATER)
    put(suspended, 1)
    if begun:
        suspended._write_files(suspended._kept)
    second = opened(tmp_path)
    with pytest.raises(FencedError, match="another process has made commit 2 of the history"):
        suspended.write()
    with pytest.raises(TransientError, match="of no more use"):
        suspended.write()
    put(second, 1)
    assert numbers(tmp_path) == [1]


def test_a_process_that_is_suspended_while_it_opens_the_folder_deletes_nothing_of_the_next_one(tmp_path: Path) -> None:
    later: list[HistorySink] = []

    def meanwhile() -> None:
        later.append(opened(tmp_path, limits=LATER))
        put(later[0], 1)
        later[0]._write_files(later[0]._kept)

    suspended = opened(tmp_path, Suspended("/_begun", meanwhile))
    later[0].write()
    assert numbers(tmp_path) == [1]
    with pytest.raises(FencedError):
        put(suspended, 1)


def test_a_suspended_process_adds_nothing_when_the_record_that_shut_it_out_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(sinks, "KEPT", 0)

    def meanwhile() -> None:
        with opened(tmp_path) as later:
            for number in range(2, 6):
                put(later, number)
        assert not (tmp_path / "_commits" / f"{3:020}.json").exists()

    files = Suspended("/_commits/")
    suspended = opened(tmp_path, files)
    put(suspended, 1)
    files.meanwhile = meanwhile
    with pytest.raises(FencedError, match="another process has made commit 3"):
        put(suspended, 2)
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert opened(tmp_path).positions == {"number": b"5"}


@pytest.mark.parametrize("answer", [FileExistsError("it is there"), FileNotFoundError("nothing is there"), None])
def test_whatever_the_answer_was_a_commit_is_made_if_its_record_is_there(
    tmp_path: Path, answer: Exception | None
) -> None:
    sink = opened(tmp_path, Unanswered(answer))
    put(sink, 1)
    put(sink, 2)
    assert numbers(tmp_path) == [1, 2]
    opened(tmp_path)
    with pytest.raises(FencedError):
        put(sink, 3)
    with pytest.raises(TransientError, match="of no more use"):
        sink.write()
    assert (numbers(tmp_path), opened(tmp_path).positions) == ([1, 2], {"number": b"2"})


def test_a_commit_whose_answer_is_lost_is_there_once(tmp_path: Path) -> None:
    files = Unanswered(None)
    sink = opened(tmp_path, files)
    put(sink, 1)
    files._answer = TransientError("no answer")
    with pytest.raises(TransientError, match="no answer"), sink:
        put(sink, 2)
    assert numbers(tmp_path) == [1]
    assert opened(tmp_path).positions == {"number": b"2"}
    assert numbers(tmp_path) == [1, 2]


def test_a_process_of_an_earlier_epoch_is_refused_and_shuts_nobody_out(tmp_path: Path) -> None:
    sink = opened(tmp_path, epoch=2)
    put(sink, 1)
    with pytest.raises(UsageError, match=r"commits of epoch 2, and the spec has epoch 1: give epoch 2"):
        opened(tmp_path)
    put(sink, 2)
    assert numbers(tmp_path) == [1, 2]


def test_an_epoch_begins_with_its_first_positions(tmp_path: Path) -> None:
    put(opened(tmp_path), 1)
    opened(tmp_path, epoch=2)
    assert opened(tmp_path).positions == {"number": b"1"}


def test_the_end_of_a_block_writes_what_was_committed_and_not_what_was_only_added(tmp_path: Path) -> None:
    sink = opened(tmp_path, limits=LATER)
    put(sink, 1)
    sink.add(changes_of(Form("c", 1), batch_of([Entry([Cell()], 2)]), np.arange(1), np.zeros(1, np.int32)).cells)
    with pytest.raises(WalferryError, match="the source"), sink:
        raise WalferryError("the source")
    assert numbers(tmp_path) == [1]
    assert opened(tmp_path).positions == {"number": b"1"}


def test_positions_are_those_of_the_last_checkpoint_and_what_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 3)
    sink = opened(tmp_path)
    for number in range(8):
        sink.commit({f"key {number}": b"%d" % number, f"key {number - 3}": None})
        found = json.loads((tmp_path / "_commits" / f"{number + 2:020}.json").read_text())
        assert (found["checkpoint"] == found["number"]) == (found["number"] in (4, 7))
    assert opened(tmp_path).positions == sink.positions == {"key 5": b"5", "key 6": b"6", "key 7": b"7"}


def test_old_records_are_deleted_and_those_that_positions_need_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(sinks, "KEPT", 10)
    sink = opened(tmp_path)
    for number in range(40):
        put(sink, number)
        assert len(list((tmp_path / "_commits").iterdir())) <= 15
    assert min(path.name for path in (tmp_path / "_commits").iterdir()) == f"{31:020}.json"
    assert numbers(tmp_path) == list(range(40))
    assert opened(tmp_path).positions == {"number": b"39"}


def foreign_file(folder: Path) -> None:
    (folder / "_commits" / "part.json").write_text("{}")


def foreign_record(folder: Path) -> None:
    (folder / "_commits" / f"{9:020}.json").write_text("{}")


def other_stream(folder: Path) -> None:
    HistorySink.open(Local(), str(folder), Owner("cluster-1", "others"), 1, AT_ONCE)


def foreign_data(folder: Path) -> None:
    (folder / "data.parquet").write_text("")


def other_cluster(folder: Path) -> None:
    HistorySink.open(Local(), str(folder), Owner("cluster-2", "orders"), 1, AT_ONCE)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (other_stream, "it belongs to stream others of cluster cluster-1. Set another folder"),
        (other_cluster, "it belongs to stream orders of cluster cluster-2. Set another folder"),
        (foreign_data, "has files, and none of a history (data.parquet)"),
    ],
)
def test_a_folder_of_somebody_else_is_refused_and_stays_as_it_is(tmp_path: Path, spoil: Any, said: str) -> None:
    spoil(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError) as refused:
        opened(tmp_path)
    assert said in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(foreign_file, "_commits/part.json is not walferry's"), (foreign_record, "000009.json is not walferry's")],
)
def test_a_foreign_file_among_the_records_is_refused(tmp_path: Path, spoil: Any, said: str) -> None:
    opened(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UsageError) as refused:
        opened(tmp_path)
    assert said in str(refused.value)


def test_a_process_ends_whose_records_somebody_has_deleted(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    (tmp_path / "_commits" / f"{1:020}.json").rename(tmp_path / "kept.json")
    (tmp_path / "_commits").rmdir()
    with pytest.raises(UsageError, match="_commits is gone"):
        put(sink, 1)


def test_positions_that_are_gone_and_a_file_that_is_gone_stop_the_stream(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="are lost, though they were written before"):
        opened(tmp_path / "empty", expected=True)
    put(opened(tmp_path / "one"), 1)
    (lost,) = (tmp_path / "one").glob("table=*/*/*/*.parquet")
    lost.unlink()
    with pytest.raises(WalferryError, match="of commit 2 is gone or has not its"):
        opened(tmp_path / "one")

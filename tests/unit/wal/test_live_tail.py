"""The log of a running HBase is followed by looking at its files: what they hold now, and whether they are sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.formats.compressed_builder import Compressor
from unit.formats.encrypted_builder import MASTER_KEY, encrypted_entry, encrypted_header
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import DamagedInputError, GapError, TransientError, UsageError
from walferry.formats.cells import encode_cell
from walferry.storage import FileStatus, FileSystem, Local
from walferry.wal import files, live_tail
from walferry.wal import open as opening
from walferry.wal.files import Place, WalFile, parse_wal_name
from walferry.wal.files import list_archive as list_all
from walferry.wal.keys import KEY_HEX
from walferry.wal.live_tail import NO_LIMITS, LiveTail
from walferry.wal.offsets import BatchLimits, GroupPosition, Offset
from walferry.wal.open import Until, open_wal

SERVER = "rs,1,2"
GROUP = "rs%2C1%2C2"
CELL = encode_cell(b"r", b"f", b"q", 1, 4)
MOST_BYTES = 400


class NameNode(Local):
    """Lists an open file, one that was not `given_up` and has no trailer, with length 0."""

    def __init__(self) -> None:
        self.given_up: set[str] = set()

    def _listed(self, status: FileStatus) -> FileStatus:
        if status.is_dir or status.name in self.given_up or Path(status.path).read_bytes().endswith(TRAILER):
            return status
        return status if "/oldWALs/" in status.path else replace(status, length=0)

    def status(self, path: str) -> FileStatus | None:
        status = super().status(path)
        return status and self._listed(status)

    def list(self, path: str) -> list[FileStatus]:
        return [self._listed(status) for status in super().list(path)]


class Log:
    """The log of one server, and a reader that follows it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = NameNode()
        self.offset = Offset()
        for folder in (f"WALs/{SERVER}", "oldWALs"):
            (root / folder).mkdir(parents=True)
        self.tail = LiveTail(self.files, str(root))

    def path(self, number: int) -> Path:
        return self.root / "WALs" / SERVER / f"{GROUP}.{number}"

    def append(self, number: int, *content: bytes) -> None:
        with self.path(number).open("ab") as file:
            file.write(b"".join(content))

    def archive(self, number: int) -> None:
        self.path(number).rename(self.root / "oldWALs" / f"{GROUP}.{number}")

    def new(self, limits: BatchLimits = NO_LIMITS) -> list[int]:
        """The sequence numbers of the next batch's entries."""
        end = self.tail.next(self.offset, limits)
        news = end is not self.offset
        self.offset = end
        found: list[int] = []
        for span in end.spans if news else ():
            name = parse_wal_name(span.file)
            assert name is not None
            file = WalFile(span.file, *name, str(self.path(name.number)), Place.LIVE, 0)
            stop = None if span.sealed else span.stop
            for batch in open_wal(self.files, str(self.root), file, Until.SEALED, start=span.start, stop=stop):
                found += batch.sequence_number.tolist()
        return found

    def restart(self) -> None:
        self.tail = LiveTail(self.files, str(self.root))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(live_tail, "POLL_SECONDS", 0.05)
    monkeypatch.setenv(KEY_HEX, MASTER_KEY.hex())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


Write = Callable[[int], bytes]


def kinds() -> dict[str, tuple[bytes, Write]]:
    compressor = Compressor()
    return {
        "plain": (header(), lambda number: entry([CELL], number)),
        "compressed": (compressor.header, lambda number: compressor.entry([CELL], number)),
        "encrypted": (encrypted_header(), lambda number: encrypted_entry([CELL], number)),
    }


@pytest.mark.parametrize("kind", ["plain", "compressed", "encrypted"])
def test_an_open_file_is_followed_entry_by_entry_through_restarts(kind: str, log: Log) -> None:
    begin, write = kinds()[kind]
    assert log.new() == []
    log.append(1, begin[:20])
    assert log.new() == []
    log.append(1, begin[20:], write(1), write(2))
    assert log.new() == [1, 2]
    third = write(3)
    log.append(1, third[:-3])
    assert log.new() == []
    log.restart()
    log.append(1, third[-3:], write(4))
    assert log.new() == [3, 4]
    log.append(1, write(5), TRAILER)
    log.append(2, kinds()[kind][0])
    log.archive(1)
    assert log.new() == [5]
    assert log.offset.groups[GROUP].number == 2
    log.restart()
    assert log.new() == []


@pytest.mark.parametrize("kind", ["plain", "compressed", "encrypted"])
def test_limits_cut_a_file_between_entries_and_nothing_is_lost(kind: str, log: Log) -> None:
    begin, write = kinds()[kind]
    log.append(1, begin, *(write(number) for number in range(1, 31)), TRAILER)
    log.archive(1)
    batches: list[list[int]] = []
    before = None
    while log.offset is not before:
        before = log.offset
        batches.append(log.new(BatchLimits(bytes=MOST_BYTES)))
        taken = sum(span.stop - span.start for span in log.offset.spans)
        assert taken <= MOST_BYTES
    assert [number for batch in batches for number in batch] == list(range(1, 31))
    assert len([batch for batch in batches if batch]) >= 2


def test_the_position_stays_in_a_file_until_it_is_closed_although_there_is_a_newer_one(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1))
    log.append(2, header(), entry([CELL], 3))
    assert log.new() == [1]
    log.append(1, entry([CELL], 2))
    assert log.new() == [2]
    log.append(1, TRAILER)
    assert log.new() == [3]


def test_a_file_whose_writer_broke_is_left_after_a_while(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1), entry([CELL], 2)[:-2])
    log.append(2, header(), entry([CELL], 2))
    log.files.given_up.add(f"{GROUP}.1")
    assert log.new() == [1]
    assert log.new() == []
    assert log.offset.groups[GROUP].number == 1
    found: list[int] = []
    for _ in range(40):
        found += log.new()
    assert found == [2]


def test_a_file_whose_end_cannot_be_read_for_a_moment_is_looked_at_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(1, header(), entry([CELL], 1), TRAILER)
    failures = [TransientError("No active nodes contain this block")]

    def if_sealed(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return files.if_sealed(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(live_tail, "if_sealed", if_sealed)
    assert log.new() == []
    assert log.new() == [1]


def test_a_broken_file_that_ends_before_what_a_replica_had_shown_is_left_after_a_while(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1), entry([CELL], 2))
    assert log.new() == [1, 2]
    log.path(1).write_bytes(header() + entry([CELL], 1))
    log.files.given_up.add(f"{GROUP}.1")
    log.append(2, header(), entry([CELL], 2), entry([CELL], 3))
    found: list[int] = []
    for _ in range(40):
        found += log.new()
    assert found == [2, 3]


def test_an_open_file_of_several_blocks_is_not_left_for_what_the_name_node_lists(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(1, header(), entry([CELL], 1), entry([CELL], 2))
    log.append(2, header(), entry([CELL], 4))
    block = len(header() + entry([CELL], 1))
    listed = log.files._listed
    monkeypatch.setattr(
        log.files,
        "_listed",
        lambda one: replace(listed(one), length=block) if one.name == f"{GROUP}.1" else listed(one),
    )
    found: list[int] = []
    for _ in range(40):
        found += log.new()
    log.append(1, entry([CELL], 3), TRAILER)
    log.archive(1)
    for _ in range(4):
        found += log.new()
    assert found == [1, 2, 3, 4]


@pytest.mark.parametrize("closed", [True, False])
def test_a_planned_batch_of_bytes_that_were_never_acknowledged_ends_once_its_file_is_closed(
    closed: bool, log: Log
) -> None:
    log.append(1, header(), entry([CELL], 1), entry([CELL], 2))
    assert log.new() == [1, 2]
    log.append(1, entry([CELL], 3))
    end = log.tail.next(log.offset)
    log.path(1).write_bytes(header() + entry([CELL], 1))
    log.append(2, header(), entry([CELL], 2))
    if closed:
        log.files.given_up.add(f"{GROUP}.1")
    (span,) = end.spans
    name = parse_wal_name(span.file)
    assert name is not None
    file = WalFile(span.file, *name, str(log.path(1)), Place.LIVE, 0)
    wal = open_wal(log.files, str(log.root), file, Until.SEALED, start=span.start, stop=span.stop)
    if closed:
        assert list(wal) == []
    else:
        with pytest.raises(TransientError, match="another replica may show them"):
            list(wal)


def test_a_file_that_is_cut_while_it_is_read_is_to_be_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an entry that was taken back would count as one of a sealed file."""
    monkeypatch.setattr(opening, "CLOSE_SECONDS", 2.0)
    log.append(1, header(), entry([CELL], 1), entry([CELL], 2))
    file = WalFile(f"{GROUP}.1", GROUP, SERVER, 1, str(log.path(1)), Place.LIVE, 0)
    batches = iter(open_wal(log.files, str(log.root), file, Until.SEALED))
    assert next(batches).sequence_number.tolist() == [1, 2]
    log.path(1).write_bytes(header() + entry([CELL], 1))
    log.files.given_up.add(f"{GROUP}.1")
    with pytest.raises(TransientError, match="is not closed yet"):
        list(batches)


def test_what_is_available_now_waits_for_a_file_that_is_just_being_closed(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1))
    log.append(2, header(), entry([CELL], 2))
    log.files.given_up.add(f"{GROUP}.1")
    log.tail.stop_growing()
    assert log.new() == [1, 2]
    log.append(2, entry([CELL], 3))
    assert log.new() == []
    log.restart()
    assert log.new() == [3]


def test_what_is_available_now_ends_within_its_limits(log: Log) -> None:
    log.append(1, header(), *(entry([CELL], number) for number in range(1, 21)), TRAILER)
    log.append(2, header(), *(entry([CELL], number) for number in range(21, 31)))
    log.tail.stop_growing()
    some = BatchLimits(bytes=MOST_BYTES)
    found = log.new(some)
    log.append(2, entry([CELL], 99))
    while more := log.new(some):
        found += more
    assert found == list(range(1, 31))


def test_damage_is_told_after_what_precedes_it(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1), b"\1\1\1", entry([CELL], 2))
    assert log.new() == [1]
    with pytest.raises(DamagedInputError, match=rf"{GROUP}\.1"):
        log.new()


def test_a_file_that_is_deleted_before_it_is_read_is_a_gap_even_after_a_restart(log: Log) -> None:
    for number in (1, 2, 3):
        log.append(number, header(), entry([CELL], number), TRAILER)
        log.archive(number)
    assert log.new(BatchLimits(files=1)) == [1]
    (log.root / "oldWALs" / f"{GROUP}.2").unlink()
    log.restart()
    with pytest.raises(GapError, match=rf"{GROUP}\.2 is missing"):
        log.new()


def test_latest_begins_after_what_is_there(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1), TRAILER)
    log.append(2, header(), entry([CELL], 2))
    log.offset = log.tail.at_end()
    assert log.offset.groups[GROUP] == GroupPosition(2, len(header() + entry([CELL], 2)))
    log.append(2, entry([CELL], 3))
    assert log.new() == [3]


def test_a_file_that_hdfs_cannot_read_for_a_while_is_looked_at_again_but_not_for_ever(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log.append(1, header(), entry([CELL], 1))
    with monkeypatch.context() as patch:

        def fail(path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            raise TransientError("Cannot obtain block length")

        patch.setattr(log.files, "read", fail)
        assert log.new() == []
        assert "Cannot obtain block length" in caplog.text
        patch.setattr(live_tail, "PATIENCE_SECONDS", 0)
        with pytest.raises(TransientError):
            log.new()
    assert log.new() == [1]


def test_a_root_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        LiveTail(Local(), str(tmp_path))


def test_a_batch_is_whole_when_it_ends_with_everything_that_can_be_seen(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1), entry([CELL], 2))
    limited = BatchLimits(bytes=len(entry([CELL], 1)) + 1)
    assert (log.new(limited), log.tail.whole) == ([1], False)
    assert (log.new(limited), log.tail.whole) == ([2], True)
    log.append(2, header(), entry([CELL], 3))
    assert (log.new(), log.tail.whole) == ([], False), "the first file is not closed, so the next one is not read"
    log.append(1, TRAILER)
    assert (log.new(), log.tail.whole) == ([3], True)
    assert (log.new(), log.tail.whole) == ([], True), "nothing new, and all of it was looked at"


def test_no_batch_is_whole_while_a_dead_servers_log_is_split(log: Log) -> None:
    log.append(1, header(), entry([CELL], 1))
    assert (log.new(), log.tail.whole) == ([1], True)
    splitting = log.path(1).parent.rename(log.root / "WALs" / f"{SERVER}-splitting")
    log.new()
    assert not log.tail.whole
    (splitting / log.path(1).name).rename(log.root / "oldWALs" / log.path(1).name)
    splitting.rmdir()
    log.new()
    assert log.tail.whole


def test_a_batch_with_a_file_that_moves_while_it_is_looked_at_is_not_whole(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(1, header(), entry([CELL], 1))
    with monkeypatch.context() as patch:
        patch.setattr(live_tail, "open_wal", missing_file)
        assert (log.new(), log.tail.whole) == ([], False)
    assert (log.new(), log.tail.whole) == ([1], True)


def missing_file(*args: object, **keys: object) -> None:
    raise FileNotFoundError


def test_the_archive_is_listed_again_only_when_the_live_files_have_changed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = list[str]()

    def listed(files: FileSystem, root: str) -> list[WalFile]:
        listings.append(root)
        return list_all(files, root)

    monkeypatch.setattr(live_tail, "list_archive", listed)
    log.append(1, header(), entry([CELL], 1))
    for _ in range(4):
        log.new()
    assert len(listings) == 1
    log.append(1, TRAILER)
    log.append(2, header(), entry([CELL], 2))
    log.archive(1)
    assert log.new() == [2]
    assert len(listings) == 2
    monkeypatch.setattr(live_tail, "PAUSE_SECONDS", 0.0)
    log.new()
    assert len(listings) == 3, "a server may have come and gone in a long pause"

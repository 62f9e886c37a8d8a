"""A file that its server has left is read to its true end; one that is still written to waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.formats.compressed_builder import Compressor
from unit.formats.encrypted_builder import MASTER_KEY, encrypted_entry, encrypted_header
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import DamagedInputError, GapError, TransientError, UnreadableInputError
from walferry.formats.cells import encode_cell
from walferry.storage import FileStatus, Local
from walferry.wal import open as opening
from walferry.wal.files import Place, WalFile, list_wals
from walferry.wal.keys import KEY_HEX
from walferry.wal.open import Until, bytes_held, entry_at, is_length_final, open_wal, open_wal_at
from written import write_anew

SERVER = "rs,1,2"
CELL = encode_cell(b"r", b"f", b"q", 1, 4)


class Open(Local):
    """A file system that does not know the length of a file without a trailer, as a NameNode does not."""

    def status(self, path: str) -> FileStatus | None:
        status = super().status(path)
        return replace(status, length=0) if status and not Path(path).read_bytes().endswith(TRAILER) else status


def entries(files: Local, root: Path, content: bytes) -> int:
    """How many entries are read of a log in a living server's folder."""
    write_anew(files, f"{root}/WALs/{SERVER}/rs%2C1%2C2.7", [content])
    (file,) = list_wals(files, str(root))
    wal = open_wal(files, str(root), file)
    read = sum(len(batch) for batch in wal)
    assert wal.length == len(content)
    return read


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CLOSE_SECONDS", 0.2)


def test_a_file_is_read_to_its_trailer(tmp_path: Path) -> None:
    assert entries(Open(), tmp_path, header() + entry([CELL]) + entry([CELL], 2) + TRAILER) == 2


def test_a_file_that_is_still_written_to_is_left_for_the_next_round(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="is not closed yet"):
        entries(Open(), tmp_path, header() + entry([CELL]))


def test_a_file_that_was_given_up_by_its_writer_ends_where_the_name_node_says(tmp_path: Path) -> None:
    assert entries(Local(), tmp_path, header() + entry([CELL])) == 1


# ------------------------------------------------------------------ other ways, and what can go wrong

NAME = "rs%2C1%2C2.7"


def live(root: Path, content: bytes) -> WalFile:
    Local().write(f"{root}/WALs/{SERVER}/{NAME}", [content])
    (file,) = list_wals(Local(), str(root))
    return file


class ArchivedMeanwhile(Local):
    """A file system on which the log is archived after its first bytes were read."""

    def __init__(self, root: Path, after: int = 300) -> None:
        self._root = root
        self._after = after

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        data = b"".join(super().read(path, offset, length))
        if "/oldWALs/" in path:
            yield data
            return
        yield data[: self._after]
        archive = self._root / "oldWALs"
        archive.mkdir()
        Path(path).rename(archive / NAME)
        raise FileNotFoundError(path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("until", Until)
def test_a_file_that_is_archived_while_it_is_read_is_followed_and_no_entry_comes_twice(
    until: Until, compressed: bool, tmp_path: Path
) -> None:
    compressor = Compressor()
    begin, write = (compressor.header, compressor.entry) if compressed else (header(), entry)
    file = live(tmp_path, begin + b"".join(write([CELL], i + 1) for i in range(20)) + TRAILER)
    wal = open_wal(ArchivedMeanwhile(tmp_path), str(tmp_path), file, until, batch_bytes=64)
    assert [number for batch in wal for number in batch.sequence_number] == list(range(1, 21))


def test_what_is_in_a_file_now_is_read_without_waiting(tmp_path: Path) -> None:
    file = live(tmp_path, header() + entry([CELL]) + entry([CELL], 2)[:-3])
    wal = open_wal(Open(), str(tmp_path), file, Until.NOW)
    assert sum(len(batch) for batch in wal) == 1
    assert wal.unfinished is not None
    assert wal.unfinished.reason == "the file ends inside an entry"


@pytest.mark.parametrize("content", [b"", header()[:9]])
def test_a_file_whose_writer_has_only_begun_holds_no_entry(content: bytes, tmp_path: Path) -> None:
    wal = open_wal(Local(), str(tmp_path), live(tmp_path, content), Until.NOW)
    assert list(wal) == []
    assert wal.length == len(content)
    assert wal.unfinished is not None
    assert wal.unfinished.reason == "the file ends inside its header"
    assert wal.header() is None


def test_the_header_alone_is_read_however_the_rest_looks(tmp_path: Path) -> None:
    file = live(tmp_path, header() + b"\xff" * 100)
    known = open_wal(Local(), str(tmp_path), file).header()
    assert known is not None
    assert known.writer == "ProtobufLogWriter"
    with pytest.raises(DamagedInputError):
        list(open_wal(Local(), str(tmp_path), file))


def test_a_file_of_a_kind_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    wal = open_wal(
        Local(), str(tmp_path), live(tmp_path, header(cell_codec_cls_name="org.example.IndexedWALEditCodec"))
    )
    with pytest.raises(UnreadableInputError, match="IndexedWALEditCodec"):
        wal.header()
    with pytest.raises(UnreadableInputError, match="IndexedWALEditCodec"):
        list(wal)


@pytest.mark.parametrize("until", Until)
def test_a_file_that_no_longer_exists_is_a_gap(until: Until, tmp_path: Path) -> None:
    file = live(tmp_path, header())
    Path(file.path).unlink()
    with pytest.raises(GapError, match=NAME):
        list(open_wal(Local(), str(tmp_path), file, until))


def test_a_file_given_by_its_path_may_be_anywhere_and_is_followed_into_the_archive(tmp_path: Path) -> None:
    content = header() + entry([CELL]) + TRAILER
    elsewhere = tmp_path / "some.wal"
    elsewhere.write_bytes(content)
    assert sum(len(batch) for batch in open_wal_at(Local(), str(elsewhere))) == 1
    file = live(tmp_path, content)
    (tmp_path / "oldWALs").mkdir()
    Path(file.path).rename(tmp_path / "oldWALs" / NAME)
    assert sum(len(batch) for batch in open_wal_at(Local(), file.path)) == 1
    (tmp_path / "oldWALs" / NAME).unlink()
    with pytest.raises(FileNotFoundError, match="no such file"):
        list(open_wal_at(Local(), file.path))


def test_what_an_open_file_holds_is_told_though_it_is_listed_without_a_byte(tmp_path: Path) -> None:
    files = Open()

    def held(content: bytes) -> int:
        write_anew(files, f"{tmp_path}/WALs/{SERVER}/rs%2C1%2C2.7", [content])
        (file,) = list_wals(files, str(tmp_path))
        return bytes_held(files, str(tmp_path), replace(file, length=0))

    whole = header() + entry([CELL], 1)
    assert held(b"") == held(header()[:9]) == held(header()) == 0
    assert held(whole) == held(whole + b"half") == len(whole)
    assert held(header() + entry([CELL] * 500, 1)) > 4096
    assert held(header() + b"\x7f" * 200) > 0, "what cannot be read counts as held"


def test_a_length_is_final_once_nothing_can_be_read_past_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"123")

    class Away(Local):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            raise TransientError("the data node does not answer")

    def listed(length: int, place: Place = Place.LIVE) -> WalFile:
        return WalFile("log", "g", "s", 1, str(path), place, length)

    assert is_length_final(Local(), listed(3))
    assert is_length_final(Local(), listed(3, Place.ARCHIVED))
    assert not is_length_final(Local(), listed(2))
    assert not is_length_final(Local(), listed(3, Place.SPLITTING))
    assert not is_length_final(Local(), listed(0))
    assert not is_length_final(Away(), listed(3))
    path.unlink()
    assert not is_length_final(Local(), listed(3))


def test_a_file_that_was_deleted_since_it_was_listed_holds_nothing(tmp_path: Path) -> None:
    Local().mkdirs(f"{tmp_path}/WALs/{SERVER}")
    gone = WalFile("rs%2C1%2C2.7", "rs%2C1%2C2", SERVER, 7, "/gone", Place.LIVE, 0)
    assert bytes_held(Local(), str(tmp_path), gone) == 0


class Growing(Local):
    """A file system on which a log gets more bytes each time it is read."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._shown = 300

    def status(self, path: str) -> FileStatus | None:
        status = super().status(path)
        return replace(status, length=0) if status else status

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        assert offset <= self._shown
        yield self._content[offset : self._shown]
        self._shown += 250


@pytest.mark.parametrize("compressed", [False, True])
def test_a_log_that_grows_while_it_is_read_is_read_on_where_it_ended(compressed: bool, tmp_path: Path) -> None:
    compressor = Compressor()
    begin, write = (compressor.header, compressor.entry) if compressed else (header(), entry)
    content = begin + b"".join(write([CELL], i + 1) for i in range(12)) + TRAILER
    wal = open_wal(Growing(content), str(tmp_path), live(tmp_path, content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "CLOSE_SECONDS", 30)
        patch.setattr("time.sleep", lambda seconds: None)
        assert [number for batch in wal for number in batch.sequence_number] == list(range(1, 13))


def test_one_entry_of_a_compressed_log_comes_as_a_plain_one_with_the_offset_after_it(tmp_path: Path) -> None:
    compressor = Compressor()
    entries = [compressor.entry([CELL, CELL], i + 1) for i in range(3)]
    path = tmp_path / "some.wal"
    path.write_bytes(compressor.header + b"".join(entries) + TRAILER)
    start = len(compressor.header + entries[0])
    assert entry_at(open_wal_at(Local(), str(path)), start) == (entry([CELL, CELL], 2), start + len(entries[1]))
    with pytest.raises(ValueError, match="no entry begins"):
        entry_at(open_wal_at(Local(), str(path)), start + 1)


def test_a_log_of_recovered_edits_has_dictionaries_of_one_region_and_one_table(tmp_path: Path) -> None:
    compressor = Compressor(names=1)
    tables = [b"t1", b"t2", b"t1", b"t1"]
    path = tmp_path / "recovered.edits" / "0000000000000000012"
    path.parent.mkdir()
    path.write_bytes(compressor.header + b"".join(compressor.entry([CELL], table_name=name) for name in tables))
    (batch,) = open_wal_at(Local(), str(path))
    assert [batch.tables[code] for code in batch.table] == tables


def test_damage_stays_damage_when_the_file_is_archived_before_its_end_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_HEX, MASTER_KEY.hex())
    cell = encode_cell(b"r", b"f", b"q", 1, 4, b"value")
    entries = [encrypted_entry([cell], number + 1) for number in range(30)]
    begin = encrypted_header()
    iv = len(entry([], 2, following_kv_count=1)) + 1
    damaged = entries[1][:iv] + bytes(16) + entries[1][iv + 16 :]
    content = begin + entries[0] + damaged + b"".join(entries[2:]) + TRAILER
    files = ArchivedMeanwhile(tmp_path, after=len(content) // 2)
    found: list[list[int]] = []
    with pytest.raises(DamagedInputError) as raised:
        found.extend(
            batch.sequence_number.tolist()
            for batch in open_wal(files, str(tmp_path), live(tmp_path, content), batch_bytes=64)
        )
    assert found == [[1]]
    assert raised.value.facts["offset"] == len(begin + entries[0])


def test_a_file_that_grows_is_read_on_from_where_it_ended_whatever_its_kind(tmp_path: Path) -> None:
    compressor = Compressor()
    kinds = {
        "plain": [header(), entry([CELL]), entry([CELL], 2), entry([CELL], 3), TRAILER],
        "with dictionaries": [
            compressor.header, *(compressor.entry([CELL], number) for number in (1, 2, 3)), TRAILER
        ],
    }  # fmt: skip
    for kind, parts in kinds.items():
        path = tmp_path / kind / "WALs" / SERVER / NAME
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        (file,) = list_wals(Local(), str(tmp_path / kind))
        wal = open_wal(Local(), str(tmp_path / kind), file, Until.NOW)
        found: list[list[int]] = []
        for upto in range(len(parts) + 1):
            path.write_bytes(b"".join(parts[:upto]))
            found.append([int(n) for batch in wal.more() for n in batch.sequence_number])
            assert (wal.unfinished is None) == (upto == len(parts))
        assert found == [[], [], [1], [2], [3], []], kind


@pytest.mark.parametrize("begun", [True, False])
def test_a_file_that_grows_is_followed_into_the_archive_and_not_into_the_folder_of_a_dead_server(
    begun: bool, tmp_path: Path
) -> None:
    path = tmp_path / "WALs" / SERVER / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(header() + entry([CELL]))
    (file,) = list_wals(Local(), str(tmp_path))
    first, second = (open_wal(Local(), str(tmp_path), file, Until.NOW) for _ in range(2))
    for wal in (first, second) if begun else ():
        assert [int(n) for batch in wal.more() for n in batch.sequence_number] == [1]
    path.write_bytes(header() + entry([CELL]) + entry([CELL], 2) + TRAILER)
    archive = tmp_path / "oldWALs"
    archive.mkdir()
    archived = path.rename(archive / NAME)
    assert [int(n) for batch in first.more() for n in batch.sequence_number] == ([2] if begun else [1, 2])
    assert first.unfinished is None
    split = path.parent.with_name(f"{SERVER}-splitting")
    split.mkdir()
    archived.rename(split / NAME)
    if begun:
        with pytest.raises(FileNotFoundError):
            list(second.more())
    (split / NAME).unlink()
    with pytest.raises(GapError):
        list(open_wal(Local(), str(tmp_path), file, Until.NOW).more())


def test_a_file_that_was_not_read_to_its_end_is_not_gone_on_with(tmp_path: Path) -> None:
    """Nobody knows where: with dictionaries, entries that were read before would be read by other ones."""
    path = tmp_path / "WALs" / SERVER / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(header() + entry([CELL]) + entry([CELL], 2))
    (file,) = list_wals(Local(), str(tmp_path))
    wal = open_wal(Local(), str(tmp_path), file, Until.NOW, batch_bytes=1)
    visible = wal.more()
    next(visible)
    with pytest.raises(RuntimeError, match="was not read to its end"):
        next(wal.more())
    assert len(list(visible)) == 1
    assert list(wal.more()) == []

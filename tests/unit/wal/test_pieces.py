"""What was copied of an open log is read as one file, whatever pieces it is in; the files are real."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import GapError
from walferry.hbase.address import ClusterAddress
from walferry.storage import Local
from walferry.wal import pieces
from walferry.wal.copies import with_copies
from walferry.wal.files import Place, list_archive, live_file
from walferry.wal.open import Until, open_wal

NAME = "rs%2C1%2C2.10"
ME = ClusterAddress("none:1", user="me")
WAL = header() + b"".join(entry([], number) for number in range(1, 6)) + TRAILER


def add(folder: Path, first: int, content: bytes) -> None:
    Local().write(f"{folder}/open/{NAME}/{pieces.piece_name(first, first + len(content))}", [content])


def held(folder: Path, offset: int = 0, length: int | None = None) -> bytes:
    found = pieces.list_pieces(Local(), str(folder), NAME)
    return b"".join(pieces.read_pieces(Local(), found, offset, length))


def test_pieces_are_read_as_one_file_from_any_byte_on(tmp_path: Path) -> None:
    for first, content in ((0, b"abc"), (3, b"defg"), (7, b"h")):
        add(tmp_path, first, content)
    assert held(tmp_path) == b"abcdefgh"
    assert held(tmp_path, 2, 3) == b"cde"
    assert held(tmp_path, 7) == b"h"
    assert held(tmp_path, 8) == b""


def test_pieces_that_two_processes_wrote_overlap_and_what_is_past_a_hole_does_not_count(tmp_path: Path) -> None:
    for first, content in ((0, b"abc"), (0, b"abcde"), (3, b"defg"), (9, b"jk")):
        add(tmp_path, first, content)
    assert held(tmp_path) == b"abcdefg"
    add(tmp_path, 6, b"ghi")
    assert held(tmp_path) == b"abcdefghijk"


def test_a_piece_of_which_a_machine_lost_a_part_counts_for_what_it_has(tmp_path: Path) -> None:
    Local().write(f"{tmp_path}/open/{NAME}/{pieces.piece_name(0, 5)}", [b"abc"])
    add(tmp_path, 5, b"fg")
    assert held(tmp_path) == b"abc"


def test_a_log_that_the_source_no_longer_has_is_found_in_the_archive_up_to_its_last_whole_entry(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "copies"
    add(folder, 0, WAL[:100])
    add(folder, 100, WAL[100:-40])  # it ends inside the last entry
    files = with_copies(Local(), [f"file://{folder}"], ME)
    (listed,) = list_archive(files, f"{tmp_path}/hbase")
    assert (listed.name, listed.place, listed.length) == (NAME, Place.ARCHIVED, len(WAL) - 40)
    wal = open_wal(files, f"{tmp_path}/hbase", listed, Until.SEALED)
    assert [int(number) for batch in wal for number in batch.sequence_number] == [1, 2, 3, 4]
    assert wal.unfinished is not None


def test_of_two_folders_the_longer_pieces_count(tmp_path: Path) -> None:
    for name, content in (("short", WAL[:50]), ("long", WAL[:100]), ("other", WAL[:10])):
        add(tmp_path / name, 0, content)
    files = with_copies(Local(), [f"file://{tmp_path}/{name}" for name in ("short", "long", "other")], ME)
    (listed,) = list_archive(files, f"{tmp_path}/hbase")
    assert listed.length == 100
    found = files.status(f"{tmp_path}/hbase/oldWALs/{NAME}")
    assert found is not None
    assert b"".join(files.read(found.path)) == WAL[:100]


def test_a_closed_copy_and_the_file_itself_count_more_than_pieces(tmp_path: Path) -> None:
    folder, root = tmp_path / "copies", f"{tmp_path}/hbase"
    files = with_copies(Local(), [f"file://{folder}"], ME)
    add(folder, 0, WAL[:100])
    Local().write(f"{folder}/{NAME}", [WAL])
    assert [file.length for file in list_archive(files, root)] == [len(WAL)]
    Local().write(f"{root}/oldWALs/{NAME}", [WAL[:-1]])
    assert [file.length for file in list_archive(files, root)] == [len(WAL) - 1]


def test_a_log_without_pieces_is_missing(tmp_path: Path) -> None:
    (tmp_path / "copies" / "open" / NAME).mkdir(parents=True)
    files = with_copies(Local(), [f"file://{tmp_path}/copies"], ME)
    assert list_archive(files, f"{tmp_path}/hbase") == []
    file = live_file(f"{tmp_path}/hbase", NAME)
    assert file is not None
    with pytest.raises(GapError):
        list(open_wal(files, f"{tmp_path}/hbase", file))

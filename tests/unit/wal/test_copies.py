"""Copies of WALs show up where HBase would archive the files, once those no longer exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.formats.cells import encode_cell
from walferry.hbase.address import ClusterAddress
from walferry.storage import FileSystem, Local
from walferry.wal.copies import as_url, with_copies
from walferry.wal.files import Place, WalFile, find_archived, find_wal, list_wals
from walferry.wal.open import open_wal

ME = ClusterAddress("none:1", user="me")
GROUP = "rs%2C1%2C2"
NAME = f"{GROUP}.10"
CONTENT = header() + entry([encode_cell(b"r", b"f", b"q", 1, 4, b"v")]) + TRAILER


@pytest.fixture
def files(tmp_path: Path) -> FileSystem:
    return with_copies(Local(), [as_url(f"{tmp_path}/copies/move-1")], ME)


def copy(folder: Path, name: str, content: bytes = CONTENT) -> None:
    Local().write(f"{folder}/copies/move-1/{name}", [content])


def entries(files: FileSystem, root: Path, file: WalFile) -> int:
    return sum(len(batch) for batch in open_wal(files, str(root), file))


def test_a_log_that_was_deleted_is_listed_found_and_read_by_its_copy(tmp_path: Path, files: FileSystem) -> None:
    copy(tmp_path, NAME)
    (tmp_path / "WALs").mkdir()
    (file,) = list_wals(files, str(tmp_path))
    assert (file.name, file.place, file.length) == (NAME, Place.ARCHIVED, len(CONTENT))
    assert file.path == f"file://{tmp_path}/copies/move-1/{NAME}"
    assert find_archived(files, str(tmp_path), NAME) == file
    assert entries(files, tmp_path, file) == 1
    live = WalFile(NAME, GROUP, "rs,1,2", 10, f"{tmp_path}/WALs/rs,1,2/{NAME}", Place.LIVE, 0)
    assert find_wal(files, str(tmp_path), live) == file
    assert entries(files, tmp_path, live) == 1


@pytest.mark.parametrize("folder", ["WALs/rs,1,2", "WALs/rs,1,2-splitting", "oldWALs", "oldWALs/rs,1,2"])
def test_as_long_as_the_log_itself_exists_it_is_what_is_listed(tmp_path: Path, files: FileSystem, folder: str) -> None:
    copy(tmp_path, NAME)
    (tmp_path / "WALs").mkdir()
    Local().write(f"{tmp_path}/{folder}/{NAME}", [CONTENT])
    (file,) = list_wals(files, str(tmp_path))
    assert file.path == f"{tmp_path}/{folder}/{NAME}"
    if file.place is Place.ARCHIVED:
        assert find_archived(files, str(tmp_path), NAME) == file
    live = WalFile(NAME, GROUP, "rs,1,2", 10, f"{tmp_path}/WALs/rs,1,2/{NAME}", Place.LIVE, 0)
    assert find_wal(files, str(tmp_path), live) == file


def test_what_is_still_being_copied_is_no_log(tmp_path: Path, files: FileSystem) -> None:
    copy(tmp_path, f"{NAME}.0123abcd.copying")
    (tmp_path / "WALs").mkdir()
    assert list_wals(files, str(tmp_path)) == []


def test_without_folders_the_file_system_is_the_clusters_own() -> None:
    own = Local()
    assert with_copies(own, (), ME) is own


def test_a_folder_of_a_run_that_has_ended_is_empty(tmp_path: Path, files: FileSystem) -> None:
    (tmp_path / "WALs").mkdir()
    assert list_wals(files, str(tmp_path)) == []

"""The local file system keeps the promises of the interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from walferry.storage import Local, temporary


@pytest.fixture
def files() -> Local:
    return Local()


def test_a_written_file_reads_back_from_any_offset(files: Local, tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "er" / "file")
    files.write(path, [b"0123", b"", b"456789"])
    assert b"".join(files.read(path)) == b"0123456789"
    assert b"".join(files.read(path, 3, 4)) == b"3456"
    assert b"".join(files.read(path, 8, 100)) == b"89"
    assert list(files.read(path, 10)) == []
    assert list(files.read(path, 99)) == []
    assert list(files.read(path, 3, 0)) == []


def test_a_folder_lists_its_entries_by_name(files: Local, tmp_path: Path) -> None:
    files.write(str(tmp_path / "b%2Cx"), [b"12"])
    files.mkdirs(str(tmp_path / "a"))
    listed = files.list(str(tmp_path))
    assert [(one.name, one.is_dir, one.length) for one in listed if not one.is_dir] == [("b%2Cx", False, 2)]
    assert [one.name for one in listed] == ["a", "b%2Cx"]
    assert files.list(str(tmp_path / "a")) == []


def test_what_is_missing_is_none_or_an_error(files: Local, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert files.status(missing) is None
    assert files.delete(missing) is False
    with pytest.raises(FileNotFoundError):
        files.list(missing)
    with pytest.raises(FileNotFoundError):
        next(files.read(missing))
    with pytest.raises(FileNotFoundError):
        files.rename(missing, str(tmp_path / "x"))


def test_a_file_is_no_folder(files: Local, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        files.list(str(tmp_path / "file"))


def test_a_file_is_replaced_only_by_another_one_that_is_whole(files: Local, tmp_path: Path) -> None:
    path, other = str(tmp_path / "file"), str(tmp_path / "other")
    files.write(path, [b"old"])
    files.write(other, [b"other"])
    with pytest.raises(FileExistsError):
        files.write(path, [b"new"])
    with pytest.raises(FileExistsError):
        files.rename(other, path)
    assert b"".join(files.read(path)) == b"old"
    files.replace(other, path)
    assert b"".join(files.read(path)) == b"other"
    files.replace(path, other)
    assert (files.status(path), b"".join(files.read(other))) == (None, b"other")
    with pytest.raises(FileExistsError):
        files.replace(other, str(tmp_path))
    with pytest.raises(FileNotFoundError):
        files.replace(path, other)


def test_a_file_that_is_begun_under_a_name_of_its_own_is_removed_after_an_error(files: Local, tmp_path: Path) -> None:
    def half() -> Iterator[bytes]:
        yield b"half"
        raise KeyError

    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(KeyError), temporary(files, str(folder)) as begun:
            files.write(begun, half())
    (tmp_path / "new").rmdir()
    with temporary(files, str(tmp_path)) as begun:
        files.write(begun, [b"whole"])
        files.rename(begun, f"{tmp_path}/wanted")
    assert [status.name for status in files.list(str(tmp_path))] == ["wanted"]


def test_a_folder_goes_with_all_it_holds_only_when_asked(files: Local, tmp_path: Path) -> None:
    files.write(str(tmp_path / "d" / "f"), [b""])
    with pytest.raises(OSError, match="not empty"):
        files.delete(str(tmp_path / "d"))
    assert files.delete(str(tmp_path / "d"), recursive=True) is True
    assert files.status(str(tmp_path / "d")) is None


def test_of_two_renames_to_one_destination_only_one_happens(
    files: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, wanted = (str(tmp_path / name) for name in ("first", "second", "wanted"))
    files.write(first, [b"1"])
    files.write(second, [b"2"])
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # both have looked before
    files.rename(first, wanted)
    with pytest.raises(FileExistsError):
        files.rename(second, wanted)
    assert (b"".join(files.read(wanted)), Path(first).exists(), Path(second).exists()) == (b"1", False, True)


def test_what_another_process_deletes_between_a_look_and_the_deletion_is_not_there(
    files: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda path: True)
    assert not files.delete(f"{tmp_path}/gone")


def test_two_processes_delete_the_same_folder(files: Local, tmp_path: Path) -> None:
    for number in range(300):
        files.write(f"{tmp_path}/both/{number % 7}/{number}", [b"x"])
    together = Barrier(2)

    def delete() -> bool:
        together.wait()
        return files.delete(f"{tmp_path}/both", recursive=True)

    with ThreadPoolExecutor(2) as threads:
        deleted = [one.result() for one in [threads.submit(delete) for _ in range(2)]]
    assert any(deleted)
    assert not (tmp_path / "both").exists()

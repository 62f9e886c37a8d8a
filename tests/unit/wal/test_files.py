from __future__ import annotations

from pathlib import Path

import pytest

from walferry.errors import TransientError, UsageError
from walferry.storage import FileStatus, Local
from walferry.wal.files import Place, find_wal, list_wals, parse_wal_name

SERVER = "rs-1.example,16020,1700000000000"
GROUP = "rs-1.example%2C16020%2C1700000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "WALs" / SERVER).mkdir(parents=True)
    (tmp_path / "oldWALs").mkdir()
    return tmp_path


def write(root: Path, folder: str, name: str, content: bytes = b"x") -> Path:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(root: Path) -> list[tuple[str, Place]]:
    return [(file.name, file.place) for file in list_wals(Local(), str(root))]


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (f"{GROUP}.1700000000123", (GROUP, SERVER, 1700000000123)),
        (f"{GROUP}.regiongroup-2.1700000000123", (f"{GROUP}.regiongroup-2", SERVER, 1700000000123)),
        (f"{GROUP}.{GROUP}.regiongroup-0.1700000000123", (f"{GROUP}.{GROUP}.regiongroup-0", SERVER, 1700000000123)),
        (f"{GROUP}.{GROUP}.shop.1700000000123", (f"{GROUP}.{GROUP}.shop", SERVER, 1700000000123)),
        (f"{GROUP}.{'0c' * 16}.1700000000123", (f"{GROUP}.{'0c' * 16}", SERVER, 1700000000123)),
        (f"{GROUP}.default.1700000000123", (f"{GROUP}.default", SERVER, 1700000000123)),
        (f"{GROUP}.meta.1700000000123.meta", None),
        (f"{GROUP}.1700000000123.meta", None),
        (f"{GROUP}.meta.1700000000123", (f"{GROUP}.meta", SERVER, 1700000000123)),
        (f"{GROUP}.1700000000123$masterlocalwal$", None),
        ("pv2-00000000000000000001.log", None),
        ("pv2-host%2C1%2C2.3", None),
        (f"{GROUP}.1700000000123.tmp", None),
        (f"{GROUP}", None),
        ("", None),
    ],
)
def test_a_name_tells_group_server_and_number_or_that_it_is_no_log_of_user_tables(
    name: str, parsed: tuple[str, str, int] | None
) -> None:
    assert parse_wal_name(name) == parsed


def test_files_are_listed_by_group_and_by_number_and_not_by_name(root: Path) -> None:
    for number in (10, 9, 100):
        write(root, f"WALs/{SERVER}", f"{GROUP}.{number}")
    write(root, f"WALs/{SERVER}", f"{GROUP}.8.meta")
    assert [name for name, _ in names(root)] == [f"{GROUP}.{number}" for number in (9, 10, 100)]


def test_a_file_is_found_in_each_place_of_its_life(root: Path) -> None:
    for number, folder, place in (
        (1, f"WALs/{SERVER}", Place.LIVE),
        (2, f"WALs/{SERVER}-splitting", Place.SPLITTING),
        (3, "oldWALs", Place.ARCHIVED),
        (4, f"oldWALs/{SERVER}", Place.ARCHIVED),
    ):
        path = write(root, folder, f"{GROUP}.{number}", b"12345")
        file = next(file for file in list_wals(Local(), str(root)) if file.number == number)
        assert (file.place, file.length, file.path, file.server) == (place, 5, str(path), SERVER)
        assert find_wal(Local(), str(root), file) == file


def test_a_file_that_moves_is_found_again_and_one_that_went_is_none(root: Path) -> None:
    path = write(root, f"WALs/{SERVER}", f"{GROUP}.1")
    (file,) = list_wals(Local(), str(root))
    path.rename(root / "oldWALs" / file.name)
    moved = find_wal(Local(), str(root), file)
    assert moved is not None
    assert moved.place is Place.ARCHIVED
    (root / "oldWALs" / file.name).unlink()
    assert find_wal(Local(), str(root), file) is None


def test_an_archived_file_is_looked_up_in_one_request(root: Path) -> None:
    write(root, "oldWALs", f"{GROUP}.1")
    (file,) = list_wals(Local(), str(root))
    asked = []

    class Asked(Local):
        def status(self, path: str) -> FileStatus | None:
            asked.append(path)
            return super().status(path)

    assert find_wal(Asked(), str(root), file) == file
    assert asked == [file.path]


def test_a_file_seen_in_two_places_counts_once_at_the_later_one(root: Path) -> None:
    write(root, f"WALs/{SERVER}", f"{GROUP}.1")
    write(root, "oldWALs", f"{GROUP}.1")
    assert names(root) == [(f"{GROUP}.1", Place.ARCHIVED)]


def test_a_cluster_that_never_archived_a_log_has_no_archive(root: Path) -> None:
    (root / "oldWALs").rmdir()
    write(root, f"WALs/{SERVER}", f"{GROUP}.1")
    assert names(root) == [(f"{GROUP}.1", Place.LIVE)]


class Moving(Local):
    """A file system on which the server's folder is renamed to -splitting whenever it has been listed `times`."""

    def __init__(self, root: Path, times: int) -> None:
        self._root, self._times = root, times

    def list(self, path: str) -> list[FileStatus]:
        found = super().list(path)
        if path == f"{self._root}/WALs" and self._times:
            self._times -= 1
            for entry in found:
                folder = Path(entry.path)
                other = folder.name.removesuffix("-splitting") + ("" if "-splitting" in folder.name else "-splitting")
                folder.rename(folder.with_name(other))
        return found


def test_a_folder_that_is_renamed_while_it_is_listed_hides_no_file(root: Path) -> None:
    write(root, f"WALs/{SERVER}", f"{GROUP}.1")
    found = list_wals(Moving(root, 1), str(root))
    assert [(file.name, file.place) for file in found] == [(f"{GROUP}.1", Place.SPLITTING)]


def test_a_missing_folder_of_live_logs_is_named(tmp_path: Path) -> None:
    """It never comes by itself: HBase logs elsewhere."""
    (tmp_path / "oldWALs").mkdir()
    with pytest.raises(UsageError, match=f"there is no folder {tmp_path}/WALs, so this is not HBase's root"):
        list_wals(Local(), str(tmp_path))


def test_folders_that_never_stand_still_are_an_error_that_may_go_away(root: Path) -> None:
    write(root, f"WALs/{SERVER}", f"{GROUP}.1")
    with pytest.raises(TransientError, match="kept moving"):
        list_wals(Moving(root, 100), str(root))

"""When a WAL file is sealed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.storage import Local
from walferry.wal.files import Place, WalFile, find_wal, if_sealed, list_wals, listed_as_sealed

SERVER, GROUP = "rs,1,2", "rs%2C1%2C2"
OPEN = header() + entry([])


def log(root: Path, folder: str, content: bytes, number: int = 7) -> WalFile:
    Local().write(f"{root}/{folder}/{GROUP}.{number}", [content])
    return next(file for file in list_wals(Local(), str(root)) if file.number == number)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "WALs").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "content", "sealed"),
    [
        (f"WALs/{SERVER}", OPEN, False),
        (f"WALs/{SERVER}", OPEN + TRAILER, True),
        (f"WALs/{SERVER}", b"", False),
        (f"WALs/{SERVER}-splitting", OPEN, False),
        (f"WALs/{SERVER}-splitting", OPEN + TRAILER, False),
        ("oldWALs", OPEN, True),
        ("oldWALs", OPEN + TRAILER, True),
    ],
)
def test_a_file_is_sealed_in_the_archive_or_with_a_trailer(
    folder: str, content: bytes, sealed: bool, root: Path
) -> None:
    file = log(root, folder, content)
    now = if_sealed(Local(), str(root), replace(file, length=0))
    assert (now is not None) is sealed
    assert now is None or now.length == len(content), "as it is now, whatever was listed"


def test_a_newer_file_alone_does_not_seal_the_one_before(root: Path) -> None:
    older = log(root, f"WALs/{SERVER}", OPEN)
    log(root, f"WALs/{SERVER}", OPEN, 8)
    assert if_sealed(Local(), str(root), older) is None


def test_a_file_that_moves_between_the_look_and_the_read_is_looked_up_again(root: Path) -> None:
    file = log(root, f"WALs/{SERVER}", OPEN + b"something")

    class Moving(Local):
        def read(self, path: str, offset: int = 0, length: int | None = None):  # type: ignore[no-untyped-def]
            Path(file.path).rename(root / "oldWALs" / file.name)
            return super().read(path, offset, length)

    (root / "oldWALs").mkdir()
    now = if_sealed(Moving(), str(root), file)
    assert now is not None
    assert now.place is Place.ARCHIVED


def test_a_file_that_no_longer_exists_is_sealed(root: Path) -> None:
    file = log(root, f"WALs/{SERVER}", OPEN)
    Path(file.path).unlink()
    assert find_wal(Local(), str(root), file) is None
    assert if_sealed(Local(), str(root), file) == file


def test_a_listing_tells_of_the_archive_and_of_closed_files_with_a_newer_one() -> None:
    def wal(number: int, place: Place, length: int) -> WalFile:
        return WalFile(f"{GROUP}.{number}", GROUP, SERVER, number, "", place, length)

    listing = [
        wal(1, Place.ARCHIVED, 0),
        wal(2, Place.SPLITTING, 9),
        wal(3, Place.LIVE, 9),
        wal(4, Place.LIVE, 0),
        wal(5, Place.LIVE, 9),
    ]
    assert listed_as_sealed(listing) == {f"{GROUP}.1", f"{GROUP}.3"}

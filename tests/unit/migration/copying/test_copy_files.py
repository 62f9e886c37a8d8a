from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from walferry.errors import TransientError, WalferryError
from walferry.migration.copying.copy_files import FileCopy, copy_file
from walferry.storage import Local


@pytest.fixture
def file(tmp_path: Path) -> FileCopy:
    """A file that stands in the archive only."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "hfile").write_bytes(b"0123456789")
    sources = (str(tmp_path / "data" / "hfile"), str(tmp_path / "archive" / "hfile"))
    return FileCopy(sources, str(tmp_path / "target" / "hfile"), "r1")


def test_a_file_is_taken_from_where_it_is_found(file: FileCopy) -> None:
    copied = copy_file(Local(), Local(), file)
    assert Path(file.target).read_bytes() == b"0123456789"
    assert (copied.source_bytes, copied.target_bytes, copied.skipped, copied.region) == (10, 10, False, "r1")


def test_a_half_written_file_is_written_anew_and_a_whole_one_is_left(file: FileCopy) -> None:
    Path(file.target).parent.mkdir()
    Path(file.target).write_bytes(b"01234")
    assert not copy_file(Local(), Local(), file).skipped
    assert Path(file.target).read_bytes() == b"0123456789"
    assert copy_file(Local(), Local(), file).skipped


class Checksums(Local):
    """A file system that keeps checksums."""

    def checksum(self, path: str) -> str | None:
        return Path(path).read_bytes().hex()


def test_a_file_of_the_right_length_and_other_bytes_is_written_anew(file: FileCopy) -> None:
    Path(file.target).parent.mkdir()
    Path(file.target).write_bytes(b"0123456780")
    copied = copy_file(Checksums(), Checksums(), file)
    assert not copied.skipped
    assert copied.source_checksum == copied.target_checksum == b"0123456789".hex()


def test_a_file_without_a_checksum_gets_the_targets_own_block_size(file: FileCopy) -> None:
    asked: list[int | None] = []

    class Asked(Local):
        def write(
            self, path: str, chunks: Iterable[bytes], *, overwrite: bool = False, block_size: int | None = None
        ) -> None:
            asked.append(block_size)
            super().write(path, chunks, overwrite=overwrite, block_size=block_size)

    copy_file(Local(), Asked(), file)
    Path(file.target).unlink()
    copy_file(Checksums(), Asked(), file)
    assert asked == [None, Local().status(file.sources[1]).block_size]  # type: ignore[union-attr]


def test_a_file_that_is_nowhere_is_named(file: FileCopy) -> None:
    Path(file.sources[1]).unlink()
    with pytest.raises(WalferryError, match="no longer exists at the source") as caught:
        copy_file(Local(), Local(), file)
    assert not isinstance(caught.value, TransientError)
    assert caught.value.file == file.sources[0]


class Short(Local):
    """A file system that loses the end of what is written."""

    def write(self, path: str, chunks: object, **options: object) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(b"0")


def test_a_copy_that_stays_short_is_an_error_that_names_it(file: FileCopy) -> None:
    with pytest.raises(TransientError, match="could not be copied whole in 3 attempts"):
        copy_file(Local(), Short(), file)

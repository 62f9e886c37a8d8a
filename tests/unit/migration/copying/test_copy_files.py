from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from walferry.errors import TransientError, WalferryError
from walferry.migration.copying.copy_files import FileCopied, FileCopy, copy_file
from walferry.migration.copying.hand_over import HandOver
from walferry.storage import FileStatus, FileSystem, Local, Owner, PermissionDeniedError


@pytest.fixture
def file(tmp_path: Path) -> FileCopy:
    """A file that stands in the archive only."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "hfile").write_bytes(b"0123456789")
    sources = (str(tmp_path / "data" / "hfile"), str(tmp_path / "archive" / "hfile"))
    return FileCopy(sources, str(tmp_path / "target" / "hfile"), "r1")


def copied_from(source: FileSystem, target: FileSystem, file: FileCopy) -> FileCopied:
    root = str(Path(file.target).parents[1])
    return copy_file(source, target, file, HandOver(target, root, required=True), f"{root}/.tmp")


def test_a_file_is_taken_from_where_it_is_found(file: FileCopy) -> None:
    copied = copied_from(Local(), Local(), file)
    assert Path(file.target).read_bytes() == b"0123456789"
    assert (copied.source_bytes, copied.target_bytes, copied.skipped, copied.region) == (10, 10, False, "r1")


def test_a_half_written_file_is_written_anew_and_a_whole_one_is_left(file: FileCopy) -> None:
    Path(file.target).parent.mkdir()
    Path(file.target).write_bytes(b"01234")
    assert not copied_from(Local(), Local(), file).skipped
    assert Path(file.target).read_bytes() == b"0123456789"
    assert copied_from(Local(), Local(), file).skipped


def test_what_is_there_stays_until_the_whole_file_takes_its_place(file: FileCopy) -> None:
    """Hole: it was deleted first, and a deletion that came late removed the finished file."""
    Path(file.target).parent.mkdir()
    Path(file.target).write_bytes(b"01234")
    written: list[str] = []

    class Target(Local):
        def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
            written.append(path)
            if len(written) == 1:
                super().write(path, [b"012"])
                raise TransientError("the data node is gone")
            super().write(path, chunks)

        def delete(self, path: str, recursive: bool = False) -> bool:
            assert path in written
            return super().delete(path, recursive)

    with pytest.raises(TransientError, match="the data node is gone"):
        copied_from(Local(), Target(), file)
    assert Path(file.target).read_bytes() == b"01234"
    copied_from(Local(), Target(), file)
    assert Path(file.target).read_bytes() == b"0123456789"
    beside = Path(file.target).parents[1] / ".tmp"
    assert {Path(path).parent for path in written} == {beside}
    assert len(set(written)) == 2
    assert not list(beside.iterdir())


def test_a_file_that_an_earlier_attempt_creates_late_is_replaced(file: FileCopy) -> None:
    class Late(Local):
        def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
            if path == file.target:
                super().write(path, [b""])
            super().write(path, chunks)

    assert not copied_from(Local(), Late(), file).skipped
    assert Path(file.target).read_bytes() == b"0123456789"


class Checksums(Local):
    """A file system that keeps checksums."""

    def checksum(self, path: str) -> str | None:
        return Path(path).read_bytes().hex()


def test_a_file_of_the_right_length_and_other_bytes_is_written_anew(file: FileCopy) -> None:
    Path(file.target).parent.mkdir()
    Path(file.target).write_bytes(b"0123456780")
    copied = copied_from(Checksums(), Checksums(), file)
    assert not copied.skipped
    assert copied.source_checksum == copied.target_checksum == b"0123456789".hex()


def test_a_file_without_a_checksum_gets_the_targets_own_block_size(file: FileCopy) -> None:
    asked: list[int | None] = []

    class Asked(Local):
        def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
            asked.append(block_size)
            super().write(path, chunks, block_size=block_size)

    copied_from(Local(), Asked(), file)
    Path(file.target).unlink()
    copied_from(Checksums(), Asked(), file)
    assert asked == [None, Local().status(file.sources[1]).block_size]  # type: ignore[union-attr]


def test_a_file_that_is_nowhere_is_named(file: FileCopy) -> None:
    Path(file.sources[1]).unlink()
    with pytest.raises(WalferryError, match="no longer exists at the source") as caught:
        copied_from(Local(), Local(), file)
    assert not isinstance(caught.value, TransientError)
    assert caught.value.file == file.sources[0]


class Owned(Local):
    """A file system of HBase's, whose new files belong to walferry."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def status(self, path: str) -> FileStatus | None:
        found = Local.status(self, path)
        own = found is None or "target" in path
        return found and replace(found, owner=Owner("ferry" if own else "hbase", "hbase"))

    def give(self, path: str, owner: Owner) -> None:
        assert owner == Owner("hbase", "hbase")
        self.given.append(path)


def test_a_copy_and_each_folder_above_it_once_is_given_to_the_owner_of_the_root(tmp_path: Path) -> None:
    target, root = Owned(), str(tmp_path)
    hand_over = HandOver(target, root, required=True)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"0")
        file = FileCopy((f"{root}/{name}",), f"{root}/target/region/{name}", "r1")
        copy_file(Local(), target, file, hand_over, f"{root}/.tmp")
    below = [path.removeprefix(root) for path in target.given]
    assert below == ["/target", "/target/region", "/target/region/a", "/target/region/b"]


def test_who_may_give_nothing_away_is_stopped_only_where_hbase_could_not_read_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(Owned):
        def give(self, path: str, owner: Owner) -> None:
            self.given.append(path)
            raise PermissionDeniedError("you may not", path=path)

    target, root = Refusing(), str(tmp_path)
    (tmp_path / "a").write_bytes(b"0")
    file = FileCopy((f"{root}/a",), f"{root}/target/a", "r1")
    with pytest.raises(PermissionDeniedError):
        copy_file(Local(), target, file, HandOver(target, root, required=True), f"{root}/.tmp")
    lenient = HandOver(target, root, required=False)
    for _ in range(2):
        copy_file(Local(), target, file, lenient, f"{root}/.tmp")
    assert len(target.given) == 2
    assert "you may not; HBase cannot delete what was copied" in caplog.text


class Short(Local):
    """A file system that loses the end of what is written."""

    def write(self, path: str, chunks: object, **options: object) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(b"0")


def test_a_copy_that_stays_short_is_an_error_that_names_it(file: FileCopy) -> None:
    with pytest.raises(TransientError, match="could not be copied whole in 3 attempts"):
        copied_from(Local(), Short(), file)

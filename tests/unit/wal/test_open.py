"""A file that its server has left is read to its true end; one that is still written to waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.storage import FileStatus, Local
from walferry.wal import open as opening
from walferry.wal.files import list_wals
from walferry.wal.open import SealedWal

SERVER = "rs,1,2"
CELL = encode_cell(b"r", b"f", b"q", 1, 4)


class Open(Local):
    """A file system that does not know the length of a file without a trailer, as a NameNode does not."""

    def status(self, path: str) -> FileStatus | None:
        status = super().status(path)
        return replace(status, length=0) if status and not Path(path).read_bytes().endswith(TRAILER) else status


def entries(files: Local, root: Path, content: bytes) -> int:
    """How many entries are read of a log in a living server's folder."""
    files.write(f"{root}/WALs/{SERVER}/rs%2C1%2C2.7", [content], overwrite=True)
    (file,) = list_wals(files, str(root))
    wal = SealedWal(files, str(root), file)
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

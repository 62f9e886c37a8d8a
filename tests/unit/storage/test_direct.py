"""When WebHDFS takes over from the data nodes, without a server."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest

from walferry.errors import TransientError
from walferry.storage import WebHdfs
from walferry.storage.direct import CHUNK_BYTES, DirectHdfs

LARGE = [bytes(CHUNK_BYTES), b"end"]


class Slow:
    """A name node that creates files, and is late to say so."""

    def __init__(self, created: set[str]) -> None:
        self.created, self.answers = created, threading.Event()

    def create(self, path: str, options: object) -> object:
        self.created.add(path)
        self.answers.wait(20)
        raise OSError("nobody waits any more")


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths of the files that are there."""
    there: set[str] = set()

    def write(
        self: WebHdfs, path: str, chunks: Iterable[bytes], *, overwrite: bool = False, block_size: int | None = None
    ) -> None:
        if path in there and not overwrite:
            raise FileExistsError(path)
        assert b"".join(chunks) == b"".join(LARGE)
        there.add(path)

    monkeypatch.setattr(WebHdfs, "write", write)
    return there


@pytest.fixture
def files(created: set[str]) -> Iterator[DirectHdfs]:
    files, name_node = DirectHdfs("http://127.0.0.1:1", "kim", "hdfs://127.0.0.1:1", timeout_s=0.1), Slow(created)
    files._client_of_data = name_node  # type: ignore[assignment]
    yield files
    name_node.answers.set()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_may_be_created_yet_is_not_created_by_webhdfs_beside_that(
    overwrite: bool, files: DirectHdfs, created: set[str]
) -> None:
    """Hole: WebHDFS found the file there, which ended the run; or the late creation emptied what it had written."""
    with pytest.raises(TransientError, match="did not create /a in time"):
        files.write("/a", LARGE, overwrite=overwrite)
    files.write("/b", LARGE)
    assert created == {"/a", "/b"}, "the next file goes through WebHDFS"

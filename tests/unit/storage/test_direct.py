"""When WebHDFS takes over from the data nodes, without a server."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator

import pytest

from walferry.errors import TransientError
from walferry.storage import WebHdfs, direct
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
    with pytest.raises(TransientError, match="did not say in time whether it created /a"):
        files.write("/a", LARGE, overwrite=overwrite)
    files.write("/b", LARGE)
    assert created == {"/a", "/b"}, "the next file goes through WebHDFS"


class Writing(io.RawIOBase):
    """A file whose data node does not answer."""

    def __init__(self, answers: threading.Event) -> None:
        self.answers = answers

    def write(self, _: object) -> int:
        self.answers.wait(20)
        raise OSError("nobody waits any more")


class Half:
    """A name node that answers for the root folder, creates files, and opens none."""

    def __init__(self, answers: threading.Event) -> None:
        self.answers = answers

    def get_file_info(self, path: str) -> None:
        assert path == "/"

    def create(self, path: str, options: object) -> Writing:
        return Writing(self.answers)

    def read(self, path: str) -> None:
        self.answers.wait(20)


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[DirectHdfs, list[Half]]]:
    """Files at a nameservice of two such name nodes, and the clients of the library that were made."""
    answers, made = threading.Event(), list[Half]()

    def connected(files: DirectHdfs) -> Half:
        files._name_nodes = 2
        made.append(Half(answers))
        return made[-1]

    monkeypatch.setattr(DirectHdfs, "_connected", connected)
    monkeypatch.setattr(direct, "END_SECONDS", 0.1)
    yield DirectHdfs("http://127.0.0.1:1;http://127.0.0.1:2", "kim", "hdfs://ns", timeout_s=0.1), made
    answers.set()


def test_a_data_node_that_hangs_is_not_taken_for_a_name_node(
    half: tuple[DirectHdfs, list[Half]], created: set[str]
) -> None:
    files, made = half
    with pytest.raises(TransientError, match="no answer in time"):
        files.write("/a", LARGE)
    files.write("/b", LARGE)
    assert (created, len(made)) == ({"/b"}, 1), "the next file goes through WebHDFS"


def test_name_nodes_that_open_no_file_are_each_asked_and_then_left(
    half: tuple[DirectHdfs, list[Half]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, made = half
    monkeypatch.setattr(WebHdfs, "_open", lambda *_: iter([b"by WebHDFS"]))
    assert list(files.read("/a")) == [b"by WebHDFS"]
    assert len(made) == 3, "the one that took the last change, and both in turn"

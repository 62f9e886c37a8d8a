"""When WebHDFS takes over from the data nodes, without a server."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator

import hdfs_native
import pytest

from walferry.errors import TransientError
from walferry.storage import WebHdfs, direct
from walferry.storage.direct import CHUNK_BYTES, DirectHdfs

LARGE = [bytes(CHUNK_BYTES), b"end"]


Created = dict[str, bytes]


class Slow:
    """A name node that creates a file at once, or `late`, and says so late."""

    def __init__(self, created: Created, late: bool) -> None:
        self.created, self.late = created, late
        self.answers, self.done = threading.Event(), threading.Event()

    def create(self, path: str, options: hdfs_native.WriteOptions) -> object:
        if self.late:
            self.answers.wait(20)
        if path not in self.created or options.overwrite:
            self.created[path] = b""
        self.answers.wait(20)
        self.done.set()
        raise OSError("nobody waits any more")


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> Created:
    """The files that are there."""
    there: Created = {}

    def write(
        self: WebHdfs, path: str, chunks: Iterable[bytes], *, overwrite: bool = False, block_size: int | None = None
    ) -> None:
        if path in there and not overwrite:
            raise FileExistsError(path)
        there[path] = b"".join(chunks)

    monkeypatch.setattr(WebHdfs, "write", write)
    monkeypatch.setattr(WebHdfs, "_clear", lambda _, path: there.pop(path, None))
    return there


def files_at(name_node: object) -> DirectHdfs:
    files = DirectHdfs("http://127.0.0.1:1", "kim", "hdfs://127.0.0.1:1", timeout_s=0.1)
    files._client_of_data = name_node  # type: ignore[assignment]
    return files


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_may_be_created_yet_is_not_created_by_webhdfs_beside_that(
    overwrite: bool, created: Created
) -> None:
    """Hole: WebHDFS found the file there, which ended the run; or the late creation emptied what it had written."""
    files = files_at(name_node := Slow(created, late=False))
    with pytest.raises(TransientError, match="did not say in time whether it created /a"):
        files.write("/a", LARGE, overwrite=overwrite)
    files.write("/b", LARGE)
    name_node.answers.set()
    assert created == {"/a": b"", "/b": b"".join(LARGE)}, "the next file goes through WebHDFS"


def test_a_creation_that_comes_late_does_not_empty_what_the_next_attempt_has_written(created: Created) -> None:
    """Hole: when the name node that hung died, the library asked the next one to overwrite the file."""
    files = files_at(name_node := Slow(created, late=True))
    with pytest.raises(TransientError, match="did not say in time whether it created /a"):
        files.write("/a", LARGE, overwrite=True)
    files.write("/a", LARGE, overwrite=True)
    name_node.answers.set()
    assert name_node.done.wait(20)
    assert created == {"/a": b"".join(LARGE)}


class Full:
    """A name node that has every file."""

    def create(self, path: str, options: hdfs_native.WriteOptions) -> object:
        raise FileExistsError(path)


def test_a_file_that_is_there_again_after_its_deletion_is_written_by_the_next_attempt(created: Created) -> None:
    """An earlier attempt may have created it late, which is no reason to end the run."""
    with pytest.raises(TransientError, match=r"/a was deleted on http://127.0.0.1:1 to be written anew, and was there"):
        files_at(Full()).write("/a", LARGE, overwrite=True)
    with pytest.raises(FileExistsError):
        files_at(Full()).write("/a", LARGE)


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
    half: tuple[DirectHdfs, list[Half]], created: Created
) -> None:
    files, made = half
    with pytest.raises(TransientError, match="no answer in time"):
        files.write("/a", LARGE)
    files.write("/b", LARGE)
    assert (list(created), len(made)) == (["/b"], 1), "the next file goes through WebHDFS"


def test_name_nodes_that_open_no_file_are_each_asked_and_then_left(
    half: tuple[DirectHdfs, list[Half]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, made = half
    monkeypatch.setattr(WebHdfs, "_open", lambda *_: iter([b"by WebHDFS"]))
    assert list(files.read("/a")) == [b"by WebHDFS"]
    assert len(made) == 3, "the one that took the last change, and both in turn"


def test_at_the_first_contact_each_name_node_is_waited_for_once(
    half: tuple[DirectHdfs, list[Half]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = half
    tried: list[int] = []

    def connected(files: DirectHdfs) -> Half:
        files._name_nodes = 2
        tried.append(files._first)
        raise TimeoutError

    monkeypatch.setattr(DirectHdfs, "_connected", connected)
    monkeypatch.setattr(WebHdfs, "_open", lambda *_: iter([b"by WebHDFS"]))
    assert list(files.read("/a")) == [b"by WebHDFS"]
    assert tried == [0, 1]


def test_a_file_that_no_name_node_opens_is_left_although_other_files_are_opened(
    half: tuple[DirectHdfs, list[Half]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: as long as another thread's requests were answered, the name nodes were asked for ever."""
    files, made = half
    read = Half.read

    def answered(name_node: Half, path: str) -> None:
        files._silent = 0  # as when another thread's request is answered
        read(name_node, path)

    monkeypatch.setattr(Half, "read", answered)
    monkeypatch.setattr(WebHdfs, "_open", lambda *_: iter([b"by WebHDFS"]))
    assert list(files.read("/a")) == [b"by WebHDFS"]
    assert len(made) == 3

"""When WebHDFS takes over from the data nodes, without a server."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Iterable, Iterator
from weakref import ref

import hdfs_native
import pytest

from walferry.errors import TransientError
from walferry.storage import WebHdfs, direct, name_nodes, tokens
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

    def write(self: WebHdfs, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
        if path in there:
            raise FileExistsError(path)
        there[path] = b"".join(chunks)

    monkeypatch.setattr(WebHdfs, "write", write)
    return there


def files_at(name_node: object) -> DirectHdfs:
    files = DirectHdfs("http://127.0.0.1:1", "kim", "hdfs://127.0.0.1:1", timeout_s=0.1)
    files._client_of_data = name_node  # type: ignore[assignment]
    return files


def test_a_file_that_may_be_created_yet_is_not_created_by_webhdfs_beside_that(created: Created) -> None:
    """Hole: WebHDFS found the file there, which ended the run; or the late creation emptied what it had written."""
    files = files_at(name_node := Slow(created, late=False))
    with pytest.raises(TransientError, match="did not say in time whether it created /a"):
        files.write("/a", LARGE)
    files.write("/b", LARGE)
    name_node.answers.set()
    assert created == {"/a": b"", "/b": b"".join(LARGE)}, "the next file goes through WebHDFS"


def test_a_creation_that_comes_late_does_not_empty_what_the_next_attempt_has_written(created: Created) -> None:
    """Hole: when the name node that hung died, the library asked the next one to overwrite the file."""
    files = files_at(name_node := Slow(created, late=True))
    with pytest.raises(TransientError, match="did not say in time whether it created /a"):
        files.write("/a", LARGE)
    files.write("/a", LARGE)
    name_node.answers.set()
    assert name_node.done.wait(20)
    assert created == {"/a": b"".join(LARGE)}


class Twice:
    """A name node that the library asks once more after a lost answer, and that has created the file."""

    def create(self, path: str, options: hdfs_native.WriteOptions) -> object:
        raise FileExistsError(f"Failed to CREATE_FILE {path}: {direct._OWN}")


class Full:
    """A name node that has every file."""

    def create(self, path: str, options: hdfs_native.WriteOptions) -> object:
        raise FileExistsError(path)


def test_a_file_of_this_clients_own_that_the_library_finds_there_is_not_taken_for_anothers() -> None:
    with pytest.raises(TransientError, match="did not say in time whether it created /a"):
        files_at(Twice()).write("/a", LARGE)
    with pytest.raises(FileExistsError):
        files_at(Full()).write("/a", LARGE)


class Gone:
    """A name node whose connection breaks once it has created a file."""

    def __init__(self, created: Created) -> None:
        self.created = created

    def create(self, path: str, options: hdfs_native.WriteOptions) -> object:
        self.created[path] = b""
        raise OSError("connection reset")


def test_a_file_that_webhdfs_finds_there_after_the_name_node_was_asked_directly_may_be_this_clients_own(
    created: Created,
) -> None:
    with pytest.raises(TransientError, match="did not say in time whether it created /a"):
        files_at(Gone(created)).write("/a", LARGE)
    created["/b"] = b"another's"
    with pytest.raises(FileExistsError):
        files_at(Gone(created)).write("/b", [b"small"])


def test_where_direct_access_has_failed_no_new_client_of_this_process_tries_it_for_a_while(
    created: Created, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: each attempt at a piece, and each look at a log, made a client of its own, which waited anew."""
    tried: list[str] = []

    def connected(files: DirectHdfs) -> None:
        tried.append(files.user)
        raise OSError("no route")

    def files(user: str, url: str = "http://127.0.0.1:1") -> DirectHdfs:
        return DirectHdfs(url, user, "hdfs://127.0.0.1:1")

    monkeypatch.setattr(DirectHdfs, "_connected", connected)
    files("kim").write("/a", LARGE)
    files("kim").write("/b", LARGE)
    files("ann").write("/c", LARGE)  # who may fail for another reason
    files("kim", "http://127.0.0.1:2").write("/d", LARGE)
    assert tried == ["kim", "ann", "kim"]
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + tokens.REST_SECONDS)
    files("kim").write("/e", LARGE)
    assert len(tried) == 4
    assert set(created) == {"/a", "/b", "/c", "/d", "/e"}


def test_name_nodes_that_may_have_moved_are_looked_for_anew_and_asked_by_a_new_client(
    half: tuple[DirectHdfs, list[Half]], created: Created, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the addresses were looked up anew only for a client that had not connected yet."""
    files, made = half
    service = files._nameservice
    assert service is not None
    monkeypatch.setattr(name_nodes, "_known", {service: ("old:8020",)})

    def broken(_: Half, path: str) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr(Half, "read", broken)
    monkeypatch.setattr(WebHdfs, "_open", lambda *_: iter([b"by WebHDFS"]))
    assert list(files.read("/a")) == [b"by WebHDFS"]
    assert name_nodes._known == {}
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + tokens.REST_SECONDS)
    assert list(files.read("/a")) == [b"by WebHDFS"]
    assert len(made) == 2


class Writing(io.RawIOBase):
    """A file whose data node does not answer."""

    def __init__(self, answers: threading.Event, closed: list[bool]) -> None:
        self.answers, self.closings = answers, closed

    def write(self, _: object) -> int:
        self.answers.wait(20)
        raise OSError("nobody waits any more")

    def close(self) -> None:
        self.closings.append(True)


class Half:
    """A name node that answers for the root folder unless it `hangs`, creates files, and opens none."""

    hangs = False

    def __init__(self, answers: threading.Event) -> None:
        self.answers = answers
        self.closings: list[bool] = []

    def get_file_info(self, path: str) -> None:
        assert path == "/"
        if self.hangs:
            self.answers.wait(20)

    def create(self, path: str, options: object) -> Writing:
        writer = Writing(self.answers, self.closings)
        self.writer = ref(writer)
        return writer

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


def test_a_name_node_that_hangs_while_a_file_is_written_is_not_taken_for_a_data_node(
    half: tuple[DirectHdfs, list[Half]], created: Created, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, made = half
    monkeypatch.setattr(Half, "hangs", True)
    with pytest.raises(TransientError, match="no answer in time"):
        files.write("/a", LARGE)
    with pytest.raises(TransientError, match="no answer in time"):
        files.write("/a", LARGE)
    assert (created, len(made)) == ({}, 2), "the next file is written by the other name node"


def test_a_file_that_could_not_be_written_is_closed_only_once(
    half: tuple[DirectHdfs, list[Half]], created: Created
) -> None:
    """Its finalizer would close it once more, and wait for a name node."""
    files, names = half
    with pytest.raises(TransientError, match="no answer in time"):
        files.write("/a", LARGE)
    (made,) = names
    made.answers.set()
    deadline = time.monotonic() + 20
    while made.writer() is not None:
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.01)
    assert made.closings == [True]


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

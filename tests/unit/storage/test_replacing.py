"""A file takes another one's place: what WebHDFS is asked, what it never is, and requests that are carried out late."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from walferry.errors import TransientError, WalferryError
from walferry.storage import WebHdfs, temporary, webhdfs


@dataclass
class Hdfs:
    """Files behind one or two addresses. Nobody waits as long as a request that is `late` takes."""

    knows_option: bool = True
    """of a rename, that it may replace; HttpFS does not"""
    late: str = ""
    """the operation whose first request is carried out when `go_on` is set"""
    lost: str = ""
    """the operation whose first answer is lost"""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def answer(self, operation: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, object]:
        self.asked.append((operation, path, query))
        if operation == "GETFILESTATUS":
            return self._status(path)
        if operation == "DELETE":
            return 200, {"boolean": self.files.pop(path, None) is not None}
        if operation == "CREATE":
            overwrites = query.get("overwrite", "true").lower() != "false"  # HttpFS overwrites by default
            if path in self.files and not overwrites:
                return refusal(403, "FileAlreadyExistsException")
            self.files[path] = body
            return 201, None
        assert operation == "RENAME"
        destination, replaces = query["destination"], self.knows_option and query.get("renameoptions") == "OVERWRITE"
        if path not in self.files:
            return refusal(404, "FileNotFoundException") if replaces else (200, {"boolean": False})
        if destination in self.files and not replaces:
            return 200, {"boolean": False}
        self.files[destination] = self.files.pop(path)
        return 200, None if replaces else {"boolean": True}

    def _status(self, path: str) -> tuple[int, object]:
        if path not in self.files:
            return refusal(404, "FileNotFoundException")
        facts = {"length": len(self.files[path]), "type": "FILE", "modificationTime": sum(self.files[path])}
        more = {"blockSize": 1, "replication": 1, "owner": "kim", "group": "kim", "permission": "644"}
        return 200, {"FileStatus": facts | more}


def refusal(status: int, name: str) -> tuple[int, object]:
    return status, {"RemoteException": {"exception": name, "message": "no", "javaClassName": name}}


@pytest.fixture
def serve() -> Iterator[Callable[[Hdfs], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(hdfs: Hdfs) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                operation, path = query["op"], parts.path.removeprefix("/webhdfs/v1")
                if operation == "CREATE" and "data" not in query:
                    self._send(307, None, Location=f"http://{self.headers['Host']}{self.path}&data=true")
                    return
                body = self._body() if operation == "CREATE" else b""
                late = operation == hdfs.late
                if late:
                    hdfs.late = ""
                    hdfs.go_on.wait(20)
                status, answer = hdfs.answer(operation, path, query, body)
                if late:
                    hdfs.done.set()
                if operation == hdfs.lost:
                    hdfs.lost = ""
                    self.close_connection = True
                    return
                self._send(status, answer)

            do_PUT = do_DELETE = do_GET

            def _body(self) -> bytes:
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _send(self, status: int, answer: object, **headers: str) -> None:
                body = b"" if answer is None else json.dumps(answer).encode()
                with suppress(OSError):  # nobody may wait any more
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(body))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        servers[-1].daemon_threads = True
        threading.Thread(target=servers[-1].serve_forever, args=[0.01], daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def put(files: WebHdfs, path: str, content: bytes) -> None:
    """Write a file in place of another one."""
    with temporary(files, "/tmp") as begun:
        files.write(begun, [content])
        files.replace(begun, path)


def test_nobody_is_asked_to_overwrite_and_no_finished_file_is_deleted(serve: Callable[[Hdfs], str]) -> None:
    hdfs = Hdfs(files={"/a": b"half"})
    files = WebHdfs(serve(hdfs), "kim")
    put(files, "/a", b"whole")
    put(files, "/b", b"new")
    with pytest.raises(FileExistsError):
        files.write("/a", [b"other"])
    assert hdfs.files == {"/a": b"whole", "/b": b"new"}
    assert {query["overwrite"].lower() for operation, _, query in hdfs.asked if operation == "CREATE"} == {"false"}
    assert "DELETE" not in {operation for operation, _, _ in hdfs.asked}


class Vanishing(Hdfs):
    """A master empties the folder before the rename."""

    def answer(self, operation: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, object]:
        if operation == "RENAME":
            self.files.pop(path, None)
        return super().answer(operation, path, query, body)


@pytest.mark.parametrize("knows_option", [True, False])
def test_what_nothing_replaces_stays(serve: Callable[[Hdfs], str], knows_option: bool) -> None:
    hdfs = Vanishing(knows_option, files={"/a": b"whole", "/tmp/begun": b"new"})
    with pytest.raises(FileNotFoundError):
        WebHdfs(serve(hdfs), "kim").replace("/tmp/begun", "/a")
    assert hdfs.files == {"/a": b"whole"}


@pytest.mark.parametrize("knows_option", [True, False])
def test_a_rename_that_comes_late_does_no_harm(serve: Callable[[Hdfs], str], knows_option: bool) -> None:
    """Hole: the deletion of the file before, which came late, removed the finished one."""
    hdfs = Hdfs(knows_option, late="RENAME", files={"/a": b"half"})
    files = WebHdfs(serve(hdfs), "kim", timeout_s=0.5)
    put(files, "/a", b"whole")
    put(files, "/a", b"another whole")
    hdfs.go_on.set()
    assert hdfs.done.wait(20)
    assert hdfs.files == {"/a": b"another whole"}


@pytest.mark.parametrize("before", [{}, {"/a": b"half"}])
@pytest.mark.parametrize("knows_option", [True, False])
def test_a_rename_whose_answer_was_lost_is_known_by_what_is_there(
    serve: Callable[[Hdfs], str], knows_option: bool, before: dict[str, bytes]
) -> None:
    hdfs = Hdfs(knows_option, lost="RENAME", files=before)
    put(WebHdfs(serve(hdfs), "kim"), "/a", b"whole")
    assert hdfs.files == {"/a": b"whole"}


def test_a_file_that_is_gone_replaces_nothing(serve: Callable[[Hdfs], str], monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = Hdfs(files={"/a": b"half", "/b": b"whole"})
    files = WebHdfs(serve(hdfs), "kim")
    with pytest.raises(FileNotFoundError, match="/c is not on"):
        files.replace("/c", "/a")
    status = files.status("/b")
    del hdfs.files["/b"]
    monkeypatch.setattr(WebHdfs, "status", lambda files, path: status if path == "/b" else None)
    with pytest.raises(FileNotFoundError, match="/b is not on"):
        files.replace("/b", "/a")
    assert hdfs.files == {"/a": b"half"}


def test_httpfs_deletes_first_since_it_renames_to_no_name_that_is_there(serve: Callable[[Hdfs], str]) -> None:
    hdfs = Hdfs(knows_option=False, files={"/a": b"half"})
    put(WebHdfs(serve(hdfs), "kim"), "/a", b"whole")
    assert hdfs.files == {"/a": b"whole"}
    assert [path for operation, path, _ in hdfs.asked if operation == "DELETE"] == ["/a"]


def test_what_httpfs_renames_late_right_after_the_deletion_is_the_whole_file(serve: Callable[[Hdfs], str]) -> None:
    class Late(Hdfs):
        def answer(self, operation: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, object]:
            answer = super().answer(operation, path, query, body)
            if operation == "DELETE":
                source = next(path for operation, path, _ in self.asked if operation == "RENAME")
                self.files[path] = self.files.pop(source)
            return answer

    hdfs = Late(knows_option=False, files={"/a": b"half"})
    put(WebHdfs(serve(hdfs), "kim"), "/a", b"whole")
    assert hdfs.files == {"/a": b"whole"}


def test_a_file_that_could_not_be_written_is_removed_and_the_other_one_stays(serve: Callable[[Hdfs], str]) -> None:
    hdfs = Hdfs(lost="CREATE", files={"/a": b"half"})
    with pytest.raises(TransientError):
        put(WebHdfs(serve(hdfs), "kim"), "/a", b"whole")
    assert hdfs.files == {"/a": b"half"}


def test_a_file_that_another_client_is_creating_is_there(serve: Callable[[Hdfs], str]) -> None:
    class Creating(Hdfs):
        def answer(self, operation: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, object]:
            return refusal(403, "AlreadyBeingCreatedException")

    with pytest.raises(FileExistsError, match="/a already exists"):
        WebHdfs(serve(Creating()), "kim").write("/a", [b"other"])


def test_a_deletion_whose_answer_was_lost_has_deleted(
    serve: Callable[[Hdfs], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several name nodes, the one that is asked next finds nothing to delete."""
    monkeypatch.setattr(webhdfs, "FAILOVER_SECONDS", 5.0)
    hdfs = Hdfs(lost="DELETE", files={"/a": b"old"})
    one, other = serve(hdfs), serve(hdfs)
    assert WebHdfs(f"{one};{other}", "kim").delete("/a") is True
    assert WebHdfs(f"{one};{other}", "kim").delete("/a") is False


def test_a_server_that_does_not_say_where_the_bytes_go_is_named() -> None:
    """Hole: a traceback, KeyError: 'location'."""

    class Taking(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as http:
        threading.Thread(target=http.serve_forever, args=[0.01], daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}"
        with pytest.raises(
            WalferryError, match=f"{url} does not say where to send the bytes of /a .status 201"
        ) as told:
            WebHdfs(url, "kim").write("/a", [b"whole"])
        http.shutdown()
    assert not isinstance(told.value, TransientError)

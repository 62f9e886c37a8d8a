"""What name nodes tell of themselves, and how long each server is waited for, without HDFS."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from walferry.errors import TransientError
from walferry.storage import WebHdfs, webhdfs


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], tuple[int, bytes, dict[str, str]]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body, headers = answer(self)
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def pages(
    beans: dict[str, Any], stale_reads: str = "false"
) -> Callable[[BaseHTTPRequestHandler], tuple[int, bytes, dict[str, str]]]:
    """A name node's pages /jmx, with one bean, and /conf."""
    properties = [{"key": "dfs.ha.allow.stale.reads", "value": stale_reads}]
    content = {"/jmx": {"beans": [beans]}, "/conf": {"properties": properties}}
    return lambda handler: (200, json.dumps(content[urlsplit(handler.path).path]).encode(), {})


@pytest.mark.parametrize(
    ("state", "stale_reads", "why"),
    [
        ("active", "true", None),
        ("standby", "false", None),
        ("observer", "false", "is an Observer"),
        ("standby", "true", "answers as a standby, too"),
    ],
)
def test_a_name_node_that_answers_with_an_old_state_is_told(state: str, stale_reads: str, why: str | None) -> None:
    with server(pages({"State": "active"})) as first, server(pages({"State": state}, stale_reads)) as other:
        found = list(WebHdfs(f"{first};http://127.0.0.1:1;{other}", "kim").behind())
    assert [url for url, _ in found] == ([] if why is None else [other])
    assert all(told.startswith(str(why)) for _, told in found)


def test_a_name_node_that_does_not_tell_its_space_is_passed_over() -> None:
    with server(pages({"tag.HAState": "standby"})) as first, server(pages({"CapacityRemaining": 7})) as other:
        assert WebHdfs(first, "kim").space_left() is None
        assert WebHdfs(f"{first};{other}", "kim").space_left() == 7


def test_only_what_name_nodes_are_asked_must_be_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: a gateway names itself for its data nodes, so uploads through one of two had a name node's time."""
    monkeypatch.setattr(webhdfs, "ANSWER_SECONDS", 0.3)

    def answer(handler: BaseHTTPRequestHandler) -> tuple[int, bytes, dict[str, str]]:
        if not handler.path.startswith("/data"):
            return 307, b"", {"Location": f"http://{handler.headers['Host']}/data"}
        if handler.command == "PUT":
            while size := int(handler.rfile.readline(), 16):
                handler.rfile.read(size)
                handler.rfile.readline()
        time.sleep(1)
        return 201 if handler.command == "PUT" else 200, b"content", {}

    with server(answer) as gateway:
        files = WebHdfs(f"{gateway};http://127.0.0.1:1", "kim")
        files.write("/a", [b"content"])
        assert b"".join(files.read("/a")) == b"content"


@pytest.mark.parametrize("gateway", [True, False])
def test_a_gateway_that_sends_contents_and_checksums_itself_has_the_whole_time_for_them(
    gateway: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: each of two HttpFS servers had a name node's time."""
    monkeypatch.setattr(webhdfs, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(webhdfs, "FAILOVER_SECONDS", 0.0)
    monkeypatch.setattr(webhdfs, "ATTEMPTS", 1)
    told: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> tuple[int, bytes, dict[str, str]]:
        if handler.path.startswith("/jmx"):
            told.append(handler.path)
            return 200, json.dumps({"beans": [] if gateway else [{"State": "active"}]}).encode(), {}
        time.sleep(1)
        if "op=OPEN" in handler.path:
            return 200, b"content", {}
        return 200, json.dumps({"FileChecksum": {"algorithm": "MD5", "bytes": "00", "length": 1}}).encode(), {}

    with server(answer) as url:
        files = WebHdfs(f"{url};http://127.0.0.1:1", "kim")
        if gateway:
            assert (b"".join(files.read("/a")), files.checksum("/a")) == (b"content", "MD5:00")
        else:
            for ask in (lambda: next(files.read("/a")), lambda: files.checksum("/a")):
                with pytest.raises(TransientError):
                    ask()
        assert len(told) == 1


def test_a_server_that_does_not_tell_what_it_is_is_not_asked_before_each_file() -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> tuple[int, bytes, dict[str, str]]:
        asked.append(urlsplit(handler.path).path)
        return (403, b"", {}) if handler.path.startswith("/jmx") else (200, b"content", {})

    with server(answer) as url:
        files = WebHdfs(f"{url};http://127.0.0.1:1", "kim")
        for _ in range(3):
            assert b"".join(files.read("/a")) == b"content"
    assert asked.count("/jmx") == 1


def test_a_page_that_is_no_object_tells_nothing() -> None:
    """Hole: a traceback, TypeError."""
    with server(lambda _: (200, b"[]", {})) as url:
        files = WebHdfs(url, "kim")
        assert (files.space_left(), files.is_gateway(), list(files.behind())) == (None, False, [])

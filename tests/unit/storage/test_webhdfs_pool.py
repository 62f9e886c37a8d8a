"""Many threads read one HDFS at once, over connections that are kept."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from walferry.migration import open_target, written_rows
from walferry.storage import WebHdfs

THREADS = open_target.TABLES_AT_ONCE * written_rows.READERS


class Server(ThreadingHTTPServer):
    """Has an empty root folder, and answers once all threads have asked, so that each has a connection of its own."""

    request_queue_size = 128
    all_asked = threading.Barrier(THREADS)
    connections = 0


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        """Count connections."""
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        """An empty folder."""
        self.server.all_asked.wait(30)
        body = json.dumps({"FileStatuses": {"FileStatus": []}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_threads_of_the_write_stop_keep_their_connections(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Hole: ten were kept. The others were opened again for each request, each with a warning in the log."""
    files = WebHdfs(f"http://127.0.0.1:{server.server_port}", "me")
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(2):
            assert list(threads.map(lambda _: files.list("/"), range(THREADS))) == [[]] * THREADS
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert server.connections == THREADS

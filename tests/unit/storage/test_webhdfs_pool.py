"""Many threads read one HDFS at once, over connections that are kept."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.cutover import open_target
from walferry.ledger import Ledger
from walferry.migration.comparing import written_rows
from walferry.run.run import Run
from walferry.storage import WebHdfs

THREADS = open_target.TABLES_AT_ONCE * written_rows.READERS


class Server(ThreadingHTTPServer):
    """Has an empty root folder, and answers once all threads have asked, so that each has a connection of its own."""

    request_queue_size = 128
    all_asked = threading.Barrier(THREADS)
    connections = 0
    ended = threading.Semaphore(0)
    """one for each connection that has been closed"""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        """Count connections."""
        super().setup()
        self.server.connections += 1

    def finish(self) -> None:
        """Tell that it was closed."""
        super().finish()
        self.server.ended.release()

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


def test_a_run_that_is_closed_leaves_no_connection_to_a_file_system(server: Server, tmp_path: Path) -> None:
    """Hole: a process that worked on one run after the other had a thousand open at last."""
    server.all_asked, server.ended = threading.Barrier(1), threading.Semaphore(0)
    sides = {side: SPEC[side] | {"webhdfs": f"http://127.0.0.1:{server.server_port}"} for side in ("source", "target")}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        with Run(ledger, ledger.open_run("move", "test", SPEC | sides, "test").run_id) as run:
            assert run.source_files.list("/") == run.target_files.list("/") == []
            assert not server.ended.acquire(blocking=False)
        for _ in sides:
            assert server.ended.acquire(timeout=5)
        assert run.source_files.list("/") == [], "whoever asks again connects again"
        run.close()

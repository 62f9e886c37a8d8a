"""Servers of https URLs that are refused: once, with their name, and before they know anything."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from walferry.embedded.certificates import Authority
from walferry.security import OPEN, Security, Tls
from walferry.security.tls import TlsError
from walferry.spark.snapshot_source import query_of
from walferry.spark.wal_query import WalQuery
from walferry.storage import FileStatus, WebHdfs
from walferry.watch.listing import list_wals

LISTING = b'{"FileStatuses": {"FileStatus": []}}'


@contextmanager
def name_node(both: Path, elsewhere: str | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Its URL, the connections that it got, and the requests; all its folders are empty. It sends to `elsewhere`."""
    connections: list[str] = []
    requests: list[str] = []

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            if elsewhere is not None:
                self.send_response(307)
                self.send_header("Location", elsewhere + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(LISTING)))
            self.end_headers()
            self.wfile.write(LISTING)

        do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def verify_request(self, *_: object) -> bool:
            connections.append("")
            return True

        def handle_error(self, *_: object) -> None:
            pass  # clients break off

    checks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    checks.load_cert_chain(both)
    with Server(("127.0.0.1", 0), Empty) as server:
        server.socket = checks.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}", connections, requests
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def plain_server(seen: list[str]) -> Iterator[str]:
    """The URL of a server without TLS that takes everything."""

    class Taking(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def options(tls: Tls) -> dict[str, str]:
    """Of a data source."""
    return {} if tls.ca is None else {"tls_ca": tls.ca}


def of_wal(url: str, tls: Tls) -> list[FileStatus]:
    path = f"{url.replace('https', 'swebhdfs')}/hbase/oldWALs"
    files, place = WalQuery.parse({"path": path, **options(tls)}).open(path)
    return files.list(place)


def of_snapshot(url: str, tls: Tls) -> list[FileStatus]:
    files, place = query_of({"path": "/hbase", "webhdfs": url, "snapshot": "s", **options(tls)}).open()
    return files.list(place)


WORK: dict[str, Callable[[str, Tls], object]] = {
    "files": lambda url, tls: WebHdfs(url, "ferry", security=Security(tls=tls)).list("/hbase/WALs"),
    "watch": lambda url, tls: list(asyncio.run(list_wals(url, "ferry", "/hbase", Security(tls=tls))).files),
    "hbase_wal": of_wal,
    "hbase_snapshot": of_snapshot,
}


@pytest.mark.parametrize("work", WORK)
def test_a_server_is_trusted_by_the_named_authority_alone(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, others = Authority(tmp_path), Authority(tmp_path, "others")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))
    monkeypatch.setattr("requests.adapters.DEFAULT_CA_BUNDLE_PATH", str(authority.bundle))
    with name_node(authority.issue("nn", "127.0.0.1").both) as (url, connections, requests):
        assert WORK[work](url, Tls(ca=str(authority.bundle))) == []
        assert WORK[work](url, Tls()) == [], "without `ca`, by the machine's authorities"
        done, connected = len(requests), len(connections)
        with pytest.raises(TlsError, match="not of an authority that is trusted here") as raised:
            WORK[work](url, Tls(ca=str(others.bundle)))
    assert raised.value.server == url.partition("//")[2]
    assert len(requests) == done
    assert len(connections) == connected + 1


@pytest.mark.parametrize("work", WORK)
def test_a_server_with_another_name_gets_no_request(work: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with (
        name_node(authority.issue("nn", host="localhost").both) as (url, _, requests),
        pytest.raises(TlsError, match="its certificate is for another host"),
    ):
        WORK[work](url, Tls(ca=str(authority.bundle)))
    assert not requests


@pytest.mark.parametrize("tls", [True, False])
def test_a_server_without_tls_that_one_with_tls_names_gets_no_request(
    tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a gateway that ends TLS passes on where a name node sends its clients, their token included."""
    authority, seen = Authority(tmp_path), list[str]()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.bundle))
    with (
        plain_server(seen) as elsewhere,
        name_node(authority.issue("nn", "127.0.0.1").both, elsewhere) as (url, _, requests),
    ):
        files = WebHdfs(url, "ferry", security=Security(tls=Tls(ca=str(authority.bundle))) if tls else OPEN)
        for work in (lambda: b"".join(files.read("/a")), lambda: files.write("/b", [b"x"])):
            with pytest.raises(TlsError, match="speaks no TLS, and a server that does has named it"):
                work()
    assert requests
    assert not seen


def test_a_replaced_file_counts_for_the_next_request(tmp_path: Path) -> None:
    authority, others = Authority(tmp_path), Authority(tmp_path, "others")
    bundle = tmp_path / "mine.pem"
    bundle.write_bytes(authority.bundle.read_bytes())
    with name_node(authority.issue("nn", "127.0.0.1").both) as (url, _, _):
        files = WebHdfs(url, "ferry", security=Security(tls=Tls(ca=str(bundle))))
        assert files.list("/") == []
        bundle.write_bytes(others.bundle.read_bytes())
        with pytest.raises(TlsError, match="not of an authority that is trusted here"):
            files.list("/")

"""Settings are read from a region server's own web pages, where it has any."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.errors import ConnectionFailedError
from walferry.hbase.server_pages import master_settings, settings, unlogged_writes
from walferry.hbase.zookeeper import Server

SERVER = Server("127.0.0.1", 16020, 1)
# The shape of an answer to /conf?format=json (Hadoop's Configuration.dumpConfiguration).
CONF = {
    "properties": [
        {"key": "hbase.rpc.rows.warning.threshold", "value": "5000", "isFinal": False, "resource": "hbase-default.xml"},
        {
            "key": "replication.sink.client.ops.timeout",
            "value": "20000",
            "isFinal": False,
            "resource": "hbase-site.xml",
        },
    ]
}


@contextmanager
def web_server(status: int, body: str, page: str = "/conf?format=json") -> Iterator[int]:
    """The port of a server that gives this answer for a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == page else 404)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def client_of(webui_port: int | Exception) -> Calls:
    """A client of a cluster whose server says that its web pages are at this port."""

    def call(*_: Any, **__: Any) -> tuple[Any, bytes]:
        if isinstance(webui_port, Exception):
            raise webui_port
        name = pb.ServerName(host_name=SERVER.host, port=SERVER.port)
        info = pb.ServerInfo(server_name=name, webui_port=webui_port)
        return pb.GetServerInfoResponse(server_info=info), b""

    return cast(Calls, SimpleNamespace(pool=SimpleNamespace(call=call)))


def ask(webui_port: int | Exception) -> dict[str, str] | None:
    """The settings of such a server."""
    return settings(client_of(webui_port), SERVER)


def test_settings_are_those_of_the_conf_page() -> None:
    with web_server(200, json.dumps(CONF)) as port:
        assert ask(port) == {
            "hbase.rpc.rows.warning.threshold": "5000",
            "replication.sink.client.ops.timeout": "20000",
        }


@pytest.mark.parametrize(
    ("status", "body"), [(401, ""), (302, ""), (200, "<configuration/>"), (200, "{}"), (200, "[1]"), (500, "{}")]
)
def test_pages_that_do_not_tell_leave_the_settings_unknown(status: int, body: str) -> None:
    with web_server(status, body) as port:
        assert ask(port) is None


@pytest.mark.parametrize("port", [0, (1 << 32) - 1, 1, ConnectionFailedError("no such server")])
def test_a_server_without_pages_or_out_of_reach_leaves_the_settings_unknown(port: int | Exception) -> None:
    assert ask(port) is None


def test_the_masters_settings_are_those_of_its_own_page() -> None:
    def master(port: int | None) -> Calls:
        zookeeper = SimpleNamespace(master_web_port=lambda: port, master=lambda: SERVER)
        return cast(Calls, SimpleNamespace(zookeeper=zookeeper))

    with web_server(200, json.dumps(CONF)) as port:
        assert (master_settings(master(port)) or {})["hbase.rpc.rows.warning.threshold"] == "5000"
    assert master_settings(master(None)) is None


JMX = "/jmx?qry=Hadoop%3Aservice%3DHBase%2Cname%3DRegionServer%2Csub%3DServer"


@pytest.mark.parametrize(
    ("status", "body", "count"),
    [
        (200, '{"beans": [{"modelerType": "RegionServer,sub=Server", "mutationsWithoutWALCount": 3}]}', 3),
        (200, '{"beans": []}', None),
        (200, '{"beans": [{"regionCount": 1}]}', None),
        (200, "<html>", None),
        (403, '{"beans": [{"mutationsWithoutWALCount": 3}]}', None),
    ],
)
def test_writes_that_skip_the_log_are_counted_by_the_servers_metrics(status: int, body: str, count: int | None) -> None:
    with web_server(status, body, JMX) as port:
        assert unlogged_writes(client_of(port), SERVER) == count

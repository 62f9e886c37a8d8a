"""Receivers with their servers, on real sockets, in threads of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from unit.receive.call_builder import Sent, call
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import Simple
from walferry.hbase.rpc import CODEC_WITH_TAGS, RpcConnection
from walferry.hbase.rpc_server import RpcServer
from walferry.receive.receiver import Receiver
from walferry.receive.standing import Standing
from walferry.security import Tls
from walferry.security.accepting_tls import ServerTls

SOURCE, TARGET = UUID(int=5), UUID(int=7)
HERE = (0, 5)
"""the source, as a key names it"""


class Process:
    """A receiver with its server."""

    def __init__(
        self, server: RpcServer, port: int, loop: asyncio.AbstractEventLoop, handler: Receiver[Any], standing: Standing
    ) -> None:
        self.server, self.port, self.loop, self.handler = server, port, loop, handler
        self.standing = standing
        self.tls: Tls | None = None
        """how a source reaches it"""
        self.name = f"127.0.0.1,{port},1"

    def send(self, *entries: Sent, service: str = "AdminService") -> None:
        parameter, cells = call(entries, replicationClusterId="")
        connection = RpcConnection(f"127.0.0.1:{self.port}", service, CODEC_WITH_TAGS, Simple("hbase"), self.tls)
        try:
            connection.call("ReplicateWALEntry", parameter, pb.ReplicateWALEntryResponse, cells)
        finally:
            connection.close()


@contextmanager
def running(to: Any, tables: Any, start_ms: int | None = None, tls: ServerTls | None = None) -> Iterator[Process]:
    """A receiver into a `Destination` that has these tables (`HeldTables`)."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    standing = Standing("")
    handler = Receiver(to, tables, standing, start_ms, tls=tls)
    server = RpcServer(handler.handle, host="127.0.0.1", port=0, memory_bytes=1 << 24, read_seconds=5, tls=tls)
    port = asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    made = Process(server, port, loop, handler, standing)
    made.tls = None if tls is None else tls.as_client()
    standing.server = made.name
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
        handler.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
